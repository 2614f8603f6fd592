"""The launcher against flytekit's own plugin and against torch's own launch: time and memory, each pair in one run.

Every figure is a median of alternating rounds. `benchmarks/launch.py ROW...` measures some of the rows.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import torch
from flytekit import task
from flytekitplugins import kfpytorch as peer
from rows import alternate, header, row, seconds
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from flyte_torchrun.flytekit import Elastic
from flyte_torchrun.launch import LaunchPlan, launch

ROUNDS = 5
MIB = 2**20


def nothing():
    return 1


def ours(ranks=2, function=nothing, *arguments, **settings):
    return lambda: launch(LaunchPlan(nproc_per_node=ranks, **settings), function, *arguments).value


def torchs_fork(ranks=2, function=nothing):
    """Torch's own launch in its fastest form."""
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork",
        monitor_interval=0.1,
        max_restarts=0,
    )
    return elastic_launch(config, function)


def task_of(module, function, **settings):
    """The function as a task of one of the two plugins, with its defaults."""
    return task(task_config=module.Elastic(increase_shared_mem=False, **settings))(function)


def trivial(x: int) -> int:
    return x


def big(size: int) -> torch.Tensor:
    return torch.empty(size * MIB // 4)  # filling it would be the function's own time, which grows with the ranks


def fails_once(folder: str) -> float:
    """Fails in the first attempt; returns the time from the failure to the moment when a rank runs again."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if os.environ["RANK"] == "0":
            Path(folder, "failed").write_text(repr(time.time()))
            raise ValueError("once")
        threading.Event().wait()
    return time.time() - float(Path(folder, "failed").read_text())


class Ours:
    """The two plugins under one name."""

    Elastic = Elastic


def second_launch():
    first, second = (task_of(module, trivial, nproc_per_node=2) for module in (Ours, peer))
    first(x=1)
    header("a later launch in a process, 2 ranks, against the plugin's default")
    row("our task against the plugin's", *alternate(lambda: first(x=1), lambda: second(x=1), ROUNDS))
    header("a later launch in a process, 2 ranks, against torch's own with fork")
    ours()()
    row("our launch against torch's", *alternate(ours(), torchs_fork(), 4 * ROUNDS))


def script():
    here = Path(__file__).parent
    header("from `python script.py` to its exit, one trivial task, 2 ranks")
    run = {
        name: lambda name=name: subprocess.run(
            [sys.executable, "-W", "ignore", here / "scripts" / f"{name}.py"],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in ("ours", "peer")
    }
    row("our task against the plugin's", *alternate(run["ours"], run["peer"], ROUNDS))


def restart():
    """Both report their own time between failure and running again, since the rest of a run is not restarting."""
    tasks = [task_of(module, fails_once, nproc_per_node=2, max_restarts=1) for module in (Ours, peer)]
    found = ([], [])
    for _ in range(ROUNDS):
        for each, times in zip(tasks, found, strict=True):
            with tempfile.TemporaryDirectory() as folder:
                times.append(each(folder=folder))
    header("from a failure until the ranks run again, 2 ranks")
    row("our task against the plugin's", *found)


def returned():
    header("a tensor of 500 MB returned by every rank")
    medians = {}
    for ranks in (2, 4):
        first, second = (task_of(module, big, nproc_per_node=ranks) for module in (Ours, peer))
        first.execute(size=1)
        # What follows is the same for both: flytekit writes the tensor as a literal's file and reads that again.
        mine, theirs = alternate(
            lambda each=first: each.execute(size=500), lambda each=second: each.execute(size=500), 5
        )
        medians[ranks] = statistics.median(mine)
        row(f"{ranks} ranks, in the plugin", mine, theirs)
        mine, theirs = alternate(lambda each=first: each(size=500), lambda each=second: each(size=500), 3)
        row(f"{ranks} ranks, with flytekit's part of the call", mine, theirs)
    print(f"ours in the plugin, 4 ranks / 2 ranks: {medians[4] / medians[2]:.3f}")


def read_all(tensor, folder):
    """Reads the whole tensor and waits until all ranks and the measurement have."""
    total = tensor.sum().item()
    return meet(total, folder)


def write_all(tensor, folder):
    """Writes the whole tensor; each rank must see its own value alone."""
    mine = int(os.environ["RANK"]) + 1
    tensor.fill_(mine)
    return meet(tensor.min().item() == tensor.max().item() == mine, folder)


def meet(value, folder):
    Path(folder, os.environ["RANK"]).touch()
    while not Path(folder, "measured").exists():
        time.sleep(0.01)
    return value


def pss(pid):
    """The proportional set size of a process and of all that descend from it, in bytes."""
    children = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    total, rest = 0, [pid]
    while rest:
        each = rest.pop()
        rest += children.get(each, [])
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def memory_of(function, tensor, ranks=4):
    """The memory of the tree while all ranks hold what they read or wrote, and rank 0's value."""
    with tempfile.TemporaryDirectory() as folder:
        found = []
        thread = threading.Thread(target=lambda: found.append(ours(ranks, function, tensor, folder)()), daemon=True)
        thread.start()
        while len(list(Path(folder).iterdir())) < ranks:
            time.sleep(0.01)
        total = pss(os.getpid())
        Path(folder, "measured").touch()
        thread.join()
        return total, found[0]


def inputs():
    print("a tensor of 1 GB as the input of 4 ranks: memory of the tree (PSS) above that with an empty tensor")
    ours(4)()
    base, _ = memory_of(read_all, torch.zeros(1))
    tensor = torch.ones(10**9 // 4)  # the program's own, counted in neither figure
    own = tensor.nbytes
    for name, function in (("all read it", read_all), ("all write all of it", write_all)):
        total, value = memory_of(function, tensor)
        print(f"{name:<58} {(total - base - own) / 1e9:8.3f} GB, rank 0 says {value}", flush=True)


def scaling():
    header("8 ranks against 2 ranks, trivial, on the same CPUs", "s")
    for ranks in (2, 8):
        ours(ranks)()
    row("ours: 8 ranks (left), 2 ranks (right)", *alternate(ours(8), ours(2), 2 * ROUNDS))


def state():
    return {f"layer.{number}": torch.full((2**27 // 4,), float(number)) for number in range(16)}


def speak():
    line = "x" * 99 + "\n"
    for _ in range(10_000):
        sys.stdout.write(line * 100)


def fail_long():
    raise ValueError("x" * 10_000_000)


def bulk():
    print("large things: time, and how much the launching process's peak memory grew")

    def caught():
        try:
            ours(2, fail_long)()
        except ValueError as error:
            size = len(error.message)
        if size != 10_000_000:
            raise SystemExit(f"the error came back with {size} characters")

    def shown_to_nobody():
        real, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115
        try:
            ours(1, speak)()
        finally:
            sys.stdout.close()
            sys.stdout = real

    def returned_state():
        value = ours(2, state)()
        if len(value) != 16 or value["layer.15"][-1] != 15:
            raise SystemExit("the state dict came back changed")

    for name, call in (
        ("a traceback of 10 MB", caught),
        ("100 MB of output printed by a rank", shown_to_nobody),
        ("a state dict of 2 GiB returned", returned_state),
    ):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        took = seconds(call)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(f"{name:<58} {took:8.3f} s {grown:8.0f} MiB", flush=True)


ROWS = {each.__name__: each for each in (second_launch, script, restart, scaling, inputs, bulk, returned)}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name in sys.argv[1:] or ROWS:
        ROWS[name]()

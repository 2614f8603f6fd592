"""The flytekit task against flytekit's own plugin: the same trivial task, alternating in one process.

Prints rows of `what ours peer ratio`, in seconds; a ratio below 1 means that ours takes less. The first launch in a
process pays for the start of the rank server, the later ones do not.
"""

import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

from flytekit import task
from flytekitplugins import kfpytorch as peer

from flyte_torchrun import flytekit as ours

ROUNDS = 3


@task(task_config=ours.Elastic(nproc_per_node=2, increase_shared_mem=False))
def trivial_ours(x: int) -> int:
    return x


@task(task_config=peer.Elastic(nproc_per_node=2, increase_shared_mem=False))
def trivial_peer(x: int) -> int:
    return x


def seconds(call: Callable[[], object]) -> float:
    """How long the call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def row(what: str, ours_seconds: list[float], peer_seconds: list[float]) -> None:
    """Prints the medians and their ratio."""
    ours_median, peer_median = statistics.median(ours_seconds), statistics.median(peer_seconds)
    print(f"{what:<44} {ours_median:8.3f} {peer_median:8.3f} {ours_median / peer_median:8.3f}", flush=True)


def main() -> None:
    """Runs the whole comparison."""
    print(f"{'task, 2 ranks, each with its own defaults':<44} {'ours/s':>8} {'peer/s':>8} {'ratio':>8}")
    first_ours, first_peer = seconds(lambda: trivial_ours(x=1)), seconds(lambda: trivial_peer(x=1))
    row("first launch in a process", [first_ours], [first_peer])
    later: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        later[0].append(seconds(lambda: trivial_ours(x=1)))
        later[1].append(seconds(lambda: trivial_peer(x=1)))
    row(f"a later launch (median of {ROUNDS})", *later)
    whole: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for index, name in enumerate(("ours", "peer")):
            command = [sys.executable, "-W", "ignore", __file__, name]
            whole[index].append(seconds(lambda command=command: subprocess.run(command, check=True)))  # type: ignore[misc]
    row(f"whole script, start to exit (median of {ROUNDS})", *whole)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1:]:
        {"ours": trivial_ours, "peer": trivial_peer}[sys.argv[1]](x=1)
    else:
        main()

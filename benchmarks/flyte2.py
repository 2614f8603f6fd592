"""The Flyte 2 task against `flyteplugins.pytorch`, whose local run is made to start ranks as its pod does.

The rows are those of the flytekit task in benchmarks/launch.py. `benchmarks/flyte2.py ROW...` measures some of them.
"""

import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import flyte
import torch
from rows import alternate, figure, header, python, row, seconds

ROUNDS = 5
IMPORTS = 15
MIB = 2**20


def trivial(x: int) -> int:
    return x


def big(size: int) -> torch.Tensor:
    return torch.empty(size * MIB // 4)


def fails_once(folder: str) -> float:
    """Fails in the first attempt; returns the time from the failure to the moment when a rank runs again."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if os.environ["RANK"] == "0":
            Path(folder, "failed").write_text(repr(time.time()))
            raise ValueError("once")
        threading.Event().wait()
    return time.time() - float(Path(folder, "failed").read_text())


def ours(function, **settings):
    """The function as our task of two ranks."""
    from flyte_torchrun.flyte import Elastic

    settings = {"nproc_per_node": 2, "max_restarts": 0, **settings}
    return flyte.TaskEnvironment(name="ours", plugin_config=Elastic(nnodes=1, **settings)).task(function)


def theirs(function, **settings):
    """The function as the other plugin's task, in the state in which a pod runs it: there it makes its group."""
    from flyte._context import internal_ctx
    from flyteplugins.pytorch import task as peer

    class InRanks(peer.TorchFunctionTask):
        async def execute(self, *args, **kwargs):
            context = internal_ctx()
            with context.replace_task_context(context.data.task_context.replace(mode="remote")):
                return await super().execute(*args, **kwargs)

    class Config(peer.Elastic):
        pass

    flyte.extend.TaskPluginRegistry.register(Config, InRanks)
    settings = {"nproc_per_node": 2, "max_restarts": 0, **settings}
    return flyte.TaskEnvironment(name="theirs", plugin_config=Config(nnodes=1, **settings)).task(function)


PLUGINS = {"ours": ours, "theirs": theirs}


def value(task, **inputs):
    """What a local run of the task returns."""
    (found,) = flyte.run(task, **inputs).outputs()
    return found


def later_call():
    mine, peers = (plugin(trivial) for plugin in PLUGINS.values())
    for each in (mine, peers):  # what is loaded once
        assert value(each, x=1) == 1
    header("a later call in a process, 2 ranks")
    row("flyte.run", *alternate(lambda: value(mine, x=1), lambda: value(peers, x=1), ROUNDS))


def script():
    header("from `python script.py` to its exit, one trivial task, 2 ranks")
    row("a whole script", *alternate(*(python(__file__, "run", name) for name in PLUGINS), ROUNDS))


def restart():
    """Both report their own time between failure and running again, since the rest of a run is not restarting."""
    tasks = [plugin(fails_once, max_restarts=1) for plugin in PLUGINS.values()]
    found = ([], [])
    for _ in range(ROUNDS):
        for each, times in zip(tasks, found, strict=True):
            with tempfile.TemporaryDirectory() as folder:
                times.append(value(each, folder=folder))
    header("from a failure until the ranks run again, 2 ranks")
    row("our task against the plugin's", *found)


def returned():
    header("a tensor of 500 MB returned by every rank, with flyte's part of the call")
    for ranks in (2, 4):
        mine, peers = (plugin(big, nproc_per_node=ranks) for plugin in PLUGINS.values())
        value(mine, size=1)
        row(
            f"{ranks} ranks",
            *alternate(lambda each=mine: value(each, size=500), lambda each=peers: value(each, size=500), 3),
        )


def imports():
    plain = python("-c", "import flyte")
    plugin = python("-c", "import flyte, flyte_torchrun.flyte")
    added = statistics.median(seconds(plugin) - seconds(plain) for _ in range(IMPORTS))
    figure("import, above that of flyte", added * 1000, "ms", "<= 50")


ROWS = {each.__name__: each for each in (later_call, script, restart, returned, imports)}

if __name__ == "__main__":
    flyte.init()
    if sys.argv[1:2] == ["run"]:
        assert value(PLUGINS[sys.argv[2]](trivial), x=1) == 1
    else:
        for name in sys.argv[1:] or ROWS:
            ROWS[name]()

"""The Flyte 2 task against `flyteplugins.pytorch`, whose local run is made to start ranks as its pod does."""

import statistics
import sys

import flyte
from flyte._context import internal_ctx
from rows import alternate, figure, header, python, row, seconds

from flyte_torchrun.flyte import Elastic

ROUNDS = 5
IMPORTS = 15


def trivial(x: int) -> int:
    return x


def ours():
    environment = flyte.TaskEnvironment(name="ours", plugin_config=Elastic(nnodes=1, nproc_per_node=2, max_restarts=0))
    return environment.task(trivial)


def theirs():
    from flyteplugins.pytorch import task as peer

    class InRanks(peer.TorchFunctionTask):
        async def execute(self, *args, **kwargs):
            context = internal_ctx()
            with context.replace_task_context(context.data.task_context.replace(mode="remote")):
                return await super().execute(*args, **kwargs)

    class Config(peer.Elastic):
        pass

    flyte.extend.TaskPluginRegistry.register(Config, InRanks)
    environment = flyte.TaskEnvironment(name="theirs", plugin_config=Config(nnodes=1, nproc_per_node=2, max_restarts=0))
    return environment.task(trivial)


def main():
    flyte.init()
    mine, peers = ours(), theirs()
    for task in (mine, peers):  # what is loaded once
        assert tuple(flyte.run(task, 1).outputs()) == (1,)
    header("a task of two ranks, later calls in a process")
    row("flyte.run", *alternate(lambda: flyte.run(mine, 1), lambda: flyte.run(peers, 1), ROUNDS))
    plain = python("-c", "import flyte")
    plugin = python("-c", "import flyte, flyte_torchrun.flyte")
    added = statistics.median(seconds(plugin) - seconds(plain) for _ in range(IMPORTS))
    figure("import, above that of flyte", added * 1000, "ms", "<= 50")


if __name__ == "__main__":
    sys.modules["__main__"].__dict__.setdefault("__file__", __file__)
    main()

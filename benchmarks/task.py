"""The flytekit task against flytekit's own plugin: the same trivial task, alternating in one process.

Both run two ranks with their own defaults. The first launch in a process pays for loading torch and for the rank
server, the later ones do not.
"""

import sys
import warnings

from flytekit import task
from flytekitplugins import kfpytorch as peer
from rows import alternate, header, python, row

from flyte_torchrun import flytekit as ours

ROUNDS = 5


@task(task_config=ours.Elastic(nproc_per_node=2, increase_shared_mem=False))
def trivial_ours(x: int) -> int:
    return x


@task(task_config=peer.Elastic(nproc_per_node=2, increase_shared_mem=False))
def trivial_peer(x: int) -> int:
    return x


def main():
    header("task against flytekitplugins-kfpytorch, 2 ranks")
    row("first launch in a process", *alternate(lambda: trivial_ours(x=1), lambda: trivial_peer(x=1), 1))
    row("a later launch in a process", *alternate(lambda: trivial_ours(x=1), lambda: trivial_peer(x=1), ROUNDS))
    row("a whole script", *alternate(python(__file__, "ours"), python(__file__, "peer"), ROUNDS))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1:]:
        {"ours": trivial_ours, "peer": trivial_peer}[sys.argv[1]](x=1)
    else:
        main()

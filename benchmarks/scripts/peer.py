"""A whole program with one trivial task, for benchmarks/launch.py."""

from flytekit import task
from flytekitplugins.kfpytorch import Elastic


@task(task_config=Elastic(nproc_per_node=2))
def trivial(x: int) -> int:
    return x


if __name__ == "__main__":
    assert trivial(x=1) == 1

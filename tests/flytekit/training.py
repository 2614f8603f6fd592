"""Tasks at module level, as a program has them: registered, and run in pods by flytekit's own entry point."""

import os
import threading
from pathlib import Path

import torch
from flytekit import Resources, current_context, task
from flytekit.exceptions.user import FlyteRecoverableException

from flyte_torchrun.flytekit import Elastic, ElasticPolicy, PyTorch, RestartPolicy, RunPolicy, Worker


@task(task_config=Elastic(nproc_per_node=2))
def one_node(x: int) -> int:
    return x + int(os.environ["RANK"])


@task(
    task_config=Elastic(nnodes=2, nproc_per_node=2, max_restarts=0, run_policy=RunPolicy(ttl_seconds_after_finished=0))
)
def two_nodes(x: int) -> str:
    torch.distributed.init_process_group("gloo")
    total = torch.tensor([float(x)])
    torch.distributed.all_reduce(total)
    rank = torch.distributed.get_rank()
    if torch.__version__ >= "2.9":  # before, torch may hang there
        torch.distributed.destroy_process_group()
    return f"rank {rank}: {total.item()}"


@task(task_config=Elastic(nnodes="1:3", nproc_per_node="gpu"), requests=Resources(gpu="4"))
def symbolic() -> None: ...


@task(
    task_config=PyTorch(
        worker=Worker(replicas=2, image="other:1", requests=Resources(cpu="2"), restart_policy=RestartPolicy.FAILURE)
    )
)
def master_and_workers(x: int) -> str:
    return f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: {x}"


@task(task_config=PyTorch(worker=Worker(replicas=2, image="other:1"), elastic_policy=ElasticPolicy(n_proc_per_node=2)))
def elastic_workers() -> None: ...


@task(task_config=Elastic(nnodes=2, nproc_per_node=1))
def fails_on_rank_one(recoverable: bool) -> int:
    if os.environ["RANK"] == "1":
        if recoverable:
            raise FlyteRecoverableException("the lease ran out")
        raise ValueError("the loss is not a number")
    torch.distributed.init_process_group("gloo")
    torch.distributed.barrier()
    return 0


@task(task_config=Elastic(nproc_per_node=1))
def says_its_context() -> str:
    context = current_context()
    return f"{context.execution_id.name} {context.raw_output_prefix} {context.checkpoint is not None}"


@task(task_config=Elastic(nnodes=2, nproc_per_node=2, shutdown_grace=5))
def waits(marker: str) -> None:
    (Path(marker) / f"rank-{os.environ['RANK']}").touch()
    threading.Event().wait()


@task(task_config=Elastic(nnodes=2, nproc_per_node=2, shutdown_grace=2))
def waits_in_a_collective(marker: str) -> None:
    torch.distributed.init_process_group("gloo")
    (Path(marker) / f"rank-{os.environ['RANK']}").touch()
    torch.distributed.barrier()
    while True:
        torch.distributed.all_reduce(torch.ones(1))


@task(task_config=Elastic(nproc_per_node=2, timeout=3, shutdown_grace=2), enable_deck=True)
def takes_too_long() -> None:
    threading.Event().wait()

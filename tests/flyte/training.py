"""Tasks of the Flyte 2 SDK that the tests run, locally and in pods."""

import os
from dataclasses import dataclass

import flyte
import pydantic
import torch
import torch.distributed
from flyte.io import Dir, File

from flyte_torchrun.flyte import Elastic


def environment(name, elastic, **settings):
    return flyte.TaskEnvironment(name=name, plugin_config=elastic, **settings)


one_node = environment("one_node", Elastic(nnodes=1, nproc_per_node=2, max_restarts=0))
two_nodes = environment("two_nodes", Elastic(nnodes=2, nproc_per_node=2, max_restarts=0))
restarting = environment("restarting", Elastic(nnodes=1, nproc_per_node=2, max_restarts=1))
spawning = environment("spawning", Elastic(nnodes=1, nproc_per_node=2, max_restarts=0, start_method="spawn"))
forking = environment("forking", Elastic(nnodes=1, nproc_per_node=2, max_restarts=0, start_method="fork"))


@dataclass
class Settings:
    rate: float
    names: list[str]


class Model(pydantic.BaseModel):
    layers: int


def all_reduced(value: float) -> float:
    torch.distributed.init_process_group("gloo")
    total = torch.ones(1) * value
    torch.distributed.all_reduce(total)
    torch.distributed.destroy_process_group()
    return total.item()


@one_node.task
async def asynchronous(x: int, word: str = "w") -> str:
    return f"{word} {all_reduced(x)} of {os.environ['WORLD_SIZE']}"


@one_node.task
def synchronous(x: int, word: str = "w") -> str:
    return f"{word} {all_reduced(x)} of {os.environ['WORLD_SIZE']}"


@spawning.task
def spawned(x: int) -> str:
    return f"{all_reduced(x)} {flyte.ctx().mode}"


@forking.task
def forked(x: int) -> str:
    return f"{all_reduced(x)} {flyte.ctx().mode}"


@two_nodes.task
async def over_two_nodes(x: int) -> str:
    return f"rank {os.environ['RANK']}: {all_reduced(x)}"


@one_node.task
def kinds(settings: Settings, model: Model, tensor: torch.Tensor) -> tuple[Settings, Model, torch.Tensor]:
    tensor += 1  # each rank its own
    return Settings(settings.rate * 2, [*settings.names, "b"]), Model(layers=model.layers + 1), tensor


@one_node.task
async def files(source: File, folder: Dir) -> tuple[File, Dir]:
    async with source.open("rb") as stream:
        text = bytes(await stream.read()).decode()
    names = [each.name async for each in folder.walk()]
    rank = os.environ["RANK"]
    os.makedirs(f"made-{rank}", exist_ok=True)
    with open(f"made-{rank}/out.txt", "w") as out:
        out.write(f"{text} {sorted(names)}")
    return await File.from_local(f"made-{rank}/out.txt"), await Dir.from_local(f"made-{rank}")


@one_node.task
async def context(x: int) -> dict[str, str]:
    current = flyte.ctx()
    with flyte.group("night"):
        group = flyte.ctx().group_data
    return {
        "run": current.action.run_name,
        "action": current.action.name,
        "custom": str(current.custom_context),
        "group": group.name if group else "",
        "raw": current.raw_data_path.path,
        "secret": os.environ.get("MY_SECRET", ""),
    }


@one_node.task(report=True)
async def reporting(x: int) -> str:
    tab = flyte.report.get_tab(f"rank {os.environ['RANK']}")
    tab.log(f"<b>seen {x}</b>")
    return flyte._context.internal_ctx().data.task_context.output_path


@one_node.task(report=True)
def failing(x: int) -> int:
    if os.environ["RANK"] == "1":
        raise ValueError(f"{x} is too much")
    return all_reduced(x)


@one_node.task
def not_again(x: int) -> int:
    raise flyte.errors.NonRecoverableError(f"never {x}")


@one_node.task(retries=2)
def third_time(folder: str) -> int:
    path = os.path.join(folder, f"tries-{os.environ['RANK']}")
    tries = os.path.getsize(path) if os.path.exists(path) else 0
    with open(path, "a") as file:
        file.write("x")
    if tries < 2 and os.environ["RANK"] == "0":
        raise ConnectionError("not yet")
    return tries


@restarting.task
def restarted(x: int) -> str:
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if attempt == "0":
        raise ValueError("the first attempt")
    return f"attempt {attempt}"


@two_nodes.task
def failing_on_rank_three(x: int) -> float:
    if os.environ["RANK"] == "3":
        raise ValueError(f"{x} on rank 3")
    return all_reduced(x)


@two_nodes.task
def waiting(x: int) -> int:
    import time

    print("waits", flush=True)
    time.sleep(300)
    return x

"""Local runs: real ranks in real processes."""

import functools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import flytekit
import pytest
import torch
from flytekit import Deck, task, workflow
from flytekit.exceptions.user import FlyteRecoverableException
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from flyte_torchrun.contract import ValidationError
from flyte_torchrun.flytekit import Elastic, ElasticPolicy, PyTorch
from tests.groups import leave_group

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "torchrun_task.py"
START_METHODS = ["forkserver", "fork", "spawn"]


@dataclass
class Config:
    lr: float
    bs: int
    name: str


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_example_trains(ranks, start_method):
    done = subprocess.run(
        [sys.executable, EXAMPLE, str(ranks), start_method], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    text, config, model = done.stdout.strip().splitlines()[-3:]
    assert text.startswith(f"rank 0 of {ranks}: mean loss ")
    assert config == "Config(lr=0.05, bs=32, name='modified')"
    assert model == "Linear(in_features=10, out_features=1, bias=True)"


def elastic(start_method="forkserver", ranks=2, **settings):
    return Elastic(nproc_per_node=ranks, start_method=start_method, **settings)


@pytest.mark.parametrize("start_method", START_METHODS)
def test_inputs_are_private_to_each_rank(start_method):
    @task(task_config=elastic(start_method, ranks=3))
    def add(x: torch.Tensor) -> torch.Tensor:
        torch.distributed.init_process_group("gloo")
        x += int(os.environ["RANK"]) + 1
        torch.distributed.barrier()
        leave_group()
        return x

    given = torch.zeros(100_000)
    assert torch.equal(add(x=given), torch.ones(100_000))
    assert torch.equal(given, torch.zeros(100_000))


def test_only_rank_zeros_result_leaves_its_process():
    @task(task_config=elastic(ranks=2))
    def result() -> int:
        return 7 if os.environ["RANK"] == "0" else object()

    assert result() == 7


def test_a_task_may_return_nothing_several_values_or_named_ones():
    class Named(NamedTuple):
        loss: float
        epochs: int

    @task(task_config=elastic())
    def nothing() -> None: ...

    @task(task_config=elastic())
    def several(config: Config) -> tuple[int, Config]:
        return int(os.environ["WORLD_SIZE"]), Config(lr=config.lr * 2, bs=config.bs, name="modified")

    @task(task_config=elastic())
    def named() -> Named:
        return Named(loss=0.5, epochs=3)

    assert nothing() is None
    assert several(config=Config(lr=0.5, bs=4, name="default")) == (2, Config(lr=1.0, bs=4, name="modified"))
    assert tuple(named()) == (0.5, 3)


def doubled(function):
    """A decorator of a program's own."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return 2 * function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_decorated_function_is_run_with_its_decorator(start_method):
    @task(task_config=elastic(start_method))
    @doubled
    def world(x: int) -> int:
        return x + int(os.environ["WORLD_SIZE"])

    assert world(x=1) == 6


def test_a_coroutine_function_is_run_in_each_rank():
    import asyncio

    @task(task_config=elastic())
    async def slowly(x: int) -> int:
        await asyncio.sleep(0)
        return x + int(os.environ["WORLD_SIZE"])

    assert asyncio.run(slowly(x=1)) == 3


def test_a_task_runs_inside_a_running_event_loop():
    import asyncio

    @task(task_config=elastic())
    def world() -> int:
        return int(os.environ["WORLD_SIZE"])

    async def main():
        return world()

    assert asyncio.run(main()) == 2


def test_a_workflow_passes_files_and_directories(tmp_path):
    @task
    def write() -> tuple[FlyteFile, FlyteDirectory]:
        folder = Path(flytekit.current_context().working_directory) / "folder"
        folder.mkdir(exist_ok=True)
        (folder / "a.txt").write_text("in the folder")
        (folder / "b.txt").write_text("in the file")
        return FlyteFile(str(folder / "b.txt")), FlyteDirectory(str(folder))

    @task(task_config=elastic())
    def read(file: FlyteFile, folder: FlyteDirectory) -> FlyteFile:
        text = Path(file.download()).read_text() + ", " + (Path(folder.download()) / "a.txt").read_text()
        path = Path(flytekit.current_context().working_directory) / f"{os.environ['RANK']}.txt"
        path.write_text(text)
        return FlyteFile(str(path))

    @workflow
    def flow() -> FlyteFile:
        file, folder = write()
        return read(file=file, folder=folder)

    assert Path(flow().download()).read_text() == "in the file, in the folder"


@pytest.mark.parametrize("start_method", START_METHODS)
def test_the_context_of_the_task_is_the_context_of_its_ranks(start_method, monkeypatch):
    monkeypatch.setenv("A_GROUP_A_KEY", "the secret")

    def described() -> list[str]:
        context = flytekit.current_context()
        return [
            str(context.execution_id),
            str(context.execution_date),
            context.raw_output_prefix,
            context.secrets.get("a_group", "a_key"),
            str(flytekit.FlyteContextManager.current_context().execution_state.mode),
        ]

    @task
    def plain() -> list[str]:
        return described()

    @task(task_config=elastic(start_method))
    def distributed() -> list[str]:
        return described()

    ours, theirs = distributed(), plain()
    assert ours[3:] == theirs[3:]
    assert ours[0] == theirs[0]


def test_a_checkpoint_can_be_written_in_a_rank():
    @task(task_config=elastic(ranks=1))
    def checkpoints() -> bytes:
        checkpoint = flytekit.current_context().checkpoint
        checkpoint.write(b"step 3")
        return checkpoint.read() or b""

    assert checkpoints() == b""


def test_the_decks_of_rank_zero_are_the_tasks_decks():
    @task(task_config=elastic(), enable_deck=True)
    def decks() -> int:
        Deck(f"curve of rank {os.environ['RANK']}", "<p>falling</p>")
        return 0

    context = flytekit.FlyteContextManager.current_context()
    before = len(context.user_space_params.decks)
    decks()
    names = [deck.name for deck in context.user_space_params.decks[before:]]
    assert "curve of rank 0" in names
    assert "curve of rank 1" not in names


class OutOfData(FlyteRecoverableException):
    """A recoverable error of the program's own."""


@pytest.mark.parametrize("start_method", ["forkserver", "fork"])
def test_the_users_own_exception_is_raised(start_method):
    @task(task_config=elastic(start_method))
    def fails() -> int:
        if os.environ["RANK"] == "1":
            raise KeyError("no such column")
        return 0

    with pytest.raises(KeyError, match="no such column") as caught:
        fails()
    assert "rank 1" in str(caught.value.__cause__)


def test_a_recoverable_error_of_any_rank_is_recoverable():
    @task(task_config=elastic())
    def fails() -> int:
        if os.environ["RANK"] == "1":
            raise OutOfData("the bucket is being filled")
        return 0

    with pytest.raises(FlyteRecoverableException, match="the bucket is being filled"):
        fails()


@pytest.mark.parametrize(("nnodes", "nodes"), [(2, 2), ("2:3", 2)])
def test_a_local_run_of_several_nodes_has_the_ranks_of_as_many_pods(nnodes, nodes):
    @task(task_config=Elastic(nnodes=nnodes, nproc_per_node=2, start_method="forkserver"))
    def group(scale: float) -> list[str]:
        torch.distributed.init_process_group("gloo")
        total = torch.full((1,), scale)
        torch.distributed.all_reduce(total)
        mine = f"{os.environ['RANK']}/{os.environ['LOCAL_RANK']} of {os.environ['WORLD_SIZE']}: {total.item()}"
        found = [""] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(found, mine)
        leave_group()
        return found

    assert group(scale=0.5) == [f"{rank}/{rank % 2} of {2 * nodes}: {nodes * 1.0}" for rank in range(2 * nodes)]


def test_an_error_in_a_local_run_of_several_nodes_is_the_users_own():
    @task(task_config=Elastic(nnodes=2, nproc_per_node=1, max_restarts=1))
    def fails() -> int:
        if os.environ["RANK"] == "1":
            raise KeyError(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}")
        return 0

    with pytest.raises(KeyError, match="attempt 1") as caught:
        fails()
    assert caught.value.__cause__.rank == 1


def test_a_pytorch_job_runs_locally_with_as_many_ranks_as_pods():
    @task(task_config=PyTorch(num_workers=2))
    def ranks() -> str:
        return f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']} at {os.environ['MASTER_ADDR']}"

    assert ranks() == "0 of 3 at 127.0.0.1"


def test_a_group_without_workers_has_the_variables_of_one():
    @task(task_config=PyTorch(num_workers=0))
    def alone() -> str:
        return f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']} {'MASTER_PORT' in os.environ}"

    assert alone() == "0 of 1 True"


def test_an_elastic_policy_of_one_node_runs_its_ranks():
    @task(task_config=PyTorch(num_workers=1, elastic_policy=ElasticPolicy(n_proc_per_node=2)))
    def ranks() -> int:
        return int(os.environ["WORLD_SIZE"])

    assert ranks() == 2


def test_the_callers_environment_stays_as_it_was():
    @task(task_config=elastic())
    def nothing() -> None: ...

    before = dict(os.environ)
    nothing()
    assert dict(os.environ) == before


def test_nothing_starts_on_a_bad_configuration():
    with pytest.raises(ValidationError):
        elastic(ranks=0)


WITHOUT_TORCH = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("No module named 'torch'", name=name)
sys.meta_path.insert(0, Hidden())
from flytekit import task
from flytekit.configuration import ImageConfig, SerializationSettings
from flytekit.tools.translator import get_serializable
from flyte_torchrun.flytekit import Elastic, PyTorch
@task(task_config=Elastic(nnodes=2, nproc_per_node=2))
def train(x: int) -> int:
    return x
@task(task_config=Elastic(nproc_per_node=2))
def alone(x: int) -> int:
    return x
settings = SerializationSettings(project="p", domain="d", version="v", image_config=ImageConfig.auto(img_name="i:1"))
print(get_serializable({}, settings, train).template.type)
assert "torch" not in sys.modules
try:
    alone(x=1)
except ImportError as error:
    print(error)
"""


def test_registering_needs_no_torch_and_running_says_what_is_missing(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(WITHOUT_TORCH)
    done = subprocess.run([sys.executable, "-W", "ignore", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kind, *message = done.stdout.strip().splitlines()
    assert kind == "pytorch"
    assert "flyte-torchrun[torch]" in message[-1]


def test_importing_loads_no_torch():
    script = "import sys, flyte_torchrun.flytekit; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

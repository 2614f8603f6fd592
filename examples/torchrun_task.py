"""Two ranks train a small model inside a flytekit workflow: `python examples/torchrun_task.py [RANKS [START_METHOD]]`.

The first task makes a model, the second trains it under torchrun in a worker group of its own processes, each on its
share of the data, and returns what global rank 0 returned.
"""

import sys
from dataclasses import dataclass, replace

import torch
from flytekit import task, workflow

from flyte_torchrun.flytekit import Elastic

RANKS = int(sys.argv[1]) if len(sys.argv) > 1 and __name__ == "__main__" else 2
START_METHOD = sys.argv[2] if len(sys.argv) > 2 and __name__ == "__main__" else "spawn"


@dataclass
class Config:
    lr: float = 1e-3
    bs: int = 32
    name: str = "default"


@task
def init_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(10, 1)


@task(task_config=Elastic(min_replicas=1, max_replicas=1, nproc_per_node=RANKS, start_method=START_METHOD))
def train(config: Config, model: torch.nn.Module) -> tuple[str, Config, torch.nn.Module]:
    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=config.lr)
    torch.manual_seed(rank)
    inputs = torch.randn(config.bs, 10)
    for _ in range(20):
        optimizer.zero_grad()
        loss = (parallel(inputs) - inputs.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
    torch.distributed.all_reduce(loss)
    torch.distributed.destroy_process_group()
    text = f"rank {rank} of {ranks}: mean loss {loss.item() / ranks:.3f}"
    return text, replace(config, name="modified"), model


@workflow
def training(config: Config = Config(lr=0.05)) -> tuple[str, Config, torch.nn.Module]:
    return train(config=config, model=init_model())


if __name__ == "__main__":
    text, config, model = training()
    print(text)
    print(config)
    print(model)

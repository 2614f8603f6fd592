"""One training function under both SDKs: `python examples/both_sdks.py flytekit`, or `flyte`.

Only the decorator differs: what trains, and how it is launched, is the same.
"""

import os
import sys


def train(steps: int) -> str:
    import torch
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(int(os.environ["RANK"]))  # each rank has data of its own
    for _ in range(steps):
        data = torch.randn(32, 4, generator=generator)
        loss = (model(data) - data.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.distributed.destroy_process_group()
    return f"{os.environ['WORLD_SIZE']} ranks, loss {loss.item():.4f}"


if __name__ == "__main__" and sys.argv[1] == "flytekit":
    from flytekit import task

    from flyte_torchrun.flytekit import Elastic

    decorate = task(task_config=Elastic(nnodes=2, nproc_per_node=2))
    print(decorate(train)(steps=50))
elif __name__ == "__main__":
    import flyte

    from flyte_torchrun.flyte import Elastic

    decorate = flyte.TaskEnvironment(name="training", plugin_config=Elastic(nnodes=2, nproc_per_node=2)).task
    flyte.init()
    print(*flyte.run(decorate(train), steps=50).outputs())

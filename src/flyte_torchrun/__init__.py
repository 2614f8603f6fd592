"""Distributed PyTorch on Flyte: one contract, from the schema to the ranks.

Import the part that you need; importing this package alone loads nothing:

- `flyte_torchrun.contract`: typed helpers for the task template's payload (needs protobuf and flyteidl)
- `flyte_torchrun.launch`: runs a worker group in this machine or pod (needs torch)
- `flyte_torchrun.flytekit`: the flytekit task configurations (needs flytekit; torch only to run)
"""

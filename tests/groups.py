"""Process groups in tests."""

import torch


def leave_group():
    """Destroys the process group, where that is safe.

    torch before 2.9 hangs there with gloo every other time, also in programs under torchrun; the process's end does.
    """
    if torch.__version__ >= "2.9":
        torch.distributed.destroy_process_group()

"""What the rank server loads before it forks ranks: torch, and the modules that the plan names.

multiprocessing swallows errors of what its server preloads, so they are kept here and told by the first rank. The
server must not touch the GPU: a process that has cannot be forked.
"""

import gc
import importlib
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterable

from flyte_torchrun.launch import huge_pages

__all__ = ["ERROR", "LOADED", "MODULES_VARIABLE", "load"]

MODULES_VARIABLE = "FLYTE_TORCHRUN_PRELOAD"

ERROR: str | None = None
# When the server began and ended to load, seconds since the epoch; None in any process that is no server's.
LOADED: tuple[float, float] | None = None


def load(names: Iterable[str]) -> str | None:
    """Imports the modules.

    Returns:
        What went wrong, with the module's name; None: nothing.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            return f"preload: {name} cannot be imported: {type(error).__name__}: {error}"
    return None


def _load_in_server(names: Iterable[str]) -> str | None:
    for name in ("torch", "torch.distributed", "flyte_torchrun.launch.pickling", *names):
        if error := load([name]):
            return error
        if sys.modules["torch"].cuda.is_initialized():
            return f"preload: importing {name} initialised CUDA, after which no process can be forked"
    return None


def _read_once() -> None:
    from flyte_torchrun.launch.files import load, save

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "nothing")
        save(_read_once, path)
        load(path)


if MODULES_VARIABLE in os.environ:
    _START = time.time()
    ERROR = _load_in_server(filter(None, os.environ[MODULES_VARIABLE].split(",")))
    # Once for all ranks: what torch imports only when it reads, and the garbage of all these imports.
    if ERROR is None:
        _read_once()
    gc.collect()
    gc.freeze()
    huge_pages.install()
    LOADED = (_START, time.time())

"""Pickling for the ranks: cloudpickle, which keeps the files of functions and names what cannot be pickled."""

from __future__ import annotations

import io
import pickle
import types
from collections import ChainMap
from collections.abc import Callable
from typing import Any, ClassVar

import cloudpickle

from flyte_torchrun.launch.errors import SerializationError

__all__ = ["Pickler", "blame", "dump_exception", "payload_size"]

_DEEPEST_BLAME = 8
_reduce_code: Callable[[types.CodeType], tuple[Any, ...]] = cloudpickle.Pickler.dispatch_table[types.CodeType]


def _reduce_code_with_its_file(code: types.CodeType) -> tuple[Any, ...]:
    make, arguments = _reduce_code(code)
    return _make_code, (make, arguments, code.co_filename)


def _make_code(make: Callable[..., types.CodeType], arguments: tuple[Any, ...], file: str) -> types.CodeType:
    return make(*arguments).replace(co_filename=file)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle's, but a function keeps the name of its file: without it a traceback in a rank shows no source."""

    dispatch_table: ClassVar[Any] = ChainMap(
        {types.CodeType: _reduce_code_with_its_file}, cloudpickle.Pickler.dispatch_table
    )


def payload_size(arguments: dict[str, Any]) -> int:
    """The bytes that the named arguments will take in a file.

    Raises:
        SerializationError: names the first argument, and the part of it, that cannot be pickled.
    """
    import torch

    class Measure(Pickler):
        """Pickles into nothing; tensors' storages are counted, not copied."""

        def persistent_id(self, value: object) -> object:
            if isinstance(value, torch.storage.TypedStorage | torch.UntypedStorage):
                storage = value if isinstance(value, torch.UntypedStorage) else value._untyped_storage
                storages[storage.data_ptr() or id(storage)] = storage.nbytes()
                return "storage"
            return None

    storages: dict[int, int] = {}
    sink = _Counter()
    for name, value in arguments.items():
        try:
            Measure(sink, protocol=5).dump(value)
        except Exception as error:
            path, reason = blame(name, value, error)
            raise SerializationError(f"{path} cannot be sent to the ranks: {reason}") from error
    return sink.count + sum(storages.values())


class _Counter(io.RawIOBase):
    """A file that keeps only the number of bytes."""

    count = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.count += size
        return size


def blame(path: str, value: Any, error: Exception, depth: int = 0) -> tuple[str, str]:
    """The innermost part of a value that cannot be pickled, and why.

    Args:
        path: what the value is called.
        value: what could not be pickled.
        error: what pickling it raised.
        depth: how many parts of parts this is.
    """
    if isinstance(value, dict):
        parts = [(f"{path}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    else:
        parts = [(f"{path}.{name}", item) for name, item in getattr(value, "__dict__", {}).items()]
    for part, item in parts if depth < _DEEPEST_BLAME else []:
        try:
            cloudpickle.dumps(item)
        except Exception as inner:
            return blame(part, item, inner, depth + 1)
    return path, str(error) if isinstance(error, TypeError) else f"{type(error).__name__}: {error}"


def dump_exception(error: BaseException) -> bytes | None:
    """The exception as a pickle, or None when it cannot be rebuilt from one."""
    try:
        pickled: bytes = cloudpickle.dumps(error)
        pickle.loads(pickled)
    except Exception:
        return None
    return pickled

"""Reading a `torch.nn.Module` input without running code from the file.

flytekit writes a module with `torch.save` and reads it with `torch.load`, which since torch 2.6 refuses whole modules:
`weights_only=True` is its default. Turning that off would let the file, which may come from anybody who can write to
the bucket, run code. Here it stays on, and the only further names allowed are

- classes derived from `torch.nn.Module` that are imported in this process already: nothing is imported because a file
  asks for it. Objects of them are made without calling `__new__` or `__init__`; only their state comes from the file;
- functions of `torch.nn.functional`, which a layer may hold as its activation.

Classes that carry code as strings (`torch.fx`, `torch.jit`, `torch.package`, `torch.export`) are refused. What remains
is that the state goes through the class's own `__setstate__` where it has one.
"""

from __future__ import annotations

import pickle
import pickletools
import re
import sys
import types
import zipfile
from typing import TYPE_CHECKING, Any

from flytekit.core.context_manager import FlyteContext
from flytekit.core.type_engine import TypeEngine
from flytekit.models.literals import Literal

if TYPE_CHECKING:
    import torch

__all__ = ["install_module_transformer", "load_module"]

_CODE_CARRIERS = ("torch.fx.", "torch.jit.", "torch.package.", "torch.export.")


def install_module_transformer() -> None:
    """Makes flytekit read `torch.nn.Module` safely, once torch is loaded; does nothing before, or when called again.

    torch before 2.6 is left alone: there flytekit's own reader works, with that torch's default.
    """
    if "torch" not in sys.modules:
        return
    import torch

    if not hasattr(torch.serialization, "get_unsafe_globals_in_checkpoint"):
        return
    TypeEngine.lazy_import_transformers()
    transformer: Any = TypeEngine._REGISTRY.get(torch.nn.Module)
    if transformer is None or getattr(transformer, "runs_no_code_from_the_file", False):
        return

    class ModuleTransformer(type(transformer)):  # type: ignore[misc]
        """flytekit's transformer for `torch.nn.Module`, with a reader that runs no code from the file."""

        runs_no_code_from_the_file = True

        def to_python_value(
            self, ctx: FlyteContext, lv: Literal, expected_python_type: type[torch.nn.Module]
        ) -> torch.nn.Module:
            path = ctx.file_access.get_random_local_path()
            ctx.file_access.get_data(lv.scalar.blob.uri, path, is_multipart=False)
            return load_module(path, "cuda:0" if torch.cuda.is_available() else "cpu")

    TypeEngine._REGISTRY[torch.nn.Module] = ModuleTransformer()


def load_module(path: str, device: str) -> torch.nn.Module:
    """Reads a module that `torch.save` wrote.

    Args:
        path: the file.
        device: where its tensors go, such as `cpu` or `cuda:0`.

    Raises:
        ValueError: the file is not one of `torch.save`, names something that is not allowed, or holds no module.
    """
    import torch

    allowed: list[Any] = []
    for name in _global_names(path):
        found = _loaded(name)
        if isinstance(found, type) and issubclass(found, torch.nn.Module) and not _carries_code(found):
            # A name with a line break cannot be written in a pickle: it lets torch set the state of such objects,
            # while what the file itself can name is only the shell, which makes them empty.
            allowed += [(_shell(found), name), (found, f"\n{name}")]
        elif isinstance(found, types.FunctionType | types.BuiltinFunctionType) and _is_activation(name):
            allowed.append((found, name))
    try:
        with torch.serialization.safe_globals(allowed):
            module = torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        raise ValueError(
            f"the torch.nn.Module in {path} names {named[1] if named else 'something'}, which is not allowed: only"
            " classes derived from torch.nn.Module that this program has imported are; import the module's class before"
            " the task runs, or pass a state_dict"
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise ValueError(f"expected a torch.nn.Module in {path}, found {type(module).__name__}")
    return module


def _global_names(path: str) -> set[str]:
    """The dotted names that the file's pickle asks for. Reading them runs nothing."""
    try:
        with zipfile.ZipFile(path) as archive:
            pickled = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            operations = [*pickletools.genops(archive.read(pickled[0]))]
    except (zipfile.BadZipFile, IndexError, ValueError) as error:
        raise ValueError(f"{path} is no file of torch.save: {error}") from error
    return {str(value).replace(" ", ".", 1) for operation, value, _ in operations if operation.name == "GLOBAL"}


def _loaded(name: str) -> object:
    """What a loaded module defines under just that name; None when there is nothing."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:count]))
        if found is not None:
            for part in parts[count:]:
                found = getattr(found, part, None)
            qualified = f"{getattr(found, '__module__', None)}.{getattr(found, '__qualname__', None)}"
            return found if qualified == name or name.startswith("torch._C._nn.") else None
    return None


def _is_activation(name: str) -> bool:
    module, _, _ = name.rpartition(".")
    return module in {"torch.nn.functional", "torch._C._nn"}


def _carries_code(cls: type) -> bool:
    """Whether the class, or one that it derives from, rebuilds code from strings."""
    return any(f"{base.__module__}.".startswith(_CODE_CARRIERS) for base in cls.__mro__)


def _shell(cls: type) -> type:
    """Stands for a class in the file: makes an empty object of it, whatever arguments the file gives."""

    class Shell:
        def __new__(cls_of_shell, *arguments: object) -> Any:
            return object.__new__(cls)

    return Shell

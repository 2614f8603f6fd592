"""A file with the tasks in it written for other releases, and all else in it as it was."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from flyte_torchrun.compat.check import Finding
from flyte_torchrun.compat.inputs import (
    DEEPEST,
    GZIP,
    KEYS,
    PACKAGES,
    TEXTS,
    Found,
    InputError,
    bounded,
    can_hold_tasks,
    documents_of,
    is_template,
    is_text,
    members_of,
    parsed,
    place_in,
    template_of,
)
from flyte_torchrun.compat.target import for_target
from flyte_torchrun.compat.wire import with_changed
from flyte_torchrun.contract.structs import to_json

__all__ = ["convert"]

_PYTORCH = ("pytorch", "python-task")
_Change = Callable[[Found], Any]


def convert(
    path: str | os.PathLike[str], target: str, stdin: IO[bytes] | None = None
) -> tuple[bytes, list[tuple[Found, tuple[Finding, ...]]]]:
    """The file with each PyTorch task of it written so that all releases of a target read it.

    A package stays a package and a TaskSpec a TaskSpec: only `custom` and `task_type_version` of the tasks change.
    Comments of YAML are lost, and a package is packed anew.

    Args:
        path: a file as `templates_in` takes it, or `-`.
        target: releases of Flyte, such as `>=1.6`.
        stdin: what `-` is.

    Returns:
        The new content, and each task that was written anew, with what the target's releases would not honour of it.

    Raises:
        InputError: it cannot be read, or no PyTorch task is in it.
        ReleaseError: no known release is in the target.
        ContractError: a payload cannot be read.
    """
    written: list[tuple[Found, tuple[Finding, ...]]] = []

    def change(found: Found) -> Any:
        if found.template.type not in _PYTORCH or not found.template.HasField("custom"):
            return found.template
        new, findings = for_target(found.template, target)
        written.append((found, findings))
        return new

    source = os.fspath(path)
    if source == "-":
        content = bounded(stdin or io.BytesIO(), "standard input")
        changed = _changed("standard input", content, change)
    elif Path(source).is_dir():
        raise InputError(f"{source}: is a folder; allowed: a file")
    else:
        try:
            with Path(source).open("rb") as file:
                if source.endswith(PACKAGES):
                    changed = _package(source, file, change)
                else:
                    changed = _changed(source, bounded(file, source), change)
        except OSError as error:
            raise InputError(f"{source}: {error.strerror or error}") from error
    if not written:
        raise InputError(f"{source}: holds no PyTorch task")
    return changed, written


def _changed(source: str, content: bytes, change: _Change) -> bytes:
    if content[:2] == GZIP:
        return _package(source, io.BytesIO(content), change)
    return _text(source, content, change) if is_text(source, content) else _message(source, content, change)


def _package(source: str, file: IO[bytes], change: _Change) -> bytes:
    is_compressed = file.read(2) == GZIP
    file.seek(0)
    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w", format=tarfile.PAX_FORMAT) as package:
        for member, content in members_of(source, file, all_files=True):
            new = content
            if content is not None and can_hold_tasks(member.name):
                where = f"{source}:{member.name}"
                is_text_by_name = member.name.endswith(TEXTS)
                new = (
                    _text(where, content, change)
                    if is_text_by_name
                    else _message(where, content, change, is_required=False)
                )
                member.size = len(new)
            package.addfile(member, None if new is None else io.BytesIO(new))
    return gzip.compress(result.getvalue(), mtime=0) if is_compressed else result.getvalue()


def _message(source: str, content: bytes, change: _Change, *, is_required: bool = True) -> bytes:
    place = place_in(source, content, is_required=is_required)
    return content if place is None else _at(source, content, place, change)


def _at(source: str, content: bytes, place: tuple[int, ...], change: _Change) -> bytes:
    if place:
        return with_changed(content, place[0], lambda part: _at(source, part, place[1:], change))
    template = template_of(content)
    if template is None:
        return content
    new = change(Found(source, template))
    return content if new is template else new.SerializeToString(deterministic=True)


def _text(source: str, content: bytes, change: _Change) -> bytes:
    kind, documents = documents_of(source, content)
    changed = [_value(source, document, change, 0) for document in documents]
    if kind == "json":
        return f"{json.dumps(changed[0], indent=2, ensure_ascii=False)}\n".encode()
    import yaml

    return yaml.safe_dump_all(changed, sort_keys=False, allow_unicode=True).encode()


def _value(where: str, value: Any, change: _Change, depth: int) -> Any:
    if depth > DEEPEST:
        raise InputError(f"{where[:100]}: nested deeper than {DEEPEST}")
    if isinstance(value, list):
        return [_value(f"{where}[{index}]", item, change, depth + 1) for index, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    if is_template(value):
        template = parsed(where, value)
        new = change(Found(where, template))
        if new is template:
            return value
        version = "task_type_version" if "task_type_version" in value else "taskTypeVersion"
        return {**value, version: new.task_type_version, "custom": _plain(to_json(new.custom))}
    return {
        key: _value(f"{where}.{key}", item, change, depth + 1) if key in KEYS else item for key, item in value.items()
    }


def _plain(value: Any) -> Any:
    """What a Struct does not keep: the order of keys, which is made the alphabet's, and whole numbers, 2.0 being 2."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in sorted(value.items())}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value

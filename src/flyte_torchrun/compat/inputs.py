"""Task templates out of what a person has: serialized messages, JSON, YAML, packages of `pyflyte package`, folders.

Nothing is unpacked to disk: a package is read member by member, and no name in it is used as a path. What is read is
bounded, in bytes and in depth.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from flyte_torchrun.compat.wire import WireError, fields_of

__all__ = ["Found", "InputError", "templates_in"]

_LARGEST_FILE = 64 * 2**20
_LARGEST_PACKAGE = 1024 * 2**20
_MOST_MEMBERS = 200_000
_DEEPEST = 100
_GZIP = b"\x1f\x8b"
_TEXTS = (".json", ".yaml", ".yml")
_PACKAGES = (".tgz", ".tar.gz", ".tar")
# Where a message that holds task templates holds them: TaskTemplate itself, TaskSpec and CompiledTask, TaskClosure,
# admin's Task, and a compiled workflow's closure. Numbers of flyteidl's fields.
_PLACES: tuple[tuple[int, ...], ...] = ((), (1,), (1, 1), (2, 1, 1), (3, 1))


class InputError(Exception):
    """Something that cannot be read; the text names the file, the place in it, and what is wrong."""


@dataclass(frozen=True, slots=True)
class Found:
    """A task template, and where it was.

    Attributes:
        source: the file, and within it the member or the place.
        template: a flyteidl TaskTemplate.
    """

    source: str
    template: Any

    @property
    def name(self) -> str:
        """The task's own name, or where it was found."""
        return self.template.id.name or self.source


def templates_in(path: str | os.PathLike[str], stdin: IO[bytes] | None = None) -> Iterator[Found]:
    """Every task template in a file, a folder of files, or standard input (`-`), in order.

    Raises:
        InputError: it is not there, cannot be read, or holds no task template.
    """
    name = os.fspath(path)
    if name == "-":
        found = _from_bytes("standard input", _bounded(stdin or io.BytesIO(), "standard input"))
    elif Path(name).is_dir():
        found = _from_folder(Path(name))
    else:
        found = _from_file(Path(name))
    is_empty = True
    for each in found:
        is_empty = False
        yield each
    if is_empty:
        raise InputError(f"{name}: holds no task template")


def _from_folder(folder: Path) -> Iterator[Found]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name.endswith((".pb", *_TEXTS, *_PACKAGES)):
            try:
                yield from _from_file(path)
            except InputError as error:
                # A folder has other things, too: texts that are something else are left out, messages are not.
                if path.name.endswith(_TEXTS) and "no task template" in str(error):
                    continue
                raise


def _from_file(path: Path) -> Iterator[Found]:
    try:
        if path.name.endswith(_PACKAGES):
            yield from _from_package(str(path))
            return
        with path.open("rb") as file:
            content = _bounded(file, str(path))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    yield from _from_bytes(str(path), content)


def _bounded(file: IO[bytes], source: str) -> bytes:
    content = file.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise InputError(f"{source}: larger than {_LARGEST_FILE // 2**20} MiB")
    return content


def _from_bytes(source: str, content: bytes) -> Iterator[Found]:
    if content[:2] == _GZIP:
        yield from _from_package(source, content)
        return
    if source.endswith(_TEXTS) or (not source.endswith(".pb") and _looks_like_text(content)):
        yield from _from_text(source, content)
        return
    yield from _from_message(source, content, is_required=True)


def _looks_like_text(content: bytes) -> bool:
    head = content[:256].lstrip()
    return head[:1] in (b"{", b"[") or (bool(head) and all(byte >= 32 or byte in b"\t\r\n" for byte in head))


def _from_package(source: str, content: bytes | None = None) -> Iterator[Found]:
    """A tar file, compressed or not; links and other special members are passed over, since nothing is unpacked."""
    total = 0
    try:
        with contextlib.ExitStack() as stack:
            opened: Any = io.BytesIO(content) if content is not None else Path(source).open("rb")  # noqa: SIM115
            file = stack.enter_context(opened)
            magic = file.read(2)
            file.seek(0)
            if magic == _GZIP:
                file = stack.enter_context(gzip.GzipFile(fileobj=file))
            package = stack.enter_context(tarfile.open(fileobj=file, mode="r|"))
            for number, member in enumerate(package):
                if number >= _MOST_MEMBERS:
                    raise InputError(f"{source}: more than {_MOST_MEMBERS} members")
                total += member.size
                if total > _LARGEST_PACKAGE:
                    raise InputError(f"{source}: unpacks to more than {_LARGEST_PACKAGE // 2**20} MiB")
                if not member.isfile() or not member.name.endswith((".pb", *_TEXTS)):
                    continue
                part = package.extractfile(member)
                if part is not None:
                    where = f"{source}:{member.name}"
                    data = _bounded(part, where)
                    if member.name.endswith(_TEXTS):
                        yield from _from_text(where, data)
                    else:
                        yield from _from_message(where, data, is_required=False)
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, OverflowError) as error:
        raise InputError(f"{source}: no package that can be read: {error}") from error


def _from_message(source: str, content: bytes, *, is_required: bool) -> Iterator[Found]:
    """A serialized message of any kind that holds task templates."""
    try:
        fields = fields_of(content)
    except WireError as error:
        raise InputError(f"{source}: no serialized protobuf message: {error}") from error
    for place in _PLACES:
        if templates := list(_at(content, place)):
            for index, template in enumerate(templates):
                yield Found(source if len(templates) == 1 else f"{source}[{index}]", template)
            return
    if is_required:
        raise InputError(f"{source}: a message with the fields {sorted(set(fields))}, but no task template is in it")


def _at(content: bytes, place: tuple[int, ...]) -> Iterator[Any]:
    """The templates at a place, if what is there is one: it has a type and a name or a target."""
    if place:
        try:
            parts = fields_of(content).get(place[0], ())
        except WireError:
            return
        for part in parts:
            if isinstance(part, bytes):
                yield from _at(part, place[1:])
        return
    from flyteidl.core import tasks_pb2

    try:
        template = tasks_pb2.TaskTemplate.FromString(content)
    except DecodeError:
        return
    if template.type and template.type.isprintable() and (template.id.name or template.WhichOneof("target")):
        yield template


def _from_text(source: str, content: bytes) -> Iterator[Found]:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: not UTF-8: {error}") from error
    is_json = text.lstrip()[:1] in ("{", "[") and not source.endswith((".yaml", ".yml"))
    documents = _json(source, text) if is_json else _yaml(source, text)
    for where, value in documents:
        yield from _from_value(f"{source}{where}", value, 0)


def _json(source: str, text: str) -> Iterator[tuple[str, Any]]:
    try:
        yield "", json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: no JSON that can be read: {error}") from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is there twice")
        found[key] = value
    return found


def _yaml(source: str, text: str) -> Iterator[tuple[str, Any]]:
    try:
        import yaml

        from flyte_torchrun.compat.strict_yaml import StrictLoader
    except ModuleNotFoundError as error:
        raise InputError(f"{source}: reading YAML needs PyYAML: pip install 'flyte-torchrun[yaml]'") from error
    try:
        documents = list(yaml.load_all(text, StrictLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{source}: no YAML that can be read: {' '.join(str(error).split())}") from error
    for index, document in enumerate(documents):
        yield ("" if len(documents) == 1 else f"[{index}]"), document


def _from_value(where: str, value: Any, depth: int) -> Iterator[Found]:
    """Templates in a JSON value: itself, below `template`, `compiledTask`, `closure`, `tasks`, or in a list."""
    if depth > _DEEPEST:
        raise InputError(f"{where[:100]}: nested deeper than {_DEEPEST}")
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _from_value(f"{where}[{index}]", item, depth + 1)
    elif isinstance(value, Mapping):
        if isinstance(value.get("type"), str) and any(
            key in value for key in ("custom", "container", "k8sPod", "k8s_pod")
        ):
            yield Found(where, _parsed(where, value))
            return
        for key in ("template", "compiledTask", "compiled_task", "closure", "tasks", "items"):
            if key in value:
                yield from _from_value(f"{where}.{key}" if where else key, value[key], depth + 1)


def _parsed(where: str, value: Mapping[str, Any]) -> Any:
    from flyteidl.core import tasks_pb2

    try:
        return json_format.ParseDict(dict(value), tasks_pb2.TaskTemplate(), ignore_unknown_fields=True)
    except (json_format.ParseError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{where}: no task template: {error}") from error

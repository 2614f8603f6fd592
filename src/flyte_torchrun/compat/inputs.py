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
from typing import IO, Any, cast

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from flyte_torchrun.compat.wire import WireError, fields_of

__all__ = ["Found", "InputError", "templates_in"]

_LARGEST_FILE = 64 * 2**20
_LARGEST_PACKAGE = 1024 * 2**20
_MOST_MEMBERS = 200_000
DEEPEST = 100
GZIP = b"\x1f\x8b"
TEXTS = (".json", ".yaml", ".yml")
PACKAGES = (".tgz", ".tar.gz", ".tar")
# Where a message that holds task templates holds them: TaskTemplate itself, TaskSpec and CompiledTask, TaskClosure,
# admin's Task, and a compiled workflow's closure. Numbers of flyteidl's fields.
KEYS = ("template", "compiledTask", "compiled_task", "closure", "tasks", "items")  # the same in JSON
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
        found = _from_bytes("standard input", bounded(stdin or io.BytesIO(), "standard input"))
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
        if path.is_file() and path.name.endswith((".pb", *TEXTS, *PACKAGES)):
            try:
                yield from _from_file(path)
            except InputError as error:
                # A folder has other things, too: texts that are something else are left out, messages are not.
                if path.name.endswith(TEXTS) and "no task template" in str(error):
                    continue
                raise


def _from_file(path: Path) -> Iterator[Found]:
    try:
        with path.open("rb") as file:
            if path.name.endswith(PACKAGES):
                yield from _from_package(str(path), file)
                return
            content = bounded(file, str(path))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    yield from _from_bytes(str(path), content)


def bounded(file: IO[bytes], source: str) -> bytes:
    content = file.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise InputError(f"{source}: larger than {_LARGEST_FILE // 2**20} MiB")
    return content


def _from_bytes(source: str, content: bytes) -> Iterator[Found]:
    if content[:2] == GZIP:
        yield from _from_package(source, io.BytesIO(content))
    elif is_text(source, content):
        yield from _from_text(source, content)
    else:
        yield from _from_message(source, content, is_required=True)


def is_text(source: str, content: bytes) -> bool:
    """Whether a file holds JSON or YAML, by its name, else by how it begins."""
    return source.endswith(TEXTS) or (not source.endswith(".pb") and _looks_like_text(content))


def _looks_like_text(content: bytes) -> bool:
    head = content[:256].lstrip()
    return head[:1] in (b"{", b"[") or (bool(head) and all(byte >= 32 or byte in b"\t\r\n" for byte in head))


def _from_package(source: str, file: IO[bytes]) -> Iterator[Found]:
    for member, content in members_of(source, file):
        where = f"{source}:{member.name}"
        if content is not None and member.name.endswith(TEXTS):
            yield from _from_text(where, content)
        elif content is not None:
            yield from _from_message(where, content, is_required=False)


def members_of(
    source: str, file: IO[bytes], *, all_files: bool = False
) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    """The members of a tar file, compressed or not, with the content of those that can hold tasks, or of all files.

    Links and other special members have none, since nothing is unpacked.

    Raises:
        InputError: it is none, or larger than what is read.
    """
    total = 0
    try:
        with contextlib.ExitStack() as stack:
            magic = file.read(2)
            file.seek(0)
            if magic == GZIP:
                file = stack.enter_context(cast("IO[bytes]", gzip.GzipFile(fileobj=file)))
            package = stack.enter_context(tarfile.open(fileobj=file, mode="r|"))
            for number, member in enumerate(package):
                if number >= _MOST_MEMBERS:
                    raise InputError(f"{source}: more than {_MOST_MEMBERS} members")
                total += member.size
                if total > _LARGEST_PACKAGE:
                    raise InputError(f"{source}: unpacks to more than {_LARGEST_PACKAGE // 2**20} MiB")
                is_wanted = member.isfile() and (all_files or can_hold_tasks(member.name))
                part = package.extractfile(member) if is_wanted else None
                yield member, None if part is None else bounded(part, f"{source}:{member.name}")
    except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError, OverflowError) as error:
        raise InputError(f"{source}: no package that can be read: {error}") from error


def can_hold_tasks(name: str) -> bool:
    """Whether a member of a package is looked into, by its name."""
    return name.endswith((".pb", *TEXTS))


def _from_message(source: str, content: bytes, *, is_required: bool) -> Iterator[Found]:
    """A serialized message of any kind that holds task templates."""
    place = place_in(source, content, is_required=is_required)
    templates = [] if place is None else list(_at(content, place))
    for index, template in enumerate(templates):
        yield Found(source if len(templates) == 1 else f"{source}[{index}]", template)


def place_in(source: str, content: bytes, *, is_required: bool) -> tuple[int, ...] | None:
    """Where a serialized message holds task templates; None: nowhere.

    Raises:
        InputError: it is no message, or holds none and is required to.
    """
    try:
        fields = fields_of(content)
    except WireError as error:
        raise InputError(f"{source}: no serialized protobuf message: {error}") from error
    place = next((place for place in _PLACES if any(_at(content, place))), None)
    if place is None and is_required:
        raise InputError(f"{source}: a message with the fields {sorted(fields)}, but no task template is in it")
    return place


def _at(content: bytes, place: tuple[int, ...]) -> Iterator[Any]:
    """The templates at a place."""
    if not place:
        template = template_of(content)
        if template is not None:
            yield template
        return
    try:
        parts = fields_of(content).get(place[0], ())
    except WireError:
        return
    for part in parts:
        if isinstance(part, bytes):
            yield from _at(part, place[1:])


def template_of(content: bytes) -> Any:
    """The template that the bytes are, if they are one: it has a type and a name or a target."""
    from flyteidl.core import tasks_pb2

    try:
        template = tasks_pb2.TaskTemplate.FromString(content)
    except DecodeError:
        return None
    is_one = template.type and template.type.isprintable() and (template.id.name or template.WhichOneof("target"))
    return template if is_one else None


def _from_text(source: str, content: bytes) -> Iterator[Found]:
    _, documents = documents_of(source, content)
    for index, value in enumerate(documents):
        yield from _from_value(source if len(documents) == 1 else f"{source}[{index}]", value, 0)


def documents_of(source: str, content: bytes) -> tuple[str, list[Any]]:
    """Whether it is `json` or `yaml`, and the values in it.

    Raises:
        InputError: it is neither.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: not UTF-8: {error}") from error
    if text.lstrip()[:1] in ("{", "[") and not source.endswith((".yaml", ".yml")):
        return "json", [_json(source, text)]
    return "yaml", _yaml(source, text)


def _json(source: str, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: no JSON that can be read: {error}") from error


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is there twice")
        found[key] = value
    return found


def _yaml(source: str, text: str) -> list[Any]:
    try:
        import yaml

        from flyte_torchrun.compat.strict_yaml import StrictLoader
    except ModuleNotFoundError as error:
        raise InputError(f"{source}: reading YAML needs PyYAML: pip install 'flyte-torchrun[yaml]'") from error
    try:
        return list(yaml.load_all(text, StrictLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{source}: no YAML that can be read: {' '.join(str(error).split())}") from error


def _from_value(where: str, value: Any, depth: int) -> Iterator[Found]:
    """Templates in a JSON value: itself, below `template`, `compiledTask`, `closure`, `tasks`, or in a list."""
    if depth > DEEPEST:
        raise InputError(f"{where[:100]}: nested deeper than {DEEPEST}")
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _from_value(f"{where}[{index}]", item, depth + 1)
    elif isinstance(value, Mapping):
        if is_template(value):
            yield Found(where, parsed(where, value))
            return
        for key in KEYS:
            if key in value:
                yield from _from_value(f"{where}.{key}" if where else key, value[key], depth + 1)


def is_template(value: Mapping[str, Any]) -> bool:
    is_typed = isinstance(value.get("type"), str)
    return is_typed and any(key in value for key in ("custom", "container", "k8sPod", "k8s_pod"))


def parsed(where: str, value: Mapping[str, Any]) -> Any:
    from flyteidl.core import tasks_pb2

    try:
        return json_format.ParseDict(dict(value), tasks_pb2.TaskTemplate(), ignore_unknown_fields=True)
    except (json_format.ParseError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{where}: no task template: {error}") from error

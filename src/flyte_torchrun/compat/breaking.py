"""What a change of the schema breaks, and for whom: buf finds it, the registry says who reads and writes it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from flyte_torchrun.compat.inputs import InputError
from flyte_torchrun.schema import READERS, spans
from flyte_torchrun.schema.messages import Schema, known_schemas, schema_of, schema_of_release
from flyte_torchrun.schema.normal import normal
from flyte_torchrun.schema.writers import WRITERS

__all__ = ["Break", "breaking", "image_of"]

# Names count as much as numbers, since the payload travels as JSON, and files too, since modules are imported.
_POLICY = json.dumps({"version": "v2", "breaking": {"use": ["FILE", "WIRE_JSON"]}})
_FOUND_SOMETHING = 100  # buf's exit code
_QUOTED = re.compile(r'"([^"]+)"')
_MEANING = {
    "FIELD_NO_DELETE": "what writers put there is read no more, and what readers look for is written no more",
    "FIELD_SAME_NAME": "the payload is JSON, which goes by names: the old name is an unknown key to the new side",
    "FIELD_SAME_JSON_NAME": "the payload is JSON, which goes by names: the old name is an unknown key to the new side",
    "FIELD_SAME_NUMBER": "serialized messages go by numbers: a value is taken for another field's",
    "FIELD_SAME_TYPE": "a value of the old type is an error, or another value, to the new side",
    "FIELD_SAME_CARDINALITY": "one value is not a list: the other side refuses the whole task",
    "ENUM_VALUE_NO_DELETE": "readers refuse the whole task for an enum name that they do not know",
    "ENUM_VALUE_SAME_NAME": "readers refuse the whole task for an enum name that they do not know",
    "MESSAGE_NO_DELETE": "modules that import it fail, and readers that look for it see nothing",
    "ENUM_NO_DELETE": "modules that import it fail",
    "FILE_NO_DELETE": "modules that import it fail",
}


@dataclass(frozen=True, slots=True)
class Break:
    """One breaking change.

    Attributes:
        rule: buf's rule.
        message: buf's words.
        meaning: what follows from it.
        readers: the releases of Flyte that read what is changed, in words; empty: none.
        writers: SDKs that write it.
        wheels: releases on PyPI whose importers see it.
    """

    rule: str
    message: str
    meaning: str
    readers: str
    writers: tuple[str, ...]
    wheels: tuple[str, ...]

    def __str__(self) -> str:
        hit = {
            "readers": f"Flyte {self.readers}" if self.readers else "none",
            "writers": "; ".join(self.writers) or "none",
            "wheels": "; ".join(self.wheels) or "none",
        }
        lines = [f"{self.rule}: {self.message}", f"    {self.meaning}"]
        return "\n".join([*lines, *(f"    {what}: {names}" for what, names in hit.items())])


def breaking(image: bytes, against: str) -> list[Break]:
    """What a schema breaks that a release has.

    Args:
        image: a serialized FileDescriptorSet with the files of these messages, as `buf build -o` and `protoc -o` make.
        against: the release, such as `1.16.8` or `flyteidl2-2.0.53`.

    Raises:
        InputError: it is no image with these messages, or buf is not installed.
        ReleaseError: the release is not known.
    """
    released = schema_of_release(against)
    try:
        given = descriptor_pb2.FileDescriptorSet.FromString(image)
    except DecodeError as error:
        raise InputError(f"image: no FileDescriptorSet: {error}") from error
    new = normal(given, released.package)
    if not new.file:
        raise InputError(f"image: no file of {released.package}'s PyTorch tasks is in it")
    return [_explained(found, released) for found in _buf(new, released)]


def image_of(path: Path) -> bytes:
    """The image in a file, or of a folder of `.proto` files (the root that their imports start from).

    Raises:
        InputError: it cannot be read, or buf cannot build it.
    """
    try:
        if not path.is_dir():
            return path.read_bytes()
        sources = [source for source in sorted(path.rglob("*.proto")) if source.is_file()]
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder, "protos")
            for source in sources:
                copy = root / source.relative_to(path)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)
            ours = [
                str(plugins) for plugins in (root / "flyteidl/plugins", root / "flyteidl2/plugins") if plugins.is_dir()
            ]
            if not ours:
                raise InputError(f"{path}: no .proto file below flyteidl/plugins or flyteidl2/plugins is in it")
            image = Path(folder, "image.binpb")
            limits = [argument for plugins in ours for argument in ("--path", plugins)]
            done = _run("build", str(root), "-o", str(image), *limits)
            if done.returncode:
                raise InputError(f"{path}: buf: {done.stdout.strip() or done.stderr.strip()}".replace(f"{root}/", ""))
            return image.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    buf = shutil.which("buf") or shutil.which("buf", path=str(Path(sys.executable).parent))
    if buf is None:
        raise InputError("buf is needed, and is not installed: pip install buf-bin")
    return subprocess.run([buf, *arguments], capture_output=True, text=True, check=False)


def _buf(new: Any, released: Schema) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        paths = {"new": Path(folder, "new.binpb"), "old": Path(folder, "old.binpb")}
        paths["new"].write_bytes(new.SerializeToString(deterministic=True))
        paths["old"].write_bytes(released.serialized)
        compared = (str(paths["new"]), "--against", str(paths["old"]))
        done = _run("breaking", *compared, "--config", _POLICY, "--error-format", "json")
    if done.returncode not in (0, _FOUND_SOMETHING):
        raise InputError(f"buf: {done.stderr.strip()}")
    for line in dict.fromkeys(done.stdout.splitlines()):
        yield json.loads(line)


def _explained(found: dict[str, Any], released: Schema) -> Break:
    rule, message = found["type"], found["message"]
    element = _element(message, found.get("path", ""), released)
    meanings = (text for name, text in _MEANING.items() if name in rule)
    return Break(
        rule=rule,
        message=message,
        meaning=next(meanings, "readers and importers of the old state differ"),
        readers=_readers(element, released.package),
        writers=tuple(writer.name for writer in WRITERS if not element or element & set(writer.fields)),
        wheels=tuple(_wheels(element, released.package)),
    )


def _element(message: str, file: str, released: Schema) -> set[str]:
    """What buf's words about a file are about: `Message.field`, or the name of an enum.

    The words name a message or an enum, and a field by its number: the name in them may be the new one.
    """
    quoted = set(_QUOTED.findall(message))
    names = {name for each in quoted & released.files.keys() for name in released.files[each]}
    names |= {name for name in released.files.get(file, ()) if _is_named(name, quoted)}
    found = set()
    for full_name in names & released.messages.keys():
        fields = released.messages[full_name].fields
        named = [field for field in fields if str(field.number) in quoted]
        found |= {f"{full_name.rpartition('.')[2]}.{field.name}" for field in named or fields}
    found |= {name.rpartition(".")[2] for name in names & released.enums.keys()}
    return found


def _is_named(full_name: str, quoted: set[str]) -> bool:
    return any(full_name == text or full_name.endswith(f".{text}") for text in quoted)


def _knows(schema: Schema, element: set[str]) -> bool:
    known = {name.rpartition(".")[2] for name in schema.enums}
    for name, message in schema.messages.items():
        known |= {f"{name.rpartition('.')[2]}.{field.name}" for field in message.fields}
    return not element or bool(element & known)


def _readers(element: set[str], package: str) -> str:
    schemas = {reader.name: schema_of(reader.schema) for reader in READERS if reader.is_linked}
    names = {name for name, schema in schemas.items() if schema.package == package and _knows(schema, element)}
    return spans([(reader.name, reader.first, reader.last) for reader in READERS], names)


def _wheels(element: set[str], package: str) -> Iterator[str]:
    for name, releases in known_schemas().items():
        distribution = name.rpartition("-")[0]
        if distribution == package and _knows(schema_of(name), element):
            yield f"{distribution} {releases[0]} to {releases[-1]}"

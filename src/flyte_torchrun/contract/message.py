"""What every helper has in common: its fields as data, and one way of reading, writing and checking them.

A field that is unset is None (an empty tuple or mapping where it is repeated). In JSON, which is how payloads travel,
unset and zero differ. In a protobuf message most fields have no presence, so that a number or string which is zero
there reads as unset, as every backend takes it; a field that is never None, and an enum, reads as what is there.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

from flyte_torchrun.contract.errors import FieldTypeError, PayloadError, ValidationError, Violation
from flyte_torchrun.contract.frozen import FrozenMapping
from flyte_torchrun.contract.kinds import Kind, Unreadable, wrong_type

__all__ = ["Field", "Message", "Nested", "Schema", "as_text", "joined"]

Helper = TypeVar("Helper", bound="Message")
_EMPTY: tuple[object, ...] = (None, (), FrozenMapping())


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message.

    Attributes:
        name: its name in the schema, which is the helper's attribute.
        kind: what it holds.
        unset: what the helper holds when the field is not in the payload; Field.required: the helper has no such value,
            and a payload without the field has its zero.
        json_name: its key when it is an extension: it then travels in the JSON object beside the message's own fields,
            and is no field of the message. None: it is one, and its key is the schema's name in camelCase.
        has_presence: whether a protobuf message tells unset from zero.
    """

    name: str
    kind: Kind
    unset: Any = None
    json_name: str | None = None
    has_presence: bool = False

    required: ClassVar[object] = object()

    def key(self) -> str:
        """Its name in JSON."""
        head, *rest = self.name.split("_")
        return self.json_name or head + "".join(part.title() for part in rest)


class Schema:
    """The fields of a helper, and the message that it stands for."""

    def __init__(self, file: str, message: str, *fields: Field) -> None:
        """Names the message.

        Args:
            file: the module of the generated message below its package, such as `plugins.kubeflow.pytorch_pb2`; a file
                of our own package is named whole.
            message: the message's name.
            fields: its fields, in the schema's order.
        """
        self.file = file
        self.message = message
        self.fields = tuple((field, field.key()) for field in fields)
        self.by_key = {key: field for field, key in self.fields}
        self.by_key |= {field.name: field for field in fields if not field.json_name}


class Message:
    """The base of the helpers."""

    __slots__ = ()
    schema: ClassVar[Schema]
    unknown_fields: Mapping[str, str]

    def __post_init__(self) -> None:
        for field, _ in self.schema.fields:
            value = getattr(self, field.name)
            if isinstance(value, list):
                object.__setattr__(self, field.name, tuple(value))
            elif isinstance(value, Mapping) and not isinstance(value, FrozenMapping):
                object.__setattr__(self, field.name, FrozenMapping(value))
        if not isinstance(self.unknown_fields, FrozenMapping):
            object.__setattr__(self, "unknown_fields", FrozenMapping(self.unknown_fields))
        if found := self.violations():
            raise ValidationError(found)

    @classmethod
    def unchecked(cls: type[Helper], values: Mapping[str, Any]) -> Helper:
        """A helper of values that were read, which may make no sense; each field has to be there."""
        helper = object.__new__(cls)
        for name, value in values.items():
            object.__setattr__(helper, name, value)
        return helper

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field, _ in self.schema.fields}
        shown = [f"{name}={value!r}" for name, value in values.items() if value is not None and value not in _EMPTY]
        shown += [f"unknown_fields={self.unknown_fields!r}"] if self.unknown_fields else []
        return f"{type(self).__name__}({', '.join(shown)})"

    def violations(self) -> tuple[Violation, ...]:
        """What makes no sense, in the whole tree; empty unless this was read with `allow_violations`.

        Raises:
            FieldTypeError: a value is of the wrong Python type.
        """
        return tuple(self.check(""))

    def check(self, path: str) -> Iterator[Violation]:
        """The same with paths from `path`."""
        for field, _ in self.schema.fields:
            value = getattr(self, field.name)
            if value is not None or field.unset is Field.required:
                yield from field.kind.check(value, joined(path, field.name))
        for key, text in self.unknown_fields.items():
            if not isinstance(key, str) or not isinstance(text, str):
                raise wrong_type(joined(path, "unknown_fields"), (key, text), "a mapping from key to JSON text")
        yield from self.check_together(path)

    def check_together(self, path: str) -> Iterator[Violation]:
        """What the fields violate only together."""
        yield from ()

    @classmethod
    def read(cls: type[Helper], value: Any, path: str, problems: list[Violation]) -> Helper:
        """Reads the JSON object of such a message, unchecked, as the backends do.

        Unknown keys are kept, null is unset, and the camelCase name wins over the schema's own.
        """
        if not isinstance(value, Mapping):
            raise Unreadable("an object")
        schema = cls.schema
        found: dict[str, Any] = {}
        unknown: dict[str, str] = {}
        for key, item in value.items():
            field = schema.by_key.get(key)
            if field is None:
                unknown[key] = as_text(item)
            elif item is not None and (key != field.name or field.key() not in value or field.key() == key):
                where = joined(path, field.name)
                try:
                    found[field.name] = field.kind.read(item, where, problems)
                except Unreadable as error:
                    problems.append(Violation(where, item, str(error)))
        for field, _ in schema.fields:
            if field.name not in found:
                found[field.name] = field.kind.zero if field.unset is Field.required else field.unset
        found["unknown_fields"] = FrozenMapping(unknown)
        return cls.unchecked(found)

    def write(self) -> dict[str, Any]:
        """The message as a JSON object, every value that is set in it, zeros included."""
        written = self.write_unknown()
        if known := written.keys() & self.schema.by_key.keys():
            allowed = "only keys that are no fields of the schema"
            raise ValidationError([Violation("unknown_fields", sorted(known), allowed)])
        for field, key in self.schema.fields:
            value = getattr(self, field.name)
            if value is not None and value not in _EMPTY:
                written[key] = field.kind.write(value)
        return written

    def write_unknown(self) -> dict[str, Any]:
        """The unknown fields as a JSON object."""
        return {key: json.loads(text) for key, text in self.unknown_fields.items()}

    @classmethod
    def from_proto(cls: type[Helper], pb: Any, *, allow_violations: bool = False) -> Helper:
        """The helper of a protobuf message of flyteidl, flyteidl2 or flyteidl_torchrun.

        Args:
            pb: the message; it is neither kept nor changed.
            allow_violations: read what makes no sense as well.

        Raises:
            FieldTypeError: `pb` is no such message.
            ValidationError: its values make no sense.
        """
        name = getattr(getattr(pb, "DESCRIPTOR", None), "name", None)
        if name != cls.schema.message:
            raise FieldTypeError(
                f"{cls.__name__}.from_proto takes a {cls.schema.message} message, not {type(pb).__name__}"
            )
        try:
            helper = cls.read_message(pb)
        except Unreadable as error:
            raise PayloadError([Violation(cls.schema.message, pb, str(error))]) from None
        if not allow_violations and (found := helper.violations()):
            raise ValidationError(found)
        return helper

    @classmethod
    def read_message(cls: type[Helper], pb: Any) -> Helper:
        """The helper of a message, unchecked."""
        found: dict[str, Any] = {"unknown_fields": FrozenMapping()}
        for field, _ in cls.schema.fields:
            value = getattr(pb, field.name, None)
            if value is None or (field.has_presence and not pb.HasField(field.name)):
                found[field.name] = field.unset
                continue
            value = field.kind.from_message(value)
            is_unset = field.unset is not Field.required and not field.has_presence and value in (0, "")
            found[field.name] = field.unset if is_unset else value
        return cls.unchecked(found)

    def to_proto(self, package: str | None = None) -> Any:
        """The protobuf message. Unknown fields of JSON have no place in one, and zero becomes unset.

        Args:
            package: `flyteidl` or `flyteidl2`; None is flyteidl where it is installed, else flyteidl2.
        """
        package = package or _installed_package()
        values = {}
        for field, _ in self.schema.fields:
            value = None if field.json_name else getattr(self, field.name)
            if value is not None and value not in _EMPTY:
                values[field.name] = field.kind.to_message(value, package)
        return self.message_class(package)(**values)

    @classmethod
    def message_class(cls, package: str) -> Any:
        """The generated class of that package."""
        file = cls.schema.file
        module = file if file.startswith("flyteidl_torchrun.") else f"{package}.{file}"
        return getattr(importlib.import_module(module), cls.schema.message)


class Nested:
    """A field that holds another message."""

    zero = None

    def __init__(self, helper: type[Message]) -> None:
        self.read = helper.read
        self._helper = helper

    def write(self, value: Message) -> dict[str, Any]:
        return value.write()

    def check(self, value: Any, path: str) -> Iterator[Violation]:
        if not isinstance(value, self._helper):
            raise wrong_type(path, value, f"a {self._helper.__name__}")
        yield from value.check(path)

    def from_message(self, value: Any) -> Message:
        return self._helper.read_message(value)

    def to_message(self, value: Message, package: str) -> Any:
        return value.to_proto(package)


def as_text(value: Any) -> str:
    """A JSON value as text, the same for equal values."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def joined(path: str, name: str) -> str:
    """The path of a field of what `path` names."""
    return f"{path}.{name}" if path else name


@lru_cache(maxsize=1)
def _installed_package() -> str:
    for package in ("flyteidl", "flyteidl2"):
        if importlib.util.find_spec(package) is not None:
            return package
    raise ModuleNotFoundError("neither flyteidl nor flyteidl2 is installed: pip install flyteidl")

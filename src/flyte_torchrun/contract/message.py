"""What every helper has in common: its fields as data, and one way of reading, writing and checking them.

A field that is unset is None (an empty tuple or mapping where it is repeated). In JSON, which is how payloads travel,
unset and zero differ. In a protobuf message most fields have no presence, so that a number or string which is zero
there reads as unset, as every backend takes it; a field that is never None, and an enum, reads as what is there.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

from flyte_torchrun.contract.errors import FieldTypeError, PayloadError, ValidationError, Violation
from flyte_torchrun.contract.frozen import FrozenMapping
from flyte_torchrun.contract.kinds import Kind, Unreadable, WrongType, read_part
from flyte_torchrun.contract.structs import plain

__all__ = ["Field", "Message", "Nested", "Schema", "as_text"]

Helper = TypeVar("Helper", bound="Message")
_UNKNOWN = (None, "")
_NOTHING: FrozenMapping[str] = FrozenMapping()


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
        self.by_key = {field.name: (field, key) for field, key in self.fields if not field.json_name}
        self.by_key |= {key: (field, key) for field, key in self.fields}


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
        if self.unknown_fields or not isinstance(self.unknown_fields, FrozenMapping):
            object.__setattr__(self, "unknown_fields", self._checked_unknown_fields())
        if found := self.violations():
            raise ValidationError(found)

    def _checked_unknown_fields(self) -> FrozenMapping[str]:
        """The unknown fields, their JSON texts in the one form that equal values have."""
        found, texts = [], {}
        for key, text in self.unknown_fields.items():
            if not isinstance(key, str) or not isinstance(text, str):
                raise FieldTypeError(f"unknown_fields: {key!r}: {text!r}; allowed: a mapping from key to JSON text")
            try:
                texts[key] = as_text(plain(json.loads(text), key))
            except (ValueError, RecursionError):
                found.append(Violation(f"unknown_fields.{key}", text, "a JSON text"))
            if key in self.schema.by_key:
                found.append(Violation(f"unknown_fields.{key}", text, "only keys that are no fields of the schema"))
        if found:
            raise ValidationError(found)
        return FrozenMapping(texts)

    @classmethod
    def unchecked(cls: type[Helper], values: Mapping[str, Any]) -> Helper:
        """A helper of values that were read, which may make no sense; each field has to be there."""
        helper = object.__new__(cls)
        for name, value in values.items():
            object.__setattr__(helper, name, value)
        return helper

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field, _ in self.schema.fields}
        shown = [f"{name}={value!r}" for name, value in values.items() if not _is_unset(value)]
        shown += [f"unknown_fields={self.unknown_fields!r}"] if self.unknown_fields else []
        return f"{type(self).__name__}({', '.join(shown)})"

    def violations(self) -> tuple[Violation, ...]:
        """What makes no sense, in the whole tree; empty unless this was read with `allow_violations`.

        Raises:
            FieldTypeError: a value is of the wrong Python type.
        """
        found: list[Violation] = []
        for field, _ in self.schema.fields:
            value = getattr(self, field.name)
            if value is not None or field.unset is Field.required:
                try:
                    wrong = field.kind.check(value)
                except WrongType as error:
                    raise FieldTypeError(f"{field.name}: {error}") from None
                if wrong:
                    found += [violation.below(field.name) for violation in wrong]
        found += self.check_together()
        return tuple(found)

    def check_together(self) -> Iterable[Violation]:
        """What the fields violate only together."""
        return ()

    @classmethod
    def read(cls: type[Helper], value: Any, problems: list[Violation]) -> Helper:
        """Reads the JSON object of such a message, unchecked, as the backends do.

        Unknown keys are kept, null is unset, and the camelCase name wins over the schema's own.
        """
        if not isinstance(value, Mapping):
            raise Unreadable("an object")
        schema = cls.schema
        found: dict[str, Any] = {}
        unknown: dict[str, str] = {}
        for key, item in value.items():
            field, preferred = schema.by_key.get(key, _UNKNOWN)
            if field is None:
                unknown[key] = as_text(item)
            elif item is not None and (key == preferred or preferred not in value):
                found[field.name] = read_part(field.kind, item, field.name, problems)
        for field, _ in schema.fields:
            if field.name not in found:
                found[field.name] = field.kind.zero if field.unset is Field.required else field.unset
        found["unknown_fields"] = FrozenMapping(unknown) if unknown else _NOTHING
        return cls.unchecked(found)

    def write(self) -> dict[str, Any]:
        """The message as a JSON object, every value that is set in it, zeros included."""
        written = self.write_unknown() if self.unknown_fields else {}
        if known := written.keys() & self.schema.by_key.keys():
            allowed = "only keys that are no fields of the schema"
            raise ValidationError([Violation("unknown_fields", sorted(known), allowed)])
        for field, key in self.schema.fields:
            value = getattr(self, field.name)
            if not _is_unset(value):
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
        found: dict[str, Any] = {"unknown_fields": _NOTHING}
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
            if not _is_unset(value):
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

    def check(self, value: Any) -> Sequence[Violation]:
        if not isinstance(value, self._helper):
            raise WrongType(value, f"a {self._helper.__name__}")
        return value.violations()

    def from_message(self, value: Any) -> Message:
        return self._helper.read_message(value)

    def to_message(self, value: Message, package: str) -> Any:
        return value.to_proto(package)


def _is_unset(value: object) -> bool:
    return value is None or (isinstance(value, tuple | FrozenMapping) and not value)


def as_text(value: Any) -> str:
    """A JSON value as text, the same for equal values."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


@lru_cache(maxsize=1)
def _installed_package() -> str:
    for package in ("flyteidl", "flyteidl2"):
        if importlib.util.find_spec(package) is not None:
            return package
    raise ModuleNotFoundError("neither flyteidl nor flyteidl2 is installed: pip install flyteidl")

"""Whether a pod's specification has the shape of one, as far as the backend reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flyte_torchrun.backend.gotext import json_kind

__all__ = ["without_null", "wrong_kinds"]

_TEXT, _OBJECT, _LIST, _NUMBER = "string", "object", "array", "number"
_CONTAINER: Mapping[str, Any] = {
    "name": _TEXT,
    "image": _TEXT,
    "command": [_TEXT],
    "args": [_TEXT],
    "env": [{"name": _TEXT, "value": _TEXT, "valueFrom": _OBJECT}],
    "ports": [{"name": _TEXT, "containerPort": _NUMBER, "protocol": _TEXT}],
    "resources": {"requests": _OBJECT, "limits": _OBJECT, "claims": [{"name": _TEXT}]},
    "volumeMounts": [{"name": _TEXT, "mountPath": _TEXT}],
    "volumeDevices": [{"devicePath": _TEXT}],
}
_TERM = {"matchExpressions": [_OBJECT]}
_REQUIRED = {"nodeSelectorTerms": [_TERM]}
_POD: Mapping[str, Any] = {
    "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
    "ephemeralContainers": [_CONTAINER],
    "volumes": [{"name": _TEXT}],
    "tolerations": [_OBJECT],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _REQUIRED}},
    "hostAliases": [{"ip": _TEXT}],
    "imagePullSecrets": [{"name": _TEXT}],
    "resourceClaims": [{"name": _TEXT}],
    "schedulingGates": [{"name": _TEXT}],
    "topologySpreadConstraints": [{"topologyKey": _TEXT, "whenUnsatisfiable": _TEXT}],
    "restartPolicy": _TEXT,
    "serviceAccountName": _TEXT,
    "nodeSelector": _OBJECT,
}


def wrong_kinds(spec: Mapping[str, Any]) -> Iterator[str]:
    """What is of another kind than Kubernetes' types, in Go's words; null is unset."""
    yield from _wrong(spec, _POD, "PodSpec")


def _wrong(value: Any, shape: Any, path: str) -> Iterator[str]:
    expected = shape if isinstance(shape, str) else _OBJECT if isinstance(shape, Mapping) else _LIST
    if value is None:
        return
    if json_kind(value) != expected:
        yield f"json: cannot unmarshal {json_kind(value)} into Go struct field {path}"
    elif isinstance(shape, list):
        for item in value:
            yield from _wrong(item, shape[0], path)
    elif isinstance(shape, Mapping):
        for key, part in shape.items():
            yield from _wrong(value.get(key), part, f"{path}.{key}")


def without_null(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The specification without keys that hold null, which is unset; in a list null is an empty value."""
    cleaned: dict[str, Any] = _cleaned(spec, _POD)
    return cleaned


def _cleaned(value: Any, shape: Any) -> Any:
    if isinstance(value, Mapping):
        parts = shape if isinstance(shape, Mapping) else {}
        return {key: _cleaned(item, parts.get(key)) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        part = shape[0] if isinstance(shape, list) else None
        return [_empty(part) if item is None else _cleaned(item, part) for item in value]
    return value


def _empty(shape: Any) -> Any:
    """What null is in a list of such items; a new object each time, since items are changed where they are."""
    if shape is None:
        return None
    return {_TEXT: "", _NUMBER: 0}.get(shape, {}) if isinstance(shape, str) else {}

"""What changes for a task between two platforms, field by field."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flyte_torchrun.backend import Overrides, PlatformDefaults, Rendering, render
from flyte_torchrun.schema import ReleaseError

__all__ = ["Change", "diff"]


@dataclass(frozen=True, slots=True)
class Change:
    """One field that is not the same on both platforms.

    Attributes:
        path: the field: in the PyTorchJob (`spec...`, lists of named things by name, as in
            `containers[pytorch].env[A]`), in a pod (`pods[name].env[PET_NNODES]`), or `refusal`, `warnings`,
            `deleted next`.
        before: its value on the first platform; None: it is not there.
        after: its value on the second; None: it is not there.
    """

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        before, after = (
            "(none)" if value is None else json.dumps(value, ensure_ascii=False) for value in (self.before, self.after)
        )
        return f"{self.path}: {before} -> {after}"


def diff(
    template: Any,
    *,
    flyte: tuple[str, str] | str = "1.16.8",
    operator: tuple[str, str] | str = "1.9.3",
    platform: PlatformDefaults | None = None,
    overrides: Overrides | None = None,
) -> list[Change]:
    """What changes between two platforms.

    Args:
        template: as for `flyte_torchrun.backend.render`.
        flyte: the releases of Flyte before and after; one, where it stays.
        operator: the releases of the training-operator before and after; one, where it stays.
        platform: what the administrator has set.
        overrides: what the execution adds.

    Raises:
        ReleaseError: a release is not known, or there are not two.
        TypeError: the template is none.
    """
    settings = {key: value for key, value in (("platform", platform), ("overrides", overrides)) if value is not None}
    before, after = (
        dict(_facts(render(template, flyte=of_flyte, operator=of_operator, **settings)))  # type: ignore[arg-type]
        for of_flyte, of_operator in zip(_pair(flyte, "flyte"), _pair(operator, "operator"), strict=True)
    )
    names = [*before, *(name for name in after if name not in before)]
    return [Change(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]


def _pair(releases: tuple[str, str] | str, what: str) -> tuple[str, str]:
    if isinstance(releases, str):
        return releases, releases
    if len(releases) != 2:
        raise ReleaseError(f"{what}: {releases!r} is not allowed; allowed: one release, or two: before and after")
    return releases


def _facts(rendering: Rendering) -> Iterator[tuple[str, Any]]:
    """Each leaf of what becomes of the task, by its path."""
    if rendering.refusal is not None:
        yield "refusal", str(rendering.refusal)
    if rendering.warnings:
        yield "warnings", list(rendering.warnings)
    if rendering.deleted_next:
        yield "deleted next", list(rendering.deleted_next)
    if rendering.job is not None:
        yield from _leaves(rendering.job["spec"], "spec")
    elif rendering.pods:
        yield "kind", "Pod"
    given = {variable for _, container in _containers(rendering) for variable in container}
    for pod in rendering.pods:
        yield f"pods[{pod.name}].restartPolicy", pod.spec["restartPolicy"]
        for name, value in pod.environment.items():
            if rendering.job is None or name not in given:
                yield f"pods[{pod.name}].env[{name}]", value
        for container in pod.init_containers:
            yield f"pods[{pod.name}].initContainers[{container['name']}]", container.get("command")


def _containers(rendering: Rendering) -> Iterator[tuple[str, set[str]]]:
    specs = rendering.job["spec"]["pytorchReplicaSpecs"] if rendering.job is not None else {}
    for role, spec in specs.items():
        for container in spec["template"]["spec"]["containers"]:
            yield role, {variable["name"] for variable in container.get("env", ())}


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}")
    elif isinstance(value, list) and all(isinstance(item, dict) and "name" in item for item in value) and value:
        seen: Counter[str] = Counter()
        for item in value:
            name = item["name"]
            seen[name] += 1
            number = f"#{seen[name]}" if seen[name] > 1 else ""
            rest = {key: part for key, part in item.items() if key != "name"}
            only = next(iter(rest.values())) if len(rest) == 1 else rest or ""
            yield from _leaves(only, f"{path}[{name}{number}]")
    else:
        yield path, value

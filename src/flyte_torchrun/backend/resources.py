"""A container's resources: what the task asks for, what is laid over it, and what the platform makes of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flyte_torchrun.backend.quantity import Quantity, parse_quantity

__all__ = ["ResourceRequirements", "from_kubernetes", "from_task"]

_GPU = "nvidia.com/gpu"
_NAMES = {"CPU": "cpu", "MEMORY": "memory", "GPU": _GPU, "EPHEMERAL_STORAGE": "ephemeral-storage", "STORAGE": "storage"}
_ZERO = parse_quantity("0")

Amounts = dict[str, Quantity]


@dataclass(slots=True)
class ResourceRequirements:
    """Requests and limits by Kubernetes' names of the resources."""

    requests: Amounts = field(default_factory=dict)
    limits: Amounts = field(default_factory=dict)

    def merged(self, above: ResourceRequirements) -> ResourceRequirements:
        """The same with another's values laid over it, name by name."""
        return ResourceRequirements({**self.requests, **above.requests}, {**self.limits, **above.limits})

    def gpu_named(self) -> ResourceRequirements:
        """The same with `gpu`, Flyte's short name, as Kubernetes calls it."""
        return ResourceRequirements(_gpu_named(self.requests), _gpu_named(self.limits))

    def without_storage(self) -> ResourceRequirements:
        """The same without `storage`."""
        sides = (
            {name: amount for name, amount in side.items() if name != "storage"}
            for side in (self.requests, self.limits)
        )
        return ResourceRequirements(*sides)

    def filled(self, platform: ResourceRequirements, *, assigns: bool) -> ResourceRequirements:
        """As the platform corrects it: cpu and memory always, storage and gpu where they are asked for.

        Args:
            platform: defaults as requests, and what may not be passed as limits.
            assigns: whether what is unset gets a value: the request the limit or the default, the limit the request.
                Else it is 0.
        """
        result = self.gpu_named()
        asked = result.requests.keys() | result.limits.keys()
        for name in ("cpu", "memory", *(name for name in ("ephemeral-storage", _GPU) if name in asked)):
            request, limit = result.requests.get(name, _ZERO), result.limits.get(name, _ZERO)
            if assigns:
                request = request or limit or platform.requests.get(name, _ZERO)
                limit = limit or request
            most = platform.limits.get(name, _ZERO)
            limit = _at_most(limit, most)
            result.requests[name] = _at_most(_at_most(request, most), limit)
            result.limits[name] = limit
        return result

    def to_kubernetes(self) -> dict[str, dict[str, str]]:
        """As it stands in a container: without what is empty."""
        written = {"limits": self.limits, "requests": self.requests}
        return {
            key: {name: str(amount) for name, amount in amounts.items()} for key, amounts in written.items() if amounts
        }


def _gpu_named(amounts: Amounts) -> Amounts:
    named = {name: amount for name, amount in amounts.items() if name != "gpu"}
    return {**named, _GPU: amounts["gpu"]} if "gpu" in amounts else named


def _at_most(amount: Quantity, most: Quantity) -> Quantity:
    """Not more than a limit; a limit of 0 is none."""
    return most if amount and most and amount.value > most.value else amount


def from_task(resources: Any, *, has_storage: bool) -> ResourceRequirements:
    """Those of a flyteidl `Resources` message, or of a payload's as dicts; 0 is unset.

    Raises:
        QuantityError: an amount cannot be read.
    """
    return ResourceRequirements(
        _amounts(resources.get("requests", ()), has_storage=has_storage),
        _amounts(resources.get("limits", ()), has_storage=has_storage),
    )


def _amounts(entries: Iterable[Mapping[str, Any]], *, has_storage: bool) -> Amounts:
    amounts = {}
    for entry in entries:
        amount = parse_quantity(entry.get("value", ""))
        name = _NAMES.get(entry.get("name", ""), "")
        if amount and name and (has_storage or name != "storage"):
            amounts[name] = amount
    return amounts


def from_kubernetes(resources: Mapping[str, Any]) -> ResourceRequirements:
    """Those of a container in a pod's specification.

    Raises:
        QuantityError: an amount cannot be read.
    """
    parts = {}
    for key in ("requests", "limits"):
        amounts = resources.get(key) or {}
        parts[key] = {name: parse_quantity(_text(amount)) for name, amount in amounts.items()}
    return ResourceRequirements(**parts)


def _text(amount: Any) -> str:
    """JSON has numbers for some quantities; a Struct makes doubles of them."""
    if isinstance(amount, float) and amount.is_integer():
        return str(int(amount))
    return str(amount).strip()

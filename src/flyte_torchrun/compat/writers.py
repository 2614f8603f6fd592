"""Who wrote a payload, as far as its shape tells.

Sources: flytekit's and the Flyte 2 SDK's code at their tags, and what their releases wrote (tests/fixtures).
"""

from __future__ import annotations

from typing import Any

from flyte_torchrun.contract import PayloadError
from flyte_torchrun.contract.structs import to_json

__all__ = ["claimed_writer", "writer_of"]


def writer_of(template: Any) -> tuple[str, str]:
    """The writer in words, and how certain that is: `certain`, `likely` or `unknown`."""
    try:
        custom = to_json(template.custom)
    except PayloadError:  # a number that JSON has not: every SDK writes JSON
        return "no released SDK", "certain"
    version = template.task_type_version
    if "torchrun" in custom:
        return "flyte-torchrun", "certain"
    if set(custom) & {"common", "worker_replicas", "elastic_config"}:
        return "no released SDK", "certain"
    workers, elastic = custom.get("workerReplicas"), custom.get("elasticConfig")
    if version == 0 and isinstance(workers, dict):
        return "flytekit 1.7.0, 1.7.1, 1.6.2b1 or 1.2.14 to 1.2.17 (version 1's layout under version 0)", "certain"
    if version == 0 and "workers" in custom:
        if elastic is not None:
            return "flytekit 1.6.0b1 to 1.6.3, or 1.2.12 to 1.2.13, Elastic", "certain"
        return "flytekit before 1.7, PyTorch", "likely"
    if version != 1 or not isinstance(workers, dict):
        return "unknown", "unknown"
    if _has_key(custom, "common"):
        return "no released SDK", "certain"
    if elastic is not None and template.type == "python-task":
        return "the Flyte 2 SDK, Elastic of one node: flytekit writes no payload for it", "likely"
    if elastic is None:
        return _of_workers(custom, workers)
    if set(workers) - {"replicas"}:
        return "no released SDK", "likely"
    if "runPolicy" in custom:
        return "flytekit 1.13.1 or newer, or the Flyte 2 SDK, Elastic", "likely"
    return "flytekit 1.8 to 1.13, or the Flyte 2 SDK, Elastic", "likely"


def claimed_writer(template: Any) -> str:
    """The SDK that the template's metadata name, such as `flytekit 1.7.0`; empty: none."""
    version = template.metadata.runtime.version
    if not version:
        return ""
    return f"the Flyte 2 SDK {version}" if version.startswith("2.") else f"flytekit {version}"


def _of_workers(custom: dict[str, Any], workers: dict[str, Any]) -> tuple[str, str]:
    if "resources" in workers and isinstance(custom.get("masterReplicas"), dict):
        return "flytekit 1.8 or newer, PyTorch", "likely"
    return "no released SDK: flytekit writes `resources` for every replica of PyTorch", "likely"


def _has_key(value: Any, key: str) -> bool:
    if isinstance(value, dict):
        return key in value or any(_has_key(item, key) for item in value.values())
    return False

"""Writers: what each range of SDK releases puts into a PyTorch task's template, and what it does wrong.

Sources: the SDKs' code at their tags, and packages that their releases made (tests/fixtures). Where two branches were
released side by side, both are in one record.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WRITERS", "Writer"]

_WORKERS = ("DistributedPyTorchTrainingTask.workers",)
_ELASTIC = (
    "DistributedPyTorchTrainingTask.elastic_config",
    *(
        f"ElasticConfig.{name}"
        for name in ("rdzv_backend", "min_replicas", "max_replicas", "nproc_per_node", "max_restarts")
    ),
)
_REPLICAS = (
    "DistributedPyTorchTrainingTask.worker_replicas",
    "DistributedPyTorchTrainingTask.master_replicas",
    "DistributedPyTorchTrainingTask.run_policy",
    *(f"DistributedPyTorchTrainingReplicaSpec.{name}" for name in ("replicas", "image", "resources", "restart_policy")),
    *(
        f"RunPolicy.{name}"
        for name in ("clean_pod_policy", "ttl_seconds_after_finished", "active_deadline_seconds", "backoff_limit")
    ),
    *("Resources.requests", "Resources.limits", "ResourceEntry.name", "ResourceEntry.value"),
    *("RestartPolicy", "CleanPodPolicy", "ResourceName"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """What one range of SDK releases writes.

    Attributes:
        name: the SDK and the releases, in words.
        version: the task_type_version that it writes.
        fields: the fields and enums that it fills, as `Message.field`, without packages.
        bugs: what it does wrong.
    """

    name: str
    version: int
    fields: tuple[str, ...]
    bugs: tuple[str, ...] = ()


_OWN_ZEROS = "a zero is not written, since proto3 JSON leaves it out"

WRITERS = (
    Writer(name="flytekit 0.21 to 1.6.0b0", version=0, fields=_WORKERS),
    Writer(
        name="flytekit 1.6.0b1 to 1.6.3, 1.2.12 to 1.2.13",
        version=0,
        fields=(*_WORKERS, *_ELASTIC),
        bugs=("nproc_per_node='auto', the default, fails for several nodes", _OWN_ZEROS),
    ),
    Writer(
        name="flytekit 1.6.2b1, 1.7.0 to 1.7.1, 1.2.14 to 1.2.17",
        version=0,
        fields=(*_REPLICAS, *_ELASTIC),
        bugs=(
            "the layout of version 1 is written under version 0: readers see 0 workers",
            "backoff_limit gets the value of active_deadline_seconds",
            _OWN_ZEROS,
        ),
    ),
    Writer(
        name="flytekit 1.8.0 to 1.16",
        version=1,
        fields=(*_REPLICAS, *_ELASTIC),
        bugs=("`resources: {}` for every replica of PyTorch()", _OWN_ZEROS),
    ),
    Writer(
        name="Flyte 2 SDK",
        version=1,
        fields=(*_REPLICAS, *_ELASTIC),
        bugs=("only Elastic; no image, resources and restart policy of a replica", _OWN_ZEROS),
    ),
)

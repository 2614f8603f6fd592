"""Backend readers: what each range of Flyte releases makes of a PyTorch task's template, as records.

A reader is Flyte's kubeflow plugin (propeller in Flyte 1, the executor in Flyte 2) in one range of releases. Each
record states how it differs from the one before; `flyte_torchrun.backend` interprets them. Sources: the plugin's code
at every tag, and what it did when run (tests/vectors); where the code of a range could not be run, its neighbours
were.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from flyte_torchrun.schema.releases import newest, selected

__all__ = ["READERS", "InitContainers", "Reader", "ReplicaResources", "ZeroWorkers", "reader_of", "readers_in"]


class ZeroWorkers(enum.Enum):
    """What becomes of 0 workers."""

    KEPT = "the job has a Worker with replicas 0"
    ZERO_REFUSED = "0 is refused, a negative number is kept"
    REFUSED = "0 and less is refused"
    LEFT_OUT = "the job has no Worker, at 0 and less"


class InitContainers(enum.Enum):
    """What becomes of the init containers of a k8s_pod."""

    LEFT = "nothing is added to them"
    IN_RANGE = "they get variables, and are kept within the platform's limits"
    MERGED = "they get variables, and the resources that the primary container is given, too"


class ReplicaResources(enum.Enum):
    """What a replica's `resources` do to those of the task."""

    UNKNOWN = "the schema has none"
    REPLACE_OR_WIPE = "replace them whole; unset wipes them; {} leaves them"
    REPLACE = "replace them whole; unset and {} leave them"
    MERGE = "are laid over them; {} leaves them, but hides with_overrides"
    MERGE_FILLED = "are filled with the platform's cpu and memory, {} too, then laid over them"
    MERGE_FILLED_UNLESS_EMPTY = "are filled with the platform's cpu and memory, then laid over them; {} leaves them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """What one range of Flyte releases does.

    Attributes:
        name: the range, as in R4; a letter where it is not uniform.
        first: the first release of Flyte that runs it.
        last: the last one that is known to.
        plugin: the plugin's own releases.
        schema: the messages that it knows (see `flyte_torchrun.schema.messages`).
        is_linked: whether the backend has the plugin at all; else a task runs as one plain pod.
        is_version_read: whether task_type_version is looked at; else every payload is read as version 0.
        builds_pod_first: whether the pod is built before the payload is read, which decides which error comes first.
        names_role_in_errors: whether an error in a replica's pod says which replica it was.
        zero_workers: what becomes of 0 workers.
        zero_workers_error: the words of the refusal.
        sets_master_replicas: whether the Master's replicas are set to 1; else they are unset.
        takes_pods: whether a task whose target is a k8s_pod is taken.
        renames_primary_of_pods: whether the primary container of such a pod is called pytorch.
        init_containers: what becomes of the init containers of such a pod; run with 1.9 and 1.16.8 only.
        reads_execution_environment: whether the execution's variables are set.
        decorates_containers_twice: whether the variables of the execution are appended twice to a container target.
        adds_execution_metadata: whether default and execution labels and annotations reach the replicas' pods.
        labels_the_job: whether the pod's labels and annotations are on the PyTorchJob, too.
        replica_resources: what a replica's `resources` do.
        resources_error: the words before the error of a quantity that cannot be read.
        names_gpu_first: whether a pod's resource `gpu` is renamed before anything is laid over it; run with 1.9 and
            1.16.8 only.
        has_storage: whether STORAGE becomes the Kubernetes resource `storage`; else it is dropped.
        task_resources_are_overrides: whether the task's own container resources come as with_overrides.
        has_platform_resources: whether the platform's defaults and limits apply; else the plugin's own configuration.
        reads_accelerator: whether an accelerator becomes node affinity and tolerations.
        labels_partition: whether a partition size becomes a label on the pod.
        reads_shared_memory: whether shared memory becomes a volume.
        reads_image_override: whether the container image of with_overrides is used.
        worker_variables: variables of version 1 workers: `_F_WN` is the pod's name, `_F_DES` a strategy.
        pod_name_variable: whether each container gets the pod's name as `_F_PN`.
        has_internal_names: whether FLYTE_INTERNAL_PROJECT, _DOMAIN, _NAME and _VERSION are set.
        enables_service_links: None: as Kubernetes does.
    """

    name: str
    first: str
    last: str
    plugin: str
    schema: str
    is_linked: bool = True
    is_version_read: bool = False
    builds_pod_first: bool = False
    names_role_in_errors: bool = False
    zero_workers: ZeroWorkers = ZeroWorkers.KEPT
    zero_workers_error: str = ""
    sets_master_replicas: bool = False
    takes_pods: bool = False
    renames_primary_of_pods: bool = False
    init_containers: InitContainers = InitContainers.LEFT
    reads_execution_environment: bool = True
    decorates_containers_twice: bool = False
    adds_execution_metadata: bool = False
    labels_the_job: bool = False
    replica_resources: ReplicaResources = ReplicaResources.UNKNOWN
    resources_error: str = ""
    names_gpu_first: bool = False
    has_storage: bool = True
    task_resources_are_overrides: bool = False
    has_platform_resources: bool = True
    reads_accelerator: bool = False
    labels_partition: bool = False
    reads_shared_memory: bool = False
    reads_image_override: bool = False
    worker_variables: tuple[str, ...] = ()
    pod_name_variable: bool = False
    has_internal_names: bool = True
    enables_service_links: bool | None = None


_R0 = Reader(
    name="R0",
    first="1.0.0",
    last="1.3.0",
    plugin="flyteplugins up to v1.0.31",
    schema="flyteidl-0.19.18",
    reads_execution_environment=False,
    task_resources_are_overrides=True,
)
_R1 = replace(
    _R0,
    name="R1",
    first="1.4.0",
    last="1.5.1",
    plugin="flyteplugins v1.0.32 to v1.0.53",
    zero_workers=ZeroWorkers.ZERO_REFUSED,
    zero_workers_error="number of worker should be more then 0",
    takes_pods=True,
    reads_execution_environment=True,
    decorates_containers_twice=True,
)
_R2 = replace(
    _R1,
    name="R2",
    first="1.6.0",
    last="1.6.2",
    plugin="flyteplugins v1.0.54 to v1.0.57",
    schema="flyteidl-1.3.19",
    renames_primary_of_pods=True,
    task_resources_are_overrides=False,
)
_R3A = replace(
    _R2,
    name="R3a",
    first="1.7.0",
    last="1.7.1",
    plugin="flyteplugins v1.0.58 to v1.1.0",
    schema="flyteidl-1.2.10",
    is_version_read=True,
    builds_pod_first=True,
    replica_resources=ReplicaResources.REPLACE_OR_WIPE,
    resources_error=(
        "invalid TaskSpecificat ion on Resources"
        " [&ResourceRequirements{Limits:ResourceList{},Requests:ResourceList{},}]"
    ),
)
_R3B = replace(
    _R3A,
    name="R3b",
    first="1.8.0",
    last="1.8.1",
    plugin="flyteplugins v1.1.1 to v1.1.15",
    decorates_containers_twice=False,
)
_R4A = replace(
    _R3B,
    name="R4a",
    first="1.9.0",
    last="1.9.37",
    plugin="flyteplugins v1.1.16 to v1.1.33, and Flyte's own from 1.9.2",
    adds_execution_metadata=True,
    replica_resources=ReplicaResources.REPLACE,
    resources_error=(
        "invalid TaskSpecification on Resources [&ResourceRequirements{Limits:ResourceList{},Requests:ResourceList{},}]"
    ),
)
_R4B = replace(
    _R4A,
    name="R4b",
    first="1.10.0",
    last="1.10.6-b0",
    plugin="Flyte's own",
    reads_accelerator=True,
    resources_error=(
        "invalid TaskSpecification on Resources"
        " [&ResourceRequirements{Limits:ResourceList{},Requests:ResourceList{},Claims:[]ResourceClaim{},}]"
    ),
)
_R5A = replace(
    _R4B,
    name="R5a",
    first="1.10.6",
    last="1.10.7",
    builds_pod_first=False,
    names_role_in_errors=True,
    zero_workers=ZeroWorkers.REFUSED,
    zero_workers_error="number of workers must be greater than 0",
    sets_master_replicas=True,
    replica_resources=ReplicaResources.MERGE,
    has_storage=False,
)
_R5B = replace(_R5A, name="R5b", first="1.11.0", last="1.12.1-rc0", reads_image_override=True)
_R6A = replace(
    _R5B,
    name="R6a",
    first="1.13.0-rc0",
    last="1.13.3",
    schema="flyteidl-1.13.0",
    init_containers=InitContainers.IN_RANGE,
)
_R6B = replace(_R6A, name="R6b", first="1.14.0", last="1.14.0", worker_variables=("_F_WN", "_F_DES"))
_R6C = replace(_R6B, name="R6c", first="1.14.1", last="1.14.1", worker_variables=("_F_WN",))
_R7 = replace(
    _R6C, name="R7", first="1.15.0", last="1.15.0", zero_workers=ZeroWorkers.LEFT_OUT, reads_shared_memory=True
)
_R8 = replace(_R7, name="R8", first="1.15.1", last="1.16.0-b2", replica_resources=ReplicaResources.MERGE_FILLED)
_R9A = replace(
    _R8,
    name="R9a",
    first="1.16.0-b3",
    last="1.16.3",
    replica_resources=ReplicaResources.MERGE_FILLED_UNLESS_EMPTY,
)
_R9B = replace(
    _R9A,
    name="R9b",
    first="1.16.4",
    last="1.16.8",
    has_internal_names=False,
    names_gpu_first=True,
    init_containers=InitContainers.MERGED,
)
_R11A = replace(
    _R9A,
    name="R11a",
    first="2.0.24",
    last="2.0.40",
    names_gpu_first=True,
    init_containers=InitContainers.MERGED,
    plugin="Flyte 2's executor",
    schema="flyteidl2-2.0.0a16",
    zero_workers=ZeroWorkers.REFUSED,
    replica_resources=ReplicaResources.MERGE_FILLED,
    task_resources_are_overrides=True,
    has_platform_resources=False,
    labels_partition=True,
    worker_variables=(),
    pod_name_variable=True,
    enables_service_links=False,
)
_R10 = replace(
    _R11A,
    name="R10",
    first="2.0.7",
    last="2.0.23",
    plugin="none: Flyte 2's executor before it had the plugin",
    is_linked=False,
)
_R11B = replace(_R11A, name="R11b", first="2.0.41", last="2.0.43", labels_the_job=True)

READERS = (
    _R0,
    _R1,
    _R2,
    _R3A,
    _R3B,
    _R4A,
    _R4B,
    _R5A,
    _R5B,
    _R6A,
    _R6B,
    _R6C,
    _R7,
    _R8,
    _R9A,
    _R9B,
    _R10,
    _R11A,
    _R11B,
)


def readers_in(text: str) -> tuple[Reader, ...]:
    """The readers of all releases of Flyte in a range, oldest first.

    Args:
        text: a release (`1.16.8`), a series (`1.10`) or a range (`>=1.6,<1.9`).

    Raises:
        ReleaseError: it cannot be read, or no known release is in it.
    """
    return selected(READERS, text, "flyte")


def reader_of(text: str) -> tuple[Reader, str]:
    """The reader of a release of Flyte, and that release; of a series or range, those of its newest release.

    Raises:
        ReleaseError: it cannot be read, or no known release is in it.
    """
    return newest(READERS, text, "flyte")

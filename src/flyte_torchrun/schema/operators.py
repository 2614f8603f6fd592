"""Training-operator releases: what each makes of a PyTorchJob, as records.

Each record states how it differs from the one before; `flyte_torchrun.backend` interprets them. Sources: the
operator's code and its CustomResourceDefinitions, and what 1.5.0, 1.7.0, 1.8.1 and 1.9.3 did when run
(tests/vectors); 1.6 was read only.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from flyte_torchrun.schema.releases import newest, selected

__all__ = ["OPERATORS", "Operator", "Validation", "operator_of", "operators_in"]


class Validation(enum.Enum):
    """Where an operator validates a job, and what follows from an error."""

    LOGGED = "the controller logs the error and goes on"
    RETRIED = "the controller returns the error, and tries again for ever: no pods"
    WEBHOOK = "the webhook refuses the job"


_WAITS_100_TIMES = (
    "err=1;for i in $(seq 100); do if nslookup {master}; then err=0 && break; fi;"
    "echo waiting for master; sleep 2; done; exit $err"
)
_ONE_PORT = ("containerPort", "protocol")
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_KEYS_1_5 = (
    *((f"{kind}[].ports", _ONE_PORT) for kind in _CONTAINERS),
    ("topologySpreadConstraints", ("topologyKey", "whenUnsatisfiable")),
)
_KEYS_1_8 = (
    *_KEYS_1_5,
    *((f"{kind}[].resources.claims", ("name",)) for kind in _CONTAINERS),
    ("resourceClaims", ("name",)),
    ("schedulingGates", ("name",)),
)
_KEYS_1_7 = (*_KEYS_1_8, ("volumes[].ephemeral.volumeClaimTemplate.spec.resources.claims", ("name",)))
_KEYS_1_9 = (
    *_KEYS_1_8,
    *((kind, ("name",)) for kind in _CONTAINERS),
    *((f"{kind}[].env", ("name",)) for kind in _CONTAINERS),
    *((f"{kind}[].volumeDevices", ("devicePath",)) for kind in _CONTAINERS),
    *((f"{kind}[].volumeMounts", ("mountPath",)) for kind in _CONTAINERS),
    ("hostAliases", ("ip",)),
    ("imagePullSecrets", ("name",)),
    ("volumes", ("name",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """What one range of training-operator releases does.

    Attributes:
        first: the first release.
        last: the last one that is known.
        validation: where it validates, and what follows.
        checks_name: whether the job's name must be a DNS label that begins with a letter.
        requires_master_replicas: whether the Master's replicas must be set; else unset is taken as 1.
        requires_worker_if_elastic: whether an elastic job must have a Worker of at least 1.
        has_field_paths: whether its errors name the field by its path.
        has_nproc_per_node: whether a job has `nprocPerNode`, by default "auto", and PET_ variables without elastic
            policy.
        warns_of_nproc_per_node: whether `elasticPolicy.nProcPerNode`, which Flyte sets, gives a warning.
        labels_first_worker: whether worker-0 has the job role `master` where there is no Master.
        has_old_labels: whether the pods carry the labels without a prefix, too.
        python_unbuffered: the value of PYTHONUNBUFFERED.
        waits_for_master: the command of a worker's init container; `{master}` is the Master's host name.
        list_keys: lists of the pod template whose items are told apart by these keys, which the API server refuses to
            see twice.
    """

    first: str
    last: str
    validation: Validation
    checks_name: bool = False
    requires_master_replicas: bool = False
    requires_worker_if_elastic: bool = False
    has_field_paths: bool = False
    has_nproc_per_node: bool = False
    warns_of_nproc_per_node: bool = False
    labels_first_worker: bool = False
    has_old_labels: bool = False
    python_unbuffered: str = "1"
    waits_for_master: str = _WAITS_100_TIMES
    list_keys: tuple[tuple[str, tuple[str, ...]], ...] = _KEYS_1_8


_O15 = Operator(
    first="1.5.0",
    last="1.5.0",
    validation=Validation.LOGGED,
    has_old_labels=True,
    python_unbuffered="0",
    waits_for_master="until nslookup {master}; do echo waiting for master; sleep 2; done;",
    list_keys=_KEYS_1_5,
)
_O16 = replace(_O15, first="1.6.0", last="1.6.0", validation=Validation.RETRIED, checks_name=True)
_O17 = replace(
    _O16,
    first="1.7.0",
    last="1.7.0",
    has_nproc_per_node=True,
    has_old_labels=False,
    python_unbuffered="1",
    waits_for_master=_WAITS_100_TIMES,
    list_keys=_KEYS_1_7,
)
_O18 = replace(
    _O17,
    first="1.8.0",
    last="1.8.1",
    validation=Validation.WEBHOOK,
    requires_master_replicas=True,
    has_field_paths=True,
    warns_of_nproc_per_node=True,
    labels_first_worker=True,
    list_keys=_KEYS_1_8,
)
_O19 = replace(_O18, first="1.9.0", last="1.9.3", requires_worker_if_elastic=True, list_keys=_KEYS_1_9)

OPERATORS = (_O15, _O16, _O17, _O18, _O19)


def operators_in(text: str) -> tuple[Operator, ...]:
    """The operators of all releases of the training-operator in a range, oldest first.

    Args:
        text: a release (`1.9.3`), a series (`1.8`) or a range (`>=1.7`).

    Raises:
        ReleaseError: it cannot be read, or no known release is in it.
    """
    return selected(OPERATORS, text, "operator")


def operator_of(text: str) -> tuple[Operator, str]:
    """The operator of a release, and that release; of a series or range, those of its newest release.

    Raises:
        ReleaseError: it cannot be read, or no known release is in it.
    """
    return newest(OPERATORS, text, "operator")

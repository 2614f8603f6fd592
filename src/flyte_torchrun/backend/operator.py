"""What the API server and a training-operator make of a PyTorchJob: refusals, defaults, and the pods."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flyte_torchrun.backend.reader import CONTAINER_NAME
from flyte_torchrun.schema import Operator, Validation

__all__ = [
    "Pod",
    "deleted_next",
    "make_pods",
    "refusals_of_definition",
    "refusals_of_operator",
    "warnings_of",
    "with_defaults",
]

_PORT_NAME, _PORT = "pytorchjob-port", 23456
_PATH = "spec.pytorchReplicaSpecs"
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LONGEST_NAME = 63
_NAME_WRONG = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character,"
    " and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is"
    " '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_TOO_LONG = "must be no more than 63 characters"
_DEFAULTS = {"protocol": "TCP"}
_INIT_RESOURCES = {"limits": {"cpu": "100m", "memory": "20Mi"}, "requests": {"cpu": "50m", "memory": "10Mi"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of a job.

    Attributes:
        name: the pod's name, which is its host name too.
        role: `Master` or `Worker`; empty for the one pod of a task that is no PyTorchJob.
        index: among those of its role, from 0.
        node_rank: what the operator says, for a job with a Master; None: the rendezvous gives it.
        labels: of the pod.
        annotations: of the pod.
        spec: its specification as Kubernetes' JSON.
    """

    name: str
    role: str
    index: int
    node_rank: int | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    spec: Mapping[str, Any]

    @property
    def containers(self) -> list[dict[str, Any]]:
        """The containers as Kubernetes' JSON, with image, args, resources and environment in order."""
        return list(self.spec["containers"])

    @property
    def init_containers(self) -> list[dict[str, Any]]:
        """The init containers as Kubernetes' JSON."""
        return list(self.spec.get("initContainers", ()))

    @property
    def environment(self) -> dict[str, str]:
        """What the task's container has in its environment: of a variable that comes twice the last value.

        The pod's own name stands where a variable is to hold it.
        """
        container = next((each for each in self.containers if each["name"] == CONTAINER_NAME), self.containers[0])
        return {
            variable["name"]: self.name if "valueFrom" in variable else variable.get("value", "")
            for variable in container.get("env", ())
        }


def refusals_of_definition(job: Mapping[str, Any], operator: Operator) -> list[str]:
    """Why the API server refuses the job by the operator's CustomResourceDefinition: keys that come twice in a list."""
    found: list[str] = []
    tree = _tree(operator.list_keys)
    for role, spec in job["spec"]["pytorchReplicaSpecs"].items():
        found += _twice(spec["template"]["spec"], tree, f"{_PATH}[{role}].template.spec")
    return sorted(found)


@dataclass(slots=True)
class _Branch:
    """What is looked at below one field: its own items' keys, where it is such a list, and the fields in it."""

    keys: tuple[str, ...] = ()
    below: dict[str, _Branch] = field(default_factory=dict)


@functools.cache
def _tree(list_keys: tuple[tuple[str, tuple[str, ...]], ...]) -> _Branch:
    """Paths such as `containers[].env`, as a tree of fields."""
    root = _Branch()
    for path, keys in list_keys:
        branch = root
        for name in path.replace("[]", "").split("."):
            branch = branch.below.setdefault(name, _Branch())
        branch.keys = keys
    return root


def _twice(value: Any, branch: _Branch, where: str) -> Iterator[str]:
    """The duplicates in the lists of an object, and below it."""
    if not isinstance(value, Mapping):
        return
    for name, below in branch.below.items():
        found = value.get(name)
        if isinstance(found, list):
            if below.keys and len(found) > 1:
                yield from _duplicates(found, below.keys, f"{where}.{name}")
            for index, item in enumerate(found if below.below else ()):
                yield from _twice(item, below, f"{where}.{name}[{index}]")
        elif found is not None:
            yield from _twice(found, below, f"{where}.{name}")


def _duplicates(items: list[Any], keys: tuple[str, ...], where: str) -> Iterator[str]:
    seen: dict[str, int] = {}
    for index, item in enumerate(items):
        values = {key: item.get(key, _DEFAULTS.get(key)) for key in keys}
        key = repr(values)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] == 2:  # told once, however often
            shown = ", ".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in sorted(values.items()))
            yield f"{where}[{index}]: Duplicate value: map[string]interface {{}}{{{shown}}}"


def warnings_of(job: Mapping[str, Any], operator: Operator) -> list[str]:
    """What the webhook warns of, and accepts."""
    if operator.warns_of_nproc_per_node and "nProcPerNode" in job["spec"].get("elasticPolicy", {}):
        return ["spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead"]
    return []


def refusals_of_operator(job: Mapping[str, Any], operator: Operator) -> list[str]:
    """The errors of the operator's validation.

    A release that stops at the first error of a replica type gives one for each type that has any.
    """
    found = []
    name = job["metadata"]["name"]
    if operator.checks_name and (wrong := list(_name_errors(name))):
        if not operator.has_field_paths:
            return [f"PyTorchJob name is invalid: [{' '.join(wrong)}]"]
        found.append(f"metadata.name: Invalid value: {json.dumps(name)}: should match: {','.join(wrong)}")
    specs = job["spec"]["pytorchReplicaSpecs"]
    if operator.requires_worker_if_elastic and "elasticPolicy" in job["spec"] and "Worker" not in specs:
        found.append(f"{_PATH}[Worker]: Required value: must be configured if elastic policy is used")
    for role, spec in specs.items():
        errors = _spec_errors(role, spec, operator)
        found += list(errors) if operator.has_field_paths else list(errors)[:1]
    return sorted(found)


def _name_errors(name: str) -> Iterator[str]:
    if len(name) > _LONGEST_NAME:
        yield _TOO_LONG
    if not _NAME.fullmatch(name):
        yield _NAME_WRONG


def _spec_errors(role: str, spec: Mapping[str, Any], operator: Operator) -> Iterator[str]:
    path, old = f"{_PATH}[{role}]", "PyTorchJobSpec is not valid:"
    containers = spec["template"]["spec"].get("containers") or []
    with_path = operator.has_field_paths
    where = f"{path}.template.spec.containers"
    if not containers:
        yield (
            f"{where}: Required value: must be specified"
            if with_path
            else (f"{old} containers definition expected in {role}")
        )
    for index, container in enumerate(containers):
        if not container.get("image"):
            yield (
                f"{where}[{index}].image: Required value: must be required"
                if with_path
                else (f"{old} Image is undefined in the container of {role}")
            )
    if not _has_own_container(spec):
        yield (
            f"{where}: Required value: must have at least one container with name {CONTAINER_NAME}"
            if with_path
            else (f"{old} There is no container named {CONTAINER_NAME} in {role}")
        )
    replicas = spec.get("replicas")
    if role == "Master":
        is_unset = replicas is None and operator.requires_master_replicas
        if is_unset or (replicas is not None and replicas != 1):
            yield (
                f"{path}.replicas: Forbidden: must be 1"
                if with_path
                else (f"{old} There must be only 1 master replica")
            )
    elif operator.requires_worker_if_elastic and replicas is not None and replicas < 1:
        yield f"{path}.replicas: Forbidden: must be at least 1"


def goes_on(operator: Operator) -> bool:
    """Whether the operator makes pods of a job that its own validation finds wrong."""
    return operator.validation is Validation.LOGGED


def with_defaults(job: Mapping[str, Any], operator: Operator) -> dict[str, Any]:
    """The job as the operator completes it."""
    completed: dict[str, Any] = copy.deepcopy(dict(job))
    spec = completed["spec"]
    spec["runPolicy"].setdefault("cleanPodPolicy", "None")
    for replica in spec["pytorchReplicaSpecs"].values():
        replica.setdefault("replicas", 1)
        replica.setdefault("restartPolicy", "OnFailure")
        containers = replica["template"]["spec"]["containers"]
        named = [each for each in containers if each["name"] == CONTAINER_NAME]
        container = named[0] if named else containers[0]
        ports = container.setdefault("ports", [])
        if all(port.get("name") != _PORT_NAME for port in ports):
            ports.append({"name": _PORT_NAME, "containerPort": _PORT})
    elastic = spec.get("elasticPolicy")
    if operator.has_nproc_per_node and (elastic is None or "nProcPerNode" not in elastic):
        spec.setdefault("nprocPerNode", "auto")
    return completed


def make_pods(job: Mapping[str, Any], operator: Operator, indices: range | None = None) -> Iterator[Pod]:
    """The pods that the operator makes of a job with its defaults, the Master first; lazily, since there may be many.

    Args:
        job: with the operator's defaults.
        operator: whose behaviour it is.
        indices: which pods of each role; None: all.

    Raises:
        ValueError: the operator fails: it finds no port for the rendezvous.
    """
    specs = job["spec"]["pytorchReplicaSpecs"]
    for role in sorted(specs):
        # It makes pod 0 even of 0 replicas, and deletes it at the next reconcile.
        number = max(specs[role]["replicas"], 1)
        for index in range(number) if indices is None else indices:
            if index < number:
                yield _pod(job, operator, role, index)


def lacks_port(job: Mapping[str, Any]) -> bool:
    """Whether `make_pods` fails for want of the rendezvous' port, which only the operator's own container gets."""
    specs = job["spec"]["pytorchReplicaSpecs"]
    needed = ["Master"] * ("Master" in specs) + ["Worker"] * ("elasticPolicy" in job["spec"])
    # A job without replicas has no pod that could want it.
    return bool(specs) and not all(role in specs and _has_own_container(specs[role]) for role in needed)


def _has_own_container(spec: Mapping[str, Any]) -> bool:
    return any(each["name"] == CONTAINER_NAME for each in spec["template"]["spec"].get("containers") or ())


def deleted_next(job: Mapping[str, Any]) -> list[str]:
    """The pods that the operator deletes at the next reconcile, because there should be none: over and over."""
    return [
        f"{job['metadata']['name']}-{role.lower()}-0"
        for role, spec in sorted(job["spec"]["pytorchReplicaSpecs"].items())
        if spec.get("replicas", 1) < 1
    ]


def _pod(job: Mapping[str, Any], operator: Operator, role: str, index: int) -> Pod:
    spec = job["spec"]["pytorchReplicaSpecs"][role]
    template = copy.deepcopy(spec["template"])
    name = job["metadata"]["name"]
    has_master = "Master" in job["spec"]["pytorchReplicaSpecs"]
    rank = (index + (role == "Worker")) if has_master else None
    variables = _variables(job, operator, rank)
    for container in template["spec"]["containers"]:
        container["env"] = [*container.get("env", ()), *map(dict, variables)]
    template["spec"]["restartPolicy"] = spec["restartPolicy"]
    if has_master and role == "Worker":
        command = operator.waits_for_master.format(master=f"{name}-master-0")
        template["spec"].setdefault("initContainers", []).append(
            {
                "name": "init-pytorch",
                "image": "alpine:3.10",
                "command": ["sh", "-c", command],
                "resources": copy.deepcopy(_INIT_RESOURCES),
                "imagePullPolicy": "IfNotPresent",
            }
        )
    labels = {**template["metadata"].get("labels", {}), **_labels(name, operator, role, index, has_master=has_master)}
    return Pod(
        name=f"{name}-{role.lower()}-{index}",
        role=role,
        index=index,
        node_rank=rank,
        labels=labels,
        annotations=template["metadata"].get("annotations", {}),
        spec=template["spec"],
    )


def _labels(name: str, operator: Operator, role: str, index: int, *, has_master: bool) -> dict[str, str]:
    labels = {"job-name": name, "operator-name": "pytorchjob-controller", "replica-index": str(index)}
    labels["replica-type"] = role.lower()
    if role == "Master" or (operator.labels_first_worker and not has_master and index == 0):
        labels["job-role"] = "master"
    prefixed = {f"training.kubeflow.org/{key}": value for key, value in labels.items()}
    if operator.has_old_labels:
        prefixed.update({key: value for key, value in labels.items() if key != "operator-name"})
        prefixed["group-name"] = "kubeflow.org"
    return prefixed


def _variables(job: Mapping[str, Any], operator: Operator, rank: int | None) -> list[dict[str, str]]:
    """What the operator appends to the environment of each container."""
    spec, elastic = job["spec"], job["spec"].get("elasticPolicy")
    total = _int32(sum(replica["replicas"] for replica in spec["pytorchReplicaSpecs"].values()))
    variables = {"PYTHONUNBUFFERED": operator.python_unbuffered}
    nproc = spec.get("nprocPerNode")
    if rank is not None:
        port, host = str(_port(spec, "Master")), f"{job['metadata']['name']}-master-0"
        if operator.has_nproc_per_node:
            variables |= {"MASTER_PORT": port, "PET_MASTER_PORT": port, "MASTER_ADDR": host, "PET_MASTER_ADDR": host}
        else:
            variables |= {"MASTER_PORT": port, "MASTER_ADDR": host}
        variables |= {"WORLD_SIZE": str(total), "RANK": str(rank)}
        if operator.has_nproc_per_node:
            nodes = {"PET_NODE_RANK": str(rank), "PET_NPROC_PER_NODE": str(nproc)}
            # 1.7 has them the other way round.
            variables |= nodes if operator.has_field_paths else dict(reversed(nodes.items()))
    elif nproc is not None:
        variables["PET_NPROC_PER_NODE"] = nproc
    if elastic is not None:
        endpoint = f"{job['metadata']['name']}-worker-0:{_port(spec, 'Worker')}"
        variables |= {
            "PET_RDZV_ENDPOINT": endpoint,
            "PET_RDZV_BACKEND": elastic["rdzvBackend"],
            "PET_NNODES": f"{elastic['minReplicas']}:{elastic['maxReplicas']}",
            "PET_MAX_RESTARTS": str(elastic["maxRestarts"]),
            "PET_NPROC_PER_NODE": str(elastic["nProcPerNode"]),
        }
    elif operator.has_nproc_per_node:
        variables["PET_NNODES"] = str(total)
    return [{"name": name, "value": value} if value else {"name": name} for name, value in variables.items()]


def _int32(number: int) -> int:
    """The operator counts in 32 bits."""
    return (number + 2**31) % 2**32 - 2**31


def _port(spec: Mapping[str, Any], role: str) -> int:
    containers = spec["pytorchReplicaSpecs"].get(role, {}).get("template", {}).get("spec", {}).get("containers", ())
    for container in containers:
        for port in container.get("ports", ()) if container["name"] == CONTAINER_NAME else ():
            if port.get("name") == _PORT_NAME:
                return int(port["containerPort"])
    raise ValueError("port not found")

"""What every release reads alike, and yet not as it was meant."""

from __future__ import annotations

from collections.abc import Iterator

from flyte_torchrun.backend import Overrides
from flyte_torchrun.compat.intent import Intent
from flyte_torchrun.contract import CommonReplicaSpec, DistributedPyTorchTrainingTask, ReplicaSpec, RestartPolicy

__all__ = ["advice_for"]

_LONGEST_NAME = 63
Advice = tuple[str, str, str]


def advice_for(intent: Intent, overrides: Overrides) -> Iterator[Advice]:
    """Path, reason and mend of each."""
    if intent.task is None or not intent.is_pytorch:
        return
    yield from _of_elastic(intent.task)
    yield from _of_policies(intent.task)
    yield from _of_resources(intent.task)
    yield from _of_names(intent, overrides)


def _replicas(task: DistributedPyTorchTrainingTask) -> Iterator[tuple[str, ReplicaSpec | CommonReplicaSpec]]:
    for path, spec in (("workerReplicas", task.worker_replicas), ("masterReplicas", task.master_replicas)):
        if spec is not None:
            yield (f"{path}.common", spec.common) if spec.common is not None else (path, spec)


def _of_elastic(task: DistributedPyTorchTrainingTask) -> Iterator[Advice]:
    elastic = task.elastic_config
    if elastic is None:
        return
    least, most = elastic.min_replicas, elastic.max_replicas
    for name, value in (("minReplicas", least), ("maxReplicas", most), ("nprocPerNode", elastic.nproc_per_node)):
        if value is None or value == 0:
            reason = f"{'unset' if value is None else '0'} is not a default: torchrun gets the number 0"
            yield f"elasticConfig.{name}", reason, "write at least 1"
    if least is not None and most is not None and least > most:
        yield "elasticConfig.minReplicas", f"{least} is more than maxReplicas {most}: no group can form", "swap them"
    workers = dict(_replicas(task)).get("workerReplicas") or dict(_replicas(task)).get("workerReplicas.common")
    number = workers.replicas if workers is not None else None
    if number == 0:
        yield "workerReplicas.replicas", "an elastic job without workers has no pod at all", "ask for at least 1 worker"
    elif number is not None and most and number > most:
        yield "workerReplicas.replicas", f"{number} pods start, at most {most} can join the group", "write maxReplicas"
    elif number is not None and least and number < least:
        yield "workerReplicas.replicas", f"{number} pods start, the group waits for {least}", "write maxReplicas"


def _of_policies(task: DistributedPyTorchTrainingTask) -> Iterator[Advice]:
    limit = task.run_policy.backoff_limit if task.run_policy is not None else None
    if not limit:
        return
    for path, spec in _replicas(task):
        if spec.restart_policy in (None, RestartPolicy.NEVER):
            reason = f"pods are never restarted, so that backoffLimit {limit} counts nothing"
            yield f"{path}.restartPolicy", reason, "write RESTART_POLICY_ON_FAILURE"


def _of_resources(task: DistributedPyTorchTrainingTask) -> Iterator[Advice]:
    for path, spec in _replicas(task):
        if spec.resources is None:
            continue
        names = {entry.name.name for entry in (*spec.resources.requests, *spec.resources.limits)}
        if not names:
            reason = "{} is not unset: 1.15.1 to 1.16.0-b2 and Flyte 2 put the platform's cpu and memory in its place"
            yield f"{path}.resources", reason, "leave it out"
        elif not names & {"CPU", "MEMORY"}:
            reason = "it names neither cpu nor memory: since 1.15.1 both become the platform's defaults"
            yield f"{path}.resources", reason, "name cpu and memory, too"


def _of_names(intent: Intent, overrides: Overrides) -> Iterator[Advice]:
    both = sorted({pair.key for pair in intent.template.container.env} & set(overrides.environment))
    for name in both:
        reason = f"the task and the execution both set {name}: a pod has it twice, which operator 1.9 refuses"
        yield f"container.env[{name}]", reason, "set it in one place only"
    workers = max((spec.replicas or 0 for _, spec in _replicas(intent.task)), default=0) if intent.task else 0
    longest = len(f"{overrides.name}-worker-{max(workers - 1, 0)}")
    if longest > _LONGEST_NAME:
        reason = f"a pod's name would have {longest} characters, and a host name may have {_LONGEST_NAME}"
        yield "task", reason, f"shorten the job's name by {longest - _LONGEST_NAME}"

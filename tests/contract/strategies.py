"""Any valid value of each helper, for property tests."""

import json
from datetime import timedelta

from hypothesis import strategies as st

from flyte_torchrun.contract import (
    CleanPodPolicy,
    CommonReplicaSpec,
    DistributedPyTorchTrainingTask,
    ElasticConfig,
    LaunchOptions,
    ReplicaSpec,
    ResourceEntry,
    ResourceName,
    Resources,
    RestartPolicy,
    RunPolicy,
    StartMethod,
    SymbolicNprocPerNode,
)

INT32_MAX = 2**31 - 1

optional = lambda strategy: st.none() | strategy  # noqa: E731
counts = st.integers(1, INT32_MAX) | st.sampled_from([1, 2, INT32_MAX])
numbers = st.integers(0, INT32_MAX) | st.sampled_from([0, 1, INT32_MAX])
texts = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=20)
quantities = st.from_regex(r"\A([0-9]{1,5}(\.[0-9]{1,3})?)(m|Ki|Mi|Gi|k|M|G|e3|E)?\Z")
sizes = quantities.filter(lambda text: any(digit in text.split("e")[0] for digit in "123456789"))

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(blacklist_categories=["Cs"]), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=6,
)
unknown_fields = st.dictionaries(
    st.text("abcxyz_Ω", min_size=1, max_size=6).map(lambda key: f"x{key}"),
    json_values.map(lambda value: json.dumps(value, ensure_ascii=False, sort_keys=True)),
    max_size=2,
)
entries = st.builds(ResourceEntry, name=st.sampled_from(ResourceName), value=quantities, unknown_fields=unknown_fields)
resources = st.builds(
    Resources,
    requests=st.lists(entries, max_size=3).map(tuple),
    limits=st.lists(entries, max_size=3).map(tuple),
    unknown_fields=unknown_fields,
)
replica_values = {
    "image": optional(texts),
    "resources": optional(resources),
    "restart_policy": optional(st.sampled_from(RestartPolicy)),
}


@st.composite
def replica_specs(draw, replicas):
    """A replica spec; `common`, where it is there, agrees with the other fields."""
    values = {"replicas": draw(replicas), **{name: draw(strategy) for name, strategy in replica_values.items()}}
    common = None
    if draw(st.booleans()):
        given = {name: value for name, value in values.items() if value is not None}
        rest = {name: draw(strategy) for name, strategy in replica_values.items()}
        common = CommonReplicaSpec(
            **{**rest, "replicas": draw(replicas), **given, "unknown_fields": draw(unknown_fields)}
        )
    return ReplicaSpec(**values, common=common, unknown_fields=draw(unknown_fields))


@st.composite
def elastic_configs(draw):
    low, high = sorted((draw(counts), draw(counts)))
    return ElasticConfig(
        rdzv_backend=draw(st.sampled_from(["c10d", "etcd", "etcd-v2", "static"])),
        min_replicas=low,
        max_replicas=high,
        nproc_per_node=draw(counts),
        max_restarts=draw(numbers),
        unknown_fields=draw(unknown_fields),
    )


run_policies = st.builds(
    RunPolicy,
    clean_pod_policy=optional(st.sampled_from(CleanPodPolicy)),
    ttl_seconds_after_finished=optional(numbers),
    active_deadline_seconds=optional(numbers),
    backoff_limit=optional(numbers),
    unknown_fields=unknown_fields,
)
durations = st.timedeltas(timedelta(microseconds=1), timedelta(days=10_000))
settings = (
    st.text(st.characters(blacklist_categories=["Cs"]), max_size=5)
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(-(2**53), 2**53)
)
launch_options = st.builds(
    LaunchOptions,
    start_method=optional(st.sampled_from(StartMethod)),
    monitor_interval=optional(durations),
    rdzv_configs=st.dictionaries(st.text("abc_", min_size=1, max_size=4), settings, max_size=3),
    symbolic_nproc_per_node=optional(st.sampled_from(SymbolicNprocPerNode)),
    join_timeout=optional(durations),
    read_timeout=optional(durations),
    shutdown_grace=optional(durations | st.just(timedelta(0))),
    omp_num_threads=optional(counts),
    shared_memory_size=optional(sizes),
    increase_shared_mem=optional(st.booleans()),
    preload=st.lists(st.from_regex(r"\A[a-z_][a-z0-9_]{0,3}(\.[a-z_]{1,3}){0,2}\Z"), max_size=3).map(tuple),
    timeout=optional(durations),
    hang_timeout=optional(durations),
    log_dir=optional(st.text(min_size=1)),
    log_ranks=st.lists(st.integers(0, 2**31 - 1), max_size=3).map(tuple),
    nccl_heartbeat_timeout=optional(durations),
    nccl_enable_monitoring=optional(st.booleans()),
    nccl_async_error_handling=optional(st.booleans()),
    nccl_collective_timeout=optional(durations),
    unknown_fields=unknown_fields,
)
tasks = st.builds(
    DistributedPyTorchTrainingTask,
    worker_replicas=replica_specs(counts),
    master_replicas=optional(replica_specs(st.none() | st.just(1))),
    run_policy=optional(run_policies),
    elastic_config=optional(elastic_configs()),
    launch_options=optional(launch_options),
    unknown_fields=unknown_fields,
)

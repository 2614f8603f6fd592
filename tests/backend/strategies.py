"""Task templates as nobody sane writes them: every field, both versions, unknown keys, and JSON in odd forms."""

from hypothesis import strategies as st

WHOLE = st.integers(-2, 5)
NUMBERS = st.one_of(
    WHOLE,
    WHOLE,
    st.sampled_from([0, 2**31 - 1, 2**31, -(2**31), 2.5, 1e20, 1e21, 1.5e-7, "3", " 4 ", "2.0", "1e2", "two", "", "-"]),
    st.sampled_from(["null", "true", "007", "+1", "-0", "0x1", "nope", '"1"', "[1]", True, False, None, [], {}, [1]]),
)
QUANTITIES = st.one_of(
    st.sampled_from(
        ["1", "2", "500m", "100Mi", "1Gi", "2Gi", "1.5", "1500m", "1000m", "1024Mi", "0", "16", "3G", "1e3"]
    ),
    st.sampled_from(
        ["", "x", "1.5.2", "1Zi", "-1", "+5", "05", "1e", "1.0Gi", "0.1Ki", "1.1Ki", "12E", "9999999999Gi"]
    ),
    st.sampled_from(
        ["0.0000000001", "1n", "999999999999999999999", "1.", ".5", ".", "m", "1 Gi", "1e-3", "100k", "1E2"]
    ),
    st.from_regex(r"[0-9]{1,4}(\.[0-9]{1,3})?(m|k|M|G|Ki|Mi|Gi|Ti|e[0-9]|)", fullmatch=True),
)
RESOURCE_NAMES = st.sampled_from(
    ["CPU", "MEMORY", "GPU", "EPHEMERAL_STORAGE", "STORAGE", "UNKNOWN", "TPU", 1, 3, 9, None]
)
TASK_RESOURCE_NAMES = st.sampled_from(["CPU", "MEMORY", "GPU", "EPHEMERAL_STORAGE", "STORAGE"])
RESTARTS = st.sampled_from(
    [
        *("RESTART_POLICY_NEVER", "RESTART_POLICY_ON_FAILURE", "RESTART_POLICY_ALWAYS", "RESTART_POLICY_EXIT_CODE"),
        *(0, 1, 2, 9, -1, 1.0, 1.5, "1", "", None, True, {}),
    ]
)
CLEANS = st.sampled_from(
    [
        "CLEANPOD_POLICY_NONE",
        "CLEANPOD_POLICY_RUNNING",
        "CLEANPOD_POLICY_ALL",
        "CLEANPOD_POLICY_FAILED",
        0,
        1,
        2,
        7,
        None,
    ]
)
TEXTS = st.sampled_from(["c10d", "etcd", "", "réß点", 'a"<b>&', "other:1", None, 3, False])
UNKNOWN = st.sampled_from(["torchrun", "x", "Replicas", "elasticconfig"])


def _snake(name):
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


@st.composite
def objects(draw, **fields):
    """An object with some of the fields, in either spelling or both, and sometimes a key that nobody knows."""
    drawn = {}
    for name, values in fields.items():
        if draw(st.booleans()):
            drawn[draw(st.sampled_from([name, name, name, _snake(name)]))] = draw(values)
            if draw(st.integers(0, 15)) == 0:
                drawn[_snake(name)] = draw(values)
    if draw(st.integers(0, 7)) == 0:
        drawn[draw(UNKNOWN)] = draw(NUMBERS)
    return drawn


def mostly(good, bad):
    return st.integers(0, 15).flatmap(lambda number: bad if number == 0 else good)


ODD = st.sampled_from([None, 1, "x", [], True])
ENTRIES = mostly(st.lists(objects(name=RESOURCE_NAMES, value=QUANTITIES), max_size=3), ODD)
RESOURCES = mostly(objects(requests=ENTRIES, limits=ENTRIES), ODD)
COMMON = {"replicas": NUMBERS, "image": TEXTS, "resources": RESOURCES, "restartPolicy": RESTARTS}
REPLICA = mostly(objects(**COMMON, common=mostly(objects(**COMMON), ODD)), ODD)
ELASTIC = mostly(
    objects(rdzvBackend=TEXTS, minReplicas=NUMBERS, maxReplicas=NUMBERS, nprocPerNode=NUMBERS, maxRestarts=NUMBERS), ODD
)
RUN = mostly(
    objects(
        cleanPodPolicy=CLEANS, ttlSecondsAfterFinished=NUMBERS, activeDeadlineSeconds=NUMBERS, backoffLimit=NUMBERS
    ),
    ODD,
)
# Wrong somewhere more often than not, and right from end to end: both are needed.
VALID_ENTRY = st.fixed_dictionaries(
    {"name": TASK_RESOURCE_NAMES, "value": st.sampled_from(["1", "500m", "100Mi", "2Gi", "3", "1500m"])}
)
VALID_RESOURCES = st.fixed_dictionaries(
    {}, optional={"requests": st.lists(VALID_ENTRY, max_size=3), "limits": st.lists(VALID_ENTRY, max_size=3)}
)
SMALL = st.integers(0, 4)
VALID_COMMON = {
    "replicas": SMALL,
    "image": st.sampled_from(["w:1", "other:2"]),
    "resources": VALID_RESOURCES,
    "restartPolicy": st.sampled_from(["RESTART_POLICY_NEVER", "RESTART_POLICY_ON_FAILURE", "RESTART_POLICY_ALWAYS"]),
}
VALID_REPLICA = st.fixed_dictionaries(
    {}, optional={**VALID_COMMON, "common": st.fixed_dictionaries({}, optional=VALID_COMMON)}
)
VALID_ELASTIC = st.fixed_dictionaries(
    {},
    optional={
        "rdzvBackend": st.sampled_from(["c10d", "etcd-v2", ""]),
        **dict.fromkeys(("minReplicas", "maxReplicas", "nprocPerNode", "maxRestarts"), SMALL),
    },
)
VALID_RUN = st.fixed_dictionaries(
    {},
    optional={
        "cleanPodPolicy": st.sampled_from(["CLEANPOD_POLICY_NONE", "CLEANPOD_POLICY_RUNNING", "CLEANPOD_POLICY_ALL"]),
        **dict.fromkeys(("ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"), st.integers(-1, 600)),
    },
)
CUSTOM = st.one_of(
    objects(workers=NUMBERS, workerReplicas=REPLICA, masterReplicas=REPLICA, runPolicy=RUN, elasticConfig=ELASTIC),
    st.fixed_dictionaries(
        {"workerReplicas": VALID_REPLICA, "workers": SMALL},
        optional={"masterReplicas": VALID_REPLICA, "runPolicy": VALID_RUN, "elasticConfig": VALID_ELASTIC},
    ),
)
VARIABLES = st.sampled_from(["A", "B", "RANK", "PET_NNODES", "MASTER_ADDR", "FLYTE_ATTEMPT_NUMBER"])
VALUES = st.sampled_from(["", "1", "x y"])
ARGS = st.lists(
    st.sampled_from(
        ["pyflyte-execute", "{{.input}}", "{{ .outputPrefix }}", "{{$RAWOUTPUTDATAPREFIX}}x", "{{.inputs.x}}"]
    )
    | st.sampled_from(["{{.prevCheckpointPrefix}}", "{{.perRetryUniqueKey}}", "{{ .checkpointOutputPrefix}}", r"\1"]),
    max_size=3,
)
CONTAINER = st.fixed_dictionaries(
    {"image": st.sampled_from(["img:1", ""])},
    optional={
        "args": ARGS,
        "command": ARGS,
        "env": st.lists(st.fixed_dictionaries({"key": VARIABLES, "value": VALUES}), max_size=3),
        "resources": st.fixed_dictionaries(
            {},
            optional={
                side: st.lists(st.fixed_dictionaries({"name": TASK_RESOURCE_NAMES, "value": QUANTITIES}), max_size=3)
                for side in ("requests", "limits")
            },
        ),
    },
)
K8S_AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "gpu", "ephemeral-storage", "amd.com/gpu"]),
    st.sampled_from(["1", "500m", "1Gi", "0", "3"]),
    max_size=3,
)
K8S_CONTAINER = st.fixed_dictionaries(
    {"name": st.sampled_from(["main", "side", "pytorch"]), "image": st.sampled_from(["img:1", "img:1", ""])},
    optional={
        "args": ARGS,
        "env": st.lists(
            st.tuples(VARIABLES, VALUES).map(
                lambda pair: {k: v for k, v in zip(("name", "value"), pair, strict=True) if v}
            ),
            min_size=1,
            max_size=3,
        ),
        "resources": st.fixed_dictionaries({}, optional={"requests": K8S_AMOUNTS, "limits": K8S_AMOUNTS}),
        "ports": st.lists(
            st.fixed_dictionaries(
                {"containerPort": st.sampled_from([80, 9000])},
                optional={"name": st.sampled_from(["pytorchjob-port", "http"])},
            ),
            min_size=1,
            max_size=2,
        ),
        "volumeMounts": st.lists(
            st.fixed_dictionaries({"name": st.just("shm"), "mountPath": st.sampled_from(["/dev/shm", "/data"])}),
            min_size=1,
            max_size=2,
        ),
    },
)
POD = st.fixed_dictionaries(
    {
        "podSpec": st.fixed_dictionaries(
            {"containers": st.lists(K8S_CONTAINER, min_size=1, max_size=3)},
            optional={
                "volumes": st.lists(
                    st.fixed_dictionaries(
                        {"name": st.sampled_from(["shm", "dshm"]), "emptyDir": st.just({"medium": "Memory"})}
                    ),
                    min_size=1,
                    max_size=2,
                ),
                "initContainers": st.lists(K8S_CONTAINER, min_size=1, max_size=2),
                "restartPolicy": st.sampled_from(["Always", "Never"]),
                "serviceAccountName": st.just("own"),
                "tolerations": st.just([{"key": "k", "operator": "Exists"}]),
                "nodeSelector": st.just({"disk": "ssd"}),
            },
        )
    },
    optional={
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "labels": st.dictionaries(st.sampled_from(["l", "m"]), VALUES, max_size=2),
                "annotations": st.dictionaries(st.sampled_from(["n", "m"]), VALUES, max_size=2),
            },
        )
    },
)
EXTENDED = st.fixed_dictionaries(
    {},
    optional={
        "gpuAccelerator": st.fixed_dictionaries(
            {},
            optional={
                "device": st.sampled_from(["nvidia-tesla-a100", ""]),
                "partitionSize": st.sampled_from(["1g.5gb", ""]),
            },
        )
        | st.fixed_dictionaries({"unpartitioned": st.booleans()}),
        "sharedMemory": st.fixed_dictionaries(
            {},
            optional={
                "mountPath": st.sampled_from(["/dev/shm", ""]),
                "mountName": st.sampled_from(["shm", ""]),
                "sizeLimit": st.sampled_from(["", "1Gi", "1024Mi", "x"]),
            },
        ),
    },
)


@st.composite
def cases(draw):
    """A template, and what the execution adds."""
    template = {
        "id": {"resourceType": "TASK", "project": "p", "domain": "d", "name": draw(VALUES), "version": "v"},
        "type": "pytorch",
        "taskTypeVersion": draw(st.sampled_from([0, 0, 0, 1, 1, 1, 1, 2])),
    }
    if draw(st.integers(0, 31)):
        template["custom"] = draw(CUSTOM)
    target = draw(st.integers(0, 15))
    if target in range(1, 11):
        template["container"] = draw(CONTAINER)
    elif target:
        template["k8sPod"] = draw(POD)
        if draw(st.integers(0, 15)):
            template["config"] = {"primary_container_name": draw(st.sampled_from(["main", "main", "pytorch", "gone"]))}
    if draw(st.integers(0, 3)) == 0:
        template["extendedResources"] = draw(EXTENDED)
    overrides = {}
    if draw(st.integers(0, 3)) == 0:
        overrides["name"] = draw(st.sampled_from(["1job", "Job", "a-" * 40 + "a", "a.b", "x"]))
    if draw(st.integers(0, 3)) == 0:
        overrides["requests"] = draw(K8S_AMOUNTS.filter(lambda amounts: "gpu" not in amounts))
        overrides["limits"] = draw(K8S_AMOUNTS.filter(lambda amounts: "gpu" not in amounts))
    if draw(st.integers(0, 7)) == 0:
        overrides["container_image"] = "over:9"
    if draw(st.integers(0, 7)) == 0:
        overrides["extended_resources"] = draw(EXTENDED)
    if draw(st.integers(0, 3)) == 0:
        overrides["environment"] = {draw(VARIABLES): draw(VALUES)}
    if draw(st.integers(0, 3)) == 0:
        overrides["labels"] = {"l": "execution"}
        overrides["annotations"] = {"n": "execution", "cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
    platform = {}
    if draw(st.integers(0, 3)) == 0:
        platform = {"requests": draw(K8S_AMOUNTS), "limits": draw(K8S_AMOUNTS)}
    return {"template": template, "overrides": overrides, "platform": platform}

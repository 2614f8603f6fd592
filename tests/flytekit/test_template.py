"""What flytekit registers for a task: type, version, payload, pod."""

import copy

import pytest
from flyteidl.plugins.kubeflow import pytorch_pb2
from flytekit import PodTemplate, Resources, task, workflow
from flytekit.configuration import Image, ImageConfig, SerializationSettings
from flytekit.tools.translator import get_serializable
from flytekitplugins import kfpytorch as peer
from google.protobuf.json_format import MessageToDict, ParseDict
from kubernetes.client import V1Container, V1EmptyDirVolumeSource, V1PodSpec, V1Volume, V1VolumeMount

from flyte_torchrun import flytekit as ours
from flyte_torchrun.contract import (
    DistributedPyTorchTrainingTask,
    ElasticConfig,
    LaunchOptions,
    ReplicaSpec,
    StartMethod,
    SymbolicNprocPerNode,
)
from flyte_torchrun.flytekit import (
    CleanPodPolicy,
    Elastic,
    ElasticPolicy,
    Master,
    PyTorch,
    RestartPolicy,
    RunPolicy,
    Worker,
)

IMAGE = Image(name="default", fqn="registry.example/training", tag="1")
SETTINGS = SerializationSettings(
    project="p", domain="d", version="v", image_config=ImageConfig(default_image=IMAGE, images=[IMAGE])
)


def template_of(config, **arguments):
    @task(task_config=config, **arguments)
    def train(x: int) -> int:
        return x

    return get_serializable({}, SETTINGS, train).template.to_flyte_idl()


def kind(template):
    return template.type, template.task_type_version


def payload_of(template):
    return ParseDict(
        MessageToDict(template.custom), pytorch_pb2.DistributedPyTorchTrainingTask(), ignore_unknown_fields=True
    )


@pytest.mark.parametrize("nnodes", [1, "1", "1:1"])
def test_one_node_is_a_plain_python_task_that_carries_its_payload(nnodes):
    template = template_of(Elastic(nnodes=nnodes, nproc_per_node=2, start_method="spawn"))
    assert kind(template) == ("python-task", 1)
    assert DistributedPyTorchTrainingTask.from_template(template) == DistributedPyTorchTrainingTask(
        worker_replicas=ReplicaSpec(replicas=1),
        elastic_config=ElasticConfig(min_replicas=1, max_replicas=1, nproc_per_node=2),
        launch_options=LaunchOptions(start_method=StartMethod.SPAWN, increase_shared_mem=True),
    )


def test_several_nodes_are_a_pytorch_task_of_version_1():
    policy = RunPolicy(clean_pod_policy=CleanPodPolicy.NONE, ttl_seconds_after_finished=0, backoff_limit=3)
    template = template_of(Elastic(nnodes="2:4", nproc_per_node=8, max_restarts=0, run_policy=policy))
    assert kind(template) == ("pytorch", 1)
    custom = MessageToDict(template.custom)
    assert custom["runPolicy"] == {
        "cleanPodPolicy": "CLEANPOD_POLICY_NONE",
        "ttlSecondsAfterFinished": 0,
        "backoffLimit": 3,
    }
    assert custom["elasticConfig"] == {
        "rdzvBackend": "c10d",
        "minReplicas": 2,
        "maxReplicas": 4,
        "nprocPerNode": 8,
        "maxRestarts": 0,
    }
    assert custom["workerReplicas"] == {"replicas": 4}


PAIRS = {
    "elastic": lambda plugin: plugin.Elastic(nnodes="2:4", nproc_per_node=8, max_restarts=2),
    "elastic run policy": lambda plugin: plugin.Elastic(
        nnodes=2,
        run_policy=plugin.RunPolicy(
            clean_pod_policy=plugin.CleanPodPolicy.ALL,
            ttl_seconds_after_finished=60,
            active_deadline_seconds=600,
            backoff_limit=2,
        ),
    ),
    "pytorch": lambda plugin: plugin.PyTorch(
        master=plugin.Master(requests=Resources(cpu="1"), restart_policy=plugin.RestartPolicy.ALWAYS),
        worker=plugin.Worker(
            replicas=3,
            image="img:2",
            requests=Resources(cpu="2", mem="1Gi", gpu="1"),
            limits=Resources(cpu="4", mem="2Gi", gpu="1", ephemeral_storage="5Gi"),
            restart_policy=plugin.RestartPolicy.FAILURE,
        ),
        run_policy=plugin.RunPolicy(clean_pod_policy=plugin.CleanPodPolicy.RUNNING),
    ),
    "num_workers": lambda plugin: plugin.PyTorch(num_workers=2),
}


@pytest.mark.parametrize("config", PAIRS.values(), ids=PAIRS)
@pytest.mark.filterwarnings("ignore:Configuring shared memory")
def test_the_payload_means_what_the_peers_means(config):
    theirs = payload_of(template_of(config(peer)))
    for replica in (theirs.worker_replicas, theirs.master_replicas):
        if replica.HasField("resources") and not replica.resources.ByteSize():
            replica.ClearField("resources")  # the peer writes `{}`, which some backends take as a reset
    template = template_of(config(ours))
    assert kind(template) == ("pytorch", 1)
    assert payload_of(template) == theirs


def test_a_symbolic_nproc_is_a_number_on_the_wire_and_a_word_in_the_extension():
    def read(config, **arguments):
        payload = DistributedPyTorchTrainingTask.from_template(template_of(config, **arguments))
        return payload.elastic_config.nproc_per_node, payload.launch_options.symbolic_nproc_per_node

    assert read(Elastic(nnodes=2, nproc_per_node="gpu"), limits=Resources(gpu="4")) == (4, SymbolicNprocPerNode.GPU)
    assert read(Elastic(nnodes=2, nproc_per_node="auto"), requests=Resources(gpu="2")) == (2, SymbolicNprocPerNode.AUTO)
    assert read(Elastic(nnodes=2, nproc_per_node="cpu")) == (1, SymbolicNprocPerNode.CPU)
    worker = Worker(replicas=2, limits=Resources(gpu="8"))
    policy = ElasticPolicy(n_proc_per_node="gpu")
    assert read(PyTorch(worker=worker, elastic_policy=policy)) == (8, SymbolicNprocPerNode.GPU)


def test_launch_options_reach_the_template():
    config = Elastic(
        nnodes=2,
        start_method="fork",
        monitor_interval=0.5,
        rdzv_configs={"timeout": 1200, "is_host": True},
        join_timeout=60,
        read_timeout=120.25,
        shutdown_grace=5,
        omp_num_threads=3,
        shared_memory_size="2Gi",
        preload=("json",),
        timeout=3600,
        hang_timeout=30,
        log_dir="/var/log/ranks",
        log_ranks=(0, 3),
        nccl_heartbeat_timeout_sec=60,
        nccl_enable_monitoring=False,
        nccl_async_error_handling=True,
        nccl_collective_timeout_sec=120,
    )
    custom = MessageToDict(template_of(config).custom)
    assert custom["torchrun"] == {
        "startMethod": "START_METHOD_FORK",
        "monitorInterval": "0.500s",
        "rdzvConfigs": {"timeout": 1200, "is_host": True},
        "joinTimeout": "60s",
        "readTimeout": "120.250s",
        "shutdownGrace": "5s",
        "ompNumThreads": 3,
        "sharedMemorySize": "2Gi",
        "increaseSharedMem": True,
        "preload": ["json"],
        "timeout": "3600s",
        "hangTimeout": "30s",
        "logDir": "/var/log/ranks",
        "logRanks": [0, 3],
        "ncclHeartbeatTimeout": "60s",
        "ncclEnableMonitoring": False,
        "ncclAsyncErrorHandling": True,
        "ncclCollectiveTimeout": "120s",
    }


@pytest.mark.parametrize(("seconds", "written"), [(300, None), (None, "0s"), (1, "1s")])
def test_nccls_heartbeat_is_written_where_it_is_not_the_launchers_default(seconds, written):
    custom = MessageToDict(template_of(Elastic(nnodes=2, nccl_heartbeat_timeout_sec=seconds)).custom)
    assert custom["torchrun"].get("ncclHeartbeatTimeout") == written


def test_a_group_without_workers_is_a_plain_task_without_payload():
    template = template_of(PyTorch(num_workers=0))
    assert kind(template) == ("python-task", 1)
    assert not MessageToDict(template.custom)


def test_an_elastic_policy_makes_workers_without_a_master():
    payload = payload_of(template_of(PyTorch(worker=Worker(replicas=2, image="w:1"), elastic_policy=ElasticPolicy())))
    assert payload.HasField("elastic_config")
    assert not payload.HasField("master_replicas")
    assert payload.worker_replicas.image == "w:1"


def pod_of(template):
    return MessageToDict(template.k8s_pod.pod_spec)


def mounts_of(template, container="primary"):
    containers = {entry["name"]: entry for entry in pod_of(template)["containers"]}
    return containers[container].get("volumeMounts", [])


def test_shared_memory_is_mounted_from_memory_by_default():
    for config in (Elastic(), Elastic(nnodes=2), PyTorch(num_workers=1)):
        template = template_of(config)
        assert template.config["primary_container_name"] == "primary"
        assert pod_of(template)["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
        assert mounts_of(template) == [{"name": "shm", "mountPath": "/dev/shm"}]


def test_the_size_of_shared_memory_can_be_set():
    template = template_of(Elastic(shared_memory_size="2Gi"))
    assert pod_of(template)["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}]


def test_shared_memory_can_be_switched_off():
    template = template_of(Elastic(increase_shared_mem=False))
    assert not template.HasField("k8s_pod")
    assert template.HasField("container")


def test_flytekits_own_shared_memory_wins_and_nothing_is_mounted_twice():
    template = template_of(Elastic(), shared_memory="1Gi")
    assert not template.HasField("k8s_pod")
    assert template.extended_resources.shared_memory.size_limit == "1Gi"


def test_two_tasks_share_a_pod_template_that_stays_as_it_was():
    pod_template = PodTemplate(
        primary_container_name="main",
        labels={"team": "a"},
        pod_spec=V1PodSpec(
            node_selector={"pool": "gpu"},
            containers=[V1Container(name="sidecar", image="side:1"), V1Container(name="main")],
            volumes=[V1Volume(name="shm", empty_dir=V1EmptyDirVolumeSource())],
        ),
    )
    before = copy.deepcopy(pod_template)
    for _ in range(2):
        template = template_of(Elastic(nnodes=2), pod_template=pod_template)
        assert [volume["name"] for volume in pod_of(template)["volumes"]] == ["shm", "shm-2"]
        assert mounts_of(template, "main") == [{"name": "shm-2", "mountPath": "/dev/shm"}]
        assert mounts_of(template, "sidecar") == []
        assert pod_of(template)["nodeSelector"] == {"pool": "gpu"}
        assert template.k8s_pod.metadata.labels == {"team": "a"}
    assert pod_template == before


def test_a_users_own_mount_is_left_alone():
    container = V1Container(name="primary", volume_mounts=[V1VolumeMount(name="mine", mount_path="/dev/shm/")])
    volume = V1Volume(name="mine", empty_dir=V1EmptyDirVolumeSource(medium="Memory", size_limit="3Gi"))
    template = template_of(
        Elastic(), pod_template=PodTemplate(pod_spec=V1PodSpec(containers=[container], volumes=[volume]))
    )
    assert pod_of(template)["volumes"] == [{"name": "mine", "emptyDir": {"medium": "Memory", "sizeLimit": "3Gi"}}]
    assert mounts_of(template) == [{"name": "mine", "mountPath": "/dev/shm/"}]


@task(task_config=Elastic())
def grows(x: int) -> int:
    return x


def test_an_overridden_configuration_changes_type_payload_and_pod():
    @workflow
    def flow() -> int:
        return grows(x=1).with_overrides(task_config=Elastic(nnodes=4, nproc_per_node=2, increase_shared_mem=False))

    try:
        flow.compile()
        template = get_serializable({}, SETTINGS, grows).template.to_flyte_idl()
        assert kind(template) == ("pytorch", 1)
        assert payload_of(template).worker_replicas.replicas == 4
        assert template.HasField("container")
    finally:
        grows._task_config = Elastic()


def test_a_restart_policy_of_the_master_is_written():
    config = PyTorch(num_workers=1, master=Master(restart_policy=RestartPolicy.ALWAYS))
    assert MessageToDict(template_of(config).custom)["masterReplicas"] == {
        "replicas": 1,
        "restartPolicy": "RESTART_POLICY_ALWAYS",
    }

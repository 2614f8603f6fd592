"""The generated modules: on every protobuf that the metadata allows, beside the wheel's, and for type checkers."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from packaging.requirements import Requirement

from tests.idl.test_distribution import metadata

# The floor that the metadata declares, the last of its line, and the newest of each later one.
PROTOBUFS = ["4.21.1", "4.21.12", "4.25.9", "5.29.6", "6.33.6", "7.36.2"]

ROUND_TRIP = """
import importlib, os, pathlib, sys, warnings
warnings.simplefilter("error")
from google.protobuf.internal import api_implementation
assert api_implementation.Type() == os.environ.get("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "upb")
from flyteidl.plugins import common_pb2, pytorch_pb2
from flyteidl.plugins.kubeflow import common_pb2 as kubeflow_common_pb2, pytorch_pb2 as kubeflow_pytorch_pb2
from flyteidl.core import tasks_pb2
from flyteidl_torchrun.v1 import launch_pb2
if os.environ.get("OVERLAY"):
    assert kubeflow_pytorch_pb2.__file__.startswith(os.environ["OVERLAY"]), kubeflow_pytorch_pb2.__file__
    assert not tasks_pb2.__file__.startswith(os.environ["OVERLAY"])
task = kubeflow_pytorch_pb2.DistributedPyTorchTrainingTask()
task.worker_replicas.replicas = 2
task.worker_replicas.resources.requests.add(name=tasks_pb2.Resources.CPU, value="2")
task.worker_replicas.common.restart_policy = common_pb2.RESTART_POLICY_ALWAYS
task.run_policy.clean_pod_policy = kubeflow_common_pb2.CLEANPOD_POLICY_ALL
task.elastic_config.max_restarts = 2147483647
assert type(task).FromString(task.SerializeToString()) == task
version_0 = pytorch_pb2.DistributedPyTorchTrainingTask(workers=3)
version_0.elastic_config.rdzv_backend = "c10d"
assert type(version_0).FromString(version_0.SerializeToString()) == version_0
options = launch_pb2.LaunchOptions(omp_num_threads=0, start_method=launch_pb2.START_METHOD_FORK, preload=["a"])
options.monitor_interval.FromMilliseconds(250)
options.rdzv_configs["timeout"] = 900
read = launch_pb2.LaunchOptions.FromString(options.SerializeToString())
assert read == options and read.HasField("omp_num_threads") and not read.HasField("increase_shared_mem")
"""
CONTRACT = """
from flyte_torchrun.contract import *
training = DistributedPyTorchTrainingTask(
    worker_replicas=ReplicaSpec(replicas=2, resources=Resources.from_quantities(requests={"cpu": "1"})),
    run_policy=RunPolicy(clean_pod_policy=CleanPodPolicy.NONE, backoff_limit=0),
    elastic_config=ElasticConfig(min_replicas=1, max_replicas=2, nproc_per_node=3),
    launch_options=LaunchOptions(rdzv_configs={"timeout": 900}, increase_shared_mem=False),
)
template = training.to_template(tasks_pb2.TaskTemplate(type="x"))
again = type(template).FromString(template.SerializeToString())
assert DistributedPyTorchTrainingTask.from_template(again) == training
assert LaunchOptions.from_proto(training.launch_options.to_proto()) == training.launch_options
"""


def run(python, script, **variables):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [python, "-c", script], capture_output=True, text=True, check=False, cwd="/", env={**environment, **variables}
    )


@pytest.mark.parametrize("protobuf", PROTOBUFS)
def test_the_bindings_load_and_round_trip_on_every_protobuf(protobuf, environment, distributions, root):
    python = environment(distributions[0], f"protobuf=={protobuf}", "flyteidl==1.16.8")
    overlay = str(root / "gen" / "python")
    for implementation in ("upb", "python"):
        choice = {} if implementation == "upb" else {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation}
        done = run(python, ROUND_TRIP + CONTRACT, **choice)
        assert done.returncode == 0, (implementation, done.stderr)
        done = run(python, ROUND_TRIP, PYTHONPATH=overlay, OVERLAY=overlay, **choice)
        assert done.returncode == 0, (implementation, done.stderr)


def test_the_metadata_says_just_what_the_matrix_passes(distributions):
    requirements = {r.name: r for r in map(Requirement, metadata(distributions[0]).get_all("Requires-Dist"))}
    assert all(requirements["protobuf"].specifier.contains(version) for version in PROTOBUFS)
    assert str(requirements["protobuf"].specifier) == f">={PROTOBUFS[0]}"


def test_no_gencode_checks_the_runtimes_version(distributions, root):
    for file in (root / "gen").rglob("*_pb2.py"):
        assert "runtime_version" not in file.read_text(), file
    archive = zipfile.ZipFile(distributions[0])
    assert not [name for name in archive.namelist() if name.endswith("_grpc.py")]


def test_the_lowest_flyteidl_has_every_field_that_the_helpers_use(environment, distributions):
    requirements = {r.name: r for r in map(Requirement, metadata(distributions[0]).get_all("Requires-Dist"))}
    floor = str(requirements["flyteidl"].specifier).removeprefix(">=")
    python = environment(distributions[0], f"flyteidl=={floor}", "protobuf==4.21.12", "setuptools<81")
    script = """
from flyteidl.core import tasks_pb2
from flyte_torchrun.contract import *
spec = ReplicaSpec(replicas=2, common=CommonReplicaSpec(replicas=2, image="i", restart_policy=RestartPolicy.ALWAYS))
training = DistributedPyTorchTrainingTask(
    worker_replicas=spec,
    master_replicas=ReplicaSpec(replicas=1, image="i", resources=Resources(), restart_policy=RestartPolicy.ALWAYS),
    run_policy=RunPolicy(clean_pod_policy=CleanPodPolicy.ALL, active_deadline_seconds=1),
    elastic_config=ElasticConfig(min_replicas=2, max_replicas=2, nproc_per_node=1),
)
assert DistributedPyTorchTrainingTask.from_proto(training.to_proto()) == training
"""
    done = run(python, script)
    assert done.returncode == 0, done.stderr


BOTH = """
import importlib, importlib.util, sys, warnings
warnings.simplefilter("error")
overlay, order = sys.argv[1:]
wheel = "flyteidl.plugins.kubeflow.pytorch_pb2"
def from_overlay():
    path = overlay + "/flyteidl/plugins/kubeflow/pytorch_pb2.py"
    spec = importlib.util.spec_from_file_location("overlaid", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
if order == "wheel first":
    first = importlib.import_module(wheel)
    second = from_overlay()
else:
    second = from_overlay()
    first = importlib.import_module(wheel)
assert first.__file__ != second.__file__
name = "DistributedPyTorchTrainingTask"
assert first.DESCRIPTOR is second.DESCRIPTOR
assert getattr(first, name) is getattr(second, name)
"""


@pytest.mark.parametrize("order", ["wheel first", "overlay first"])
def test_wheel_and_overlay_give_one_class_in_either_order(order, root):
    done = subprocess.run(
        [sys.executable, "-c", BOTH, root / "gen" / "python", order], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="session")
def typed(environment, distributions):
    """An environment with the wheel and the type checkers."""
    return environment(distributions[0], "mypy==2.4.1", "pyright[nodejs]==1.1.414", "types-protobuf")


@pytest.fixture
def check(typed, tmp_path, root):
    """Runs a type checker on one of the programs, away from this project's own sources."""

    def run(checker, name):
        shutil.copy(root / "tests" / "idl" / name, tmp_path)
        arguments = ["--strict"] if checker == "mypy" else ["--pythonpath", typed]
        return subprocess.run(
            [typed, "-m", checker, *arguments, name], capture_output=True, text=True, check=False, cwd=tmp_path
        )

    return run


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_type_checkers_accept_a_program_that_uses_every_message(checker, check):
    done = check(checker, "typing_right.py")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_type_checkers_refuse_each_wrong_line(checker, check, root):
    lines = (root / "tests" / "idl" / "typing_wrong.py").read_text().splitlines()
    done = check(checker, "typing_wrong.py")
    assert done.returncode == 1, done.stderr
    reported = {
        int(line.split(":")[1]) for line in done.stdout.splitlines() if "error: " in line and line.count(":") > 1
    }
    assert reported == {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}, done.stdout


def test_the_right_program_uses_every_message_and_enum(root):
    from flyteidl.plugins import common_pb2, pytorch_pb2
    from flyteidl.plugins.kubeflow import common_pb2 as kubeflow_common_pb2
    from flyteidl.plugins.kubeflow import pytorch_pb2 as kubeflow_pytorch_pb2
    from flyteidl_torchrun.v1 import launch_pb2

    text = (root / "tests" / "idl" / "typing_right.py").read_text()
    for module in (common_pb2, pytorch_pb2, kubeflow_common_pb2, kubeflow_pytorch_pb2, launch_pb2):
        for name in (*module.DESCRIPTOR.message_types_by_name, *module.DESCRIPTOR.enum_types_by_name):
            assert name in text, name

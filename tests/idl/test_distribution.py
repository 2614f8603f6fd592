"""The wheel and the source distribution: what they hold, and that they work where nothing else is."""

import email
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

OWN = {"flyte_torchrun", "flyteidl_torchrun", "flyteidl-stubs"}


def names(wheel):
    return sorted(name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name)


def metadata(wheel):
    archive = zipfile.ZipFile(wheel)
    (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(archive.read(path))


def tree(folder, suffixes):
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.suffix in suffixes or path.name == "py.typed"
    }


def test_the_wheel_holds_our_packages_and_nothing_else(distributions, root):
    wheel, _ = distributions
    src = {name for name in tree(root / "src", {".py", ".binpb", ".json"}) if "__pycache__" not in name}
    assert set(names(wheel)) == (
        src
        | {name for name in tree(root / "gen" / "python", {".py", ".pyi"}) if name.startswith("flyteidl_torchrun/")}
        | tree(root / "gen" / "stubs", {".pyi"})
    )
    assert {name.split("/")[0] for name in names(wheel)} == OWN


def test_the_stubs_are_partial_and_our_own_packages_are_typed(distributions):
    archive = zipfile.ZipFile(distributions[0])
    assert archive.read("flyteidl-stubs/py.typed") == b"partial\n"
    assert {"flyte_torchrun/py.typed", "flyteidl_torchrun/py.typed"} <= set(archive.namelist())


def test_the_source_distribution_makes_the_same_wheel(distributions, tmp_path):
    wheel, sdist = distributions
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    assert {"README.md", "CHANGELOG.md", "protos", "gen", "src", "tests"} <= {path.name for path in folder.iterdir()}
    uv = Path(sys.executable).parent / "uv"
    subprocess.run([uv, "build", "--quiet", "--wheel", "--out-dir", tmp_path / "again", folder], check=True)
    (again,) = (tmp_path / "again").glob("*.whl")
    assert names(again) == names(wheel)


def test_the_license_is_an_spdx_expression(distributions):
    assert metadata(distributions[0])["License-Expression"] == "Apache-2.0"


def test_the_wheel_works_without_flytekit_and_torch(distributions, environment):
    python = environment(distributions[0])
    script = """
import sys
import flyte_torchrun, flyte_torchrun.contract, flyte_torchrun.launch
from flyteidl_torchrun.v1 import launch_pb2
from flyte_torchrun.contract import DistributedPyTorchTrainingTask, ElasticConfig, LaunchOptions, ReplicaSpec
from flyte_torchrun.launch import LaunchPlan, TorchNotInstalledError, launch
training = DistributedPyTorchTrainingTask(
    worker_replicas=ReplicaSpec(replicas=2),
    elastic_config=ElasticConfig(min_replicas=2, max_replicas=2, nproc_per_node=1),
    launch_options=LaunchOptions(omp_num_threads=1),
)
assert DistributedPyTorchTrainingTask.from_custom(training.to_custom(), 1) == training
assert training.launch_options.to_proto() == launch_pb2.LaunchOptions(omp_num_threads=1)
try:
    launch(LaunchPlan(), print)
except TorchNotInstalledError as error:
    print(error)
print(sorted({"torch", "flytekit", "grpc"} & set(sys.modules)))
"""
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True, cwd="/")
    message, loaded = done.stdout.splitlines()
    assert "pip install 'flyte-torchrun[torch]'" in message
    assert loaded == "[]"


def test_importing_the_package_loads_nothing_of_others():
    script = (
        "import sys, flyte_torchrun; print(sorted(n for n in sys.modules if n.split('.')[0] in ('google', 'torch')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "google.protobuf" not in done.stdout
    assert "torch" not in done.stdout

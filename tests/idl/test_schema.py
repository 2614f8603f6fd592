"""The schema: equal to the released one, well-formed, and checked by tools that can fail."""

import shutil
import subprocess

import pytest
from flyteidl.plugins import common_pb2, pytorch_pb2
from flyteidl.plugins.kubeflow import common_pb2 as kubeflow_common_pb2
from flyteidl.plugins.kubeflow import pytorch_pb2 as kubeflow_pytorch_pb2
from google.protobuf import descriptor_pb2

RELEASED = {
    module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb
    for module in (common_pb2, pytorch_pb2, kubeflow_common_pb2, kubeflow_pytorch_pb2)
}
FILES = sorted(RELEASED)


def generated(root, folder):
    """The descriptors that the generated modules below `folder` carry, read without importing them."""
    found = {}
    for file in sorted((folder / "python").rglob("*_pb2.py")):
        (line,) = [line for line in file.read_text().splitlines() if ".AddSerializedFile(" in line]
        serialized = eval(line.partition("AddSerializedFile(")[2].rpartition(")")[0])
        found[descriptor_pb2.FileDescriptorProto.FromString(serialized).name] = serialized
    return found


@pytest.fixture
def copy(tmp_path, root):
    """A copy of what scripts/generate works on, in which a test can break something."""
    for name in ("protos", "gen"):
        shutil.copytree(root / name, tmp_path / name)
    for name in ("scripts", "constraints"):
        shutil.copytree(root / name, tmp_path / name)
    for name in ("buf.yaml", "buf.gen.yaml", "pyproject.toml"):
        shutil.copy(root / name, tmp_path / name)
    # The environments are those of the project: making them again would test nothing.
    (tmp_path / ".venvs").symlink_to(root / ".venvs")
    script = (tmp_path / "scripts" / "environment.sh").read_text()
    assert '"$PWD" "$@"' in script
    (tmp_path / "scripts" / "environment.sh").write_text(script.replace('"$PWD" "$@"', f'"{root}" "$@"'))
    return tmp_path


def generate(folder, *arguments):
    return subprocess.run(
        [folder / "scripts" / "generate", *arguments], capture_output=True, text=True, check=False, cwd=folder
    )


def change(folder, file, old, new):
    path = folder / "protos" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_generated_descriptors_are_the_released_ones_byte_for_byte(root):
    ours = generated(root, root / "gen")
    assert {name: ours[name] for name in FILES} == RELEASED


def test_the_released_image_is_what_the_wheel_carries(root):
    image = descriptor_pb2.FileDescriptorSet.FromString((root / "protos" / "released.binpb").read_bytes())
    ours = {file.name: file for file in image.file if file.name in RELEASED}
    assert ours == {name: descriptor_pb2.FileDescriptorProto.FromString(RELEASED[name]) for name in FILES}


MUTATIONS = {
    "number": ("flyteidl/plugins/kubeflow/pytorch.proto", "int32 max_restarts = 5;", "int32 max_restarts = 6;"),
    "name": ("flyteidl/plugins/kubeflow/common.proto", "int32 backoff_limit = 4;", "int32 backoff_limits = 4;"),
    "option": (
        "flyteidl/plugins/kubeflow/pytorch.proto",
        "int32 replicas = 1 [deprecated = true];",
        "int32 replicas = 1;",
    ),
    "enum value": ("flyteidl/plugins/common.proto", "RESTART_POLICY_ALWAYS = 2;", "RESTART_POLICY_ALWAYS = 3;"),
    "type": ("flyteidl/plugins/pytorch.proto", "int32 workers = 1;", "int64 workers = 1;"),
    "file option": (
        "flyteidl/plugins/pytorch.proto",
        'go_package = "github.com/flyteorg/flyte/flyteidl/gen/pb-go/flyteidl/plugins"',
        'go_package = "github.com/flyteorg/flyteidl/gen/pb-go/flyteidl/plugins"',
    ),
}


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_a_changed_schema_is_no_longer_the_released_one(copy, mutation):
    change(copy, *mutation)
    done = generate(copy)
    assert done.returncode == 0, done.stderr
    ours = generated(copy, copy / "gen")
    assert [name for name in FILES if ours[name] != RELEASED[name]] == [mutation[0]]


def test_the_schema_passes_lint_format_and_breaking(root):
    done = generate(root, "--lint")
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("mutation", "said"),
    [
        (MUTATIONS["number"], 'Previously present field "5" with name "max_restarts"'),
        (MUTATIONS["name"], 'changed name from "backoff_limit" to "backoff_limits"'),
        (MUTATIONS["enum value"], "RESTART_POLICY_ALWAYS"),
        (MUTATIONS["type"], "changed type"),
        (
            ("flyteidl/plugins/kubeflow/common.proto", "  // All.\n", ""),
            'Enum value "CLEANPOD_POLICY_ALL" should have a non-empty comment',
        ),
        (
            ("flyteidl_torchrun/v1/launch.proto", "int32 omp_num_threads = 8", "int32 ompNumThreads = 8"),
            "should be lower_snake_case",
        ),
        (("flyteidl_torchrun/v1/launch.proto", "  optional bool", "     optional bool"), "launch.proto"),
    ],
)
def test_each_check_fails_on_a_broken_copy(copy, mutation, said):
    change(copy, *mutation)
    done = generate(copy, "--lint")
    assert done.returncode != 0
    assert said in done.stdout


def test_what_is_committed_is_what_the_schema_makes(root):
    done = generate(root, "--check")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("broken", ["changed", "missing", "extra"])
def test_the_check_names_a_file_that_differs(copy, broken):
    file = copy / "gen" / "python" / "flyteidl_torchrun" / "v1" / "launch_pb2.pyi"
    if broken == "changed":
        file.write_text(file.read_text() + "\n")
    elif broken == "missing":
        file.unlink()
    else:
        (file.parent / "stray.py").touch()
    done = generate(copy, "--check")
    assert done.returncode == 1
    assert ("stray.py" if broken == "extra" else "launch_pb2.pyi") in done.stderr


def test_generating_empties_the_folder_first(copy):
    stray = copy / "gen" / "python" / "flyteidl_torchrun" / "stray.py"
    stray.touch()
    assert generate(copy).returncode == 0
    assert not stray.exists()
    assert generate(copy, "--check").returncode == 0


def test_an_unknown_argument_is_named(root):
    done = generate(root, "--cehck")
    assert done.returncode == 1
    assert "--cehck" in done.stderr

"""The lowest flytekit, torch and kubernetes that the metadata allows, in an environment of their own."""

import os
import subprocess
import zipfile

import pytest
from packaging.requirements import Requirement

# Left out: the examples, which destroy their process group (see tests/groups.py), what needs a newer torch to read a
# module safely, and spawn, which is slow.
LEFT_OUT = "not example and not module and not spawn and not needs_no_torch"
ROOMS = [
    *("tests/flytekit/test_run.py", "tests/flytekit/test_pods.py"),
    *("tests/launch/test_launch.py", "tests/launch/test_nodes.py", "tests/launch/test_local_nodes.py"),
]


def floors(wheel, *extras):
    """What the extras' requirements allow at the least, as `name==version`."""
    archive = zipfile.ZipFile(wheel)
    (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    lines = [line for line in archive.read(path).decode().splitlines() if line.startswith("Requires-Dist: ")]
    requirements = [Requirement(line.removeprefix("Requires-Dist: ")) for line in lines]
    return [
        f"{requirement.name}=={str(requirement.specifier).removeprefix('>=')}"
        for requirement in requirements
        if requirement.marker is not None and any(requirement.marker.evaluate({"extra": extra}) for extra in extras)
    ]


@pytest.mark.slow
def test_tasks_run_on_the_lowest_versions_of_the_extras(distributions, environment, root):
    wheel, _ = distributions
    lowest = floors(wheel, "flytekit", "torch")
    assert {floor.partition("==")[0] for floor in lowest} == {"cloudpickle", "flytekit", "kubernetes", "numpy", "torch"}
    python = environment(f"{wheel}[flytekit,torch]", *lowest, "pytest", "pytest-timeout", "hypothesis")
    run_tests(python, root, ROOMS, LEFT_OUT)


@pytest.mark.slow
def test_tasks_run_on_the_lowest_flyte_2_sdk(distributions, environment, root):
    """With the torch of its days. Left out is what that SDK has not: local retries, and errors that forbid them."""
    wheel, _ = distributions
    lowest = floors(wheel, "flyte")
    assert [floor.partition("==")[0] for floor in lowest] == ["flyte"]
    tools = ("pytest", "pytest-timeout", "hypothesis", "numpy")
    python = environment(f"{wheel}[flyte,torch]", *lowest, *tools, exclude_newer="2026-02-28")
    run_tests(python, root, ["tests/flyte/test_run.py", "tests/flyte/test_pods.py"], "not spawned and not again")


def run_tests(python, root, rooms, which):
    done = subprocess.run(
        [
            *(python, "-m", "pytest", "-c", os.devnull, "--rootdir", root, "--import-mode", "importlib", "-q"),
            *("-p", "no:cacheprovider", "-m", "not slow", "-k", which, "--timeout", "120"),
            *(root / room for room in rooms),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert " passed" in done.stdout

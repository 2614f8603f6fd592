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


def floors(wheel):
    """What each extra's requirement allows at the least, as `name==version`."""
    archive = zipfile.ZipFile(wheel)
    (path,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    lines = [line for line in archive.read(path).decode().splitlines() if line.startswith("Requires-Dist: ")]
    requirements = [Requirement(line.removeprefix("Requires-Dist: ")) for line in lines]
    return [
        f"{requirement.name}=={str(requirement.specifier).removeprefix('>=')}"
        for requirement in requirements
        if requirement.marker is not None
    ]


@pytest.mark.slow
def test_tasks_run_on_the_lowest_versions_of_the_extras(distributions, environment, root):
    wheel, _ = distributions
    lowest = floors(wheel)
    assert {floor.partition("==")[0] for floor in lowest} == {"cloudpickle", "flytekit", "kubernetes", "numpy", "torch"}
    python = environment(f"{wheel}[flytekit,torch]", *lowest, "pytest", "pytest-timeout", "hypothesis")
    done = subprocess.run(
        [
            *(python, "-m", "pytest", "-c", os.devnull, "--rootdir", root, "--import-mode", "importlib", "-q"),
            *("-p", "no:cacheprovider", "-m", "not slow", "-k", LEFT_OUT, "--timeout", "120"),
            *(root / room for room in ROOMS),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert " passed" in done.stdout

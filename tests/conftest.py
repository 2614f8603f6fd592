"""What every room of tests uses."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def root():
    """The project's folder."""
    return ROOT


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """Makes virtual environments: `environment("protobuf==5.29.5", ...)` returns the Python of a fresh one."""
    uv = Path(sys.executable).parent / "uv"

    def make(*requirements, exclude_newer=None):
        folder = tmp_path_factory.mktemp("environment")
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder / "venv"], check=True)
        python = folder / "venv" / "bin" / "python"
        limit = ("--exclude-newer", exclude_newer) if exclude_newer else ()
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, *limit, *requirements], check=True)
        return python

    return make


@pytest.fixture(scope="session")
def distributions(tmp_path_factory):
    """The wheel and the source distribution, as (wheel, sdist)."""
    folder = tmp_path_factory.mktemp("dist")
    uv = Path(sys.executable).parent / "uv"
    subprocess.run([uv, "build", "--quiet", "--out-dir", folder, ROOT], check=True)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist

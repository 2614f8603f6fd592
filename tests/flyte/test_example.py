"""One program runs under both SDKs."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("sdk", ["flytekit", "flyte"])
def test_the_example_trains_under_both_sdks(root, sdk):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", root / "examples" / "both_sdks.py", sdk],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("4 ranks, loss 0.0")

"""What the tests of launches share."""

import signal
import subprocess
import sys

import pytest


@pytest.fixture
def program(tmp_path):
    """Starts a Python program of that text; it is ended with the test."""
    started = []

    def start(text, *arguments, **settings):
        path = tmp_path / f"program_{len(started)}.py"
        path.write_text(text)
        settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path, **settings}
        # Also where the tests themselves run with the signal ignored.
        settings["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
        started.append(subprocess.Popen([sys.executable, "-W", "ignore", path, *map(str, arguments)], **settings))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()

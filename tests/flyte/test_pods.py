"""Pods: the SDK's own container entry point, with the environment that the backend and the operator give."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from flyteidl2.core import execution_pb2, literals_pb2
from flyteidl2.task import common_pb2

HERE = Path(__file__).parent
try:
    ErrorDocument, ContainerError = execution_pb2.ErrorDocument, execution_pb2.ContainerError
except AttributeError:  # the first releases of flyteidl2
    from flyteidl2.core.errors_pb2 import ContainerError, ErrorDocument
RESOLVER = "flyte._internal.resolvers.default.DefaultTaskResolver"


class Pods:
    """The pods of one task: processes that share the folder in which the backend looks for outputs."""

    def __init__(self, task, folder, count, attempt="0", **inputs):
        self.outputs = folder / "outputs"
        self.outputs.mkdir(exist_ok=True)
        literals = [
            common_pb2.NamedLiteral(
                name=name,
                value=literals_pb2.Literal(scalar=literals_pb2.Scalar(primitive=literals_pb2.Primitive(integer=value))),
            )
            for name, value in inputs.items()
        ]
        (folder / "inputs.pb").write_bytes(common_pb2.Inputs(literals=literals).SerializeToString())
        environment = self.environment(count, attempt)
        self.logs = [folder / f"log-{number}" for number in range(count)]
        self.processes = []
        for log in self.logs:
            with log.open("wb") as output:
                self.processes.append(
                    subprocess.Popen(
                        [
                            *(Path(sys.executable).parent / "a0", "--inputs", folder / "inputs.pb"),
                            *("--outputs-path", self.outputs, "--version", "v", "--run-base-dir", folder / "base"),
                            *("--raw-data-path", folder / "raw", "--name", "action", "--run-name", "run"),
                            *("--project", "p", "--domain", "d", "--org", "o", "--resolver", RESOLVER),
                            *("mod", "training", "instance", task),
                        ],
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        cwd=HERE,
                        env=environment,
                    )
                )

    @staticmethod
    def environment(count, attempt):
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PET_", "FLYTE", "_F_", "_U_"))}
        # Nothing listens there: the SDK's client connects when a task calls another, and these do not.
        kept |= {"_U_EP_OVERRIDE": "dns:///localhost:1", "_U_INSECURE": "1", "FLYTE_ATTEMPT_NUMBER": attempt}
        if count == 1:
            return kept
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        return kept | {
            "PET_RDZV_ENDPOINT": f"127.0.0.1:{port}",
            "PET_RDZV_BACKEND": "c10d",
            "PET_NNODES": f"{count}:{count}",
            "PET_NPROC_PER_NODE": "2",
            "PET_MAX_RESTARTS": "0",
        }

    def end(self):
        """Waits for their ends.

        Returns:
            The exit codes, the output (None: none is written) and the error (None: none is written).
        """
        codes = [process.wait(timeout=180) for process in self.processes]
        outputs = error = None
        if (self.outputs / "outputs.pb").exists():
            found = common_pb2.Outputs.FromString((self.outputs / "outputs.pb").read_bytes())
            outputs = found.literals[0].value.scalar.primitive
        if (self.outputs / "error.pb").exists():
            error = ErrorDocument.FromString((self.outputs / "error.pb").read_bytes()).error
        return codes, outputs, error


@pytest.fixture
def pods(tmp_path):
    started = []

    def start(*arguments, **inputs):
        started.append(Pods(arguments[0], tmp_path, *arguments[1:], **inputs))
        return started[-1]

    yield start
    for group in started:
        for process, log in zip(group.processes, group.logs, strict=True):
            if process.poll() is None:
                process.kill()
                process.wait()
            print(log.read_text())


def text(value):
    return literals_pb2.Primitive(string_value=value)


def wait_for(condition, what):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_one_pod_writes_rank_zeros_result(pods):
    assert pods("asynchronous", 1, x=5).end() == ([0], text("w 10.0 of 2"), None)


def test_only_the_pod_with_rank_zero_writes_and_both_end_well(pods):
    group = pods("over_two_nodes", 2, x=5)
    assert group.end() == ([0, 0], text("rank 0: 20.0"), None)
    assert sum("uploaded outputs" in log.read_text() for log in group.logs) <= 1


def test_an_error_of_any_rank_is_told_once(pods):
    group = pods("failing_on_rank_three", 2, x=5)
    codes, outputs, error = group.end()
    assert (codes, outputs) == ([0, 0], None)
    assert error.code == "ValueError"
    assert error.message.startswith("ValueError: 5 on rank 3\nin rank 3 (local rank 1 on ")
    assert sum("Uploaded error to" in log.read_text() for log in group.logs) == 1


def test_a_users_error_can_be_tried_again_and_a_non_recoverable_one_cannot(pods):
    _, _, error = pods("failing", 1, x=7).end()
    assert (error.code, error.kind) == ("ValueError", ContainerError.RECOVERABLE)
    _, _, error = pods("not_again", 1, x=7).end()
    assert (error.code, error.kind) == ("NonRecoverableError", ContainerError.NON_RECOVERABLE)
    assert "never 7" in error.message


def test_an_error_that_an_earlier_start_left_is_cleared_before_work_starts(pods, tmp_path):
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "error.pb").write_bytes(b"stale")
    assert pods("over_two_nodes", 2, x=5).end() == ([0, 0], text("rank 0: 20.0"), None)


def test_a_retry_meets_no_closed_rendezvous(pods):
    assert pods("failing_on_rank_three", 2, x=1).end()[2].code == "ValueError"
    assert pods("over_two_nodes", 2, "1", x=5).end() == ([0, 0], text("rank 0: 20.0"), None)


def test_an_evicted_pod_writes_nothing_and_its_peers_error_can_be_tried_again(pods):
    group = pods("waiting", 2, x=5)
    wait_for(lambda: all(log.read_text().count("waits") == 2 for log in group.logs), "the ranks run")
    group.processes[1].send_signal(signal.SIGTERM)
    codes, outputs, error = group.end()
    assert (codes, outputs) == ([0, -signal.SIGTERM], None)
    assert error.kind == ContainerError.RECOVERABLE

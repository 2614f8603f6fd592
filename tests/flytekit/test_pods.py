"""Pods: flytekit's own entry point, run as the backend runs it, with the environment that the operator gives."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from flyteidl.core import errors_pb2, literals_pb2

HERE = Path(__file__).parent
RESOLVER = "flytekit.core.python_auto_container.default_task_resolver"


class Pod:
    """One pod of a task, as a process of its own with its own folders."""

    def __init__(self, task, folder, environment, inputs):
        folder.mkdir(parents=True)
        self.outputs = folder / "outputs"
        literals = {
            name: literals_pb2.Literal(scalar=literals_pb2.Scalar(primitive=primitive))
            for name, primitive in inputs.items()
        }
        (folder / "inputs.pb").write_bytes(literals_pb2.LiteralMap(literals=literals).SerializeToString())
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(Path(sys.executable).parent / "pyflyte-execute",),
                    *("--inputs", folder / "inputs.pb", "--output-prefix", self.outputs),
                    *("--raw-output-data-prefix", folder / "raw"),
                    *("--checkpoint-path", folder / "checkpoint", "--prev-checkpoint", '""', "--resolver", RESOLVER),
                    *("--", "task-module", "training", "task-name", task),
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=HERE,
                env={
                    **{key: value for key, value in os.environ.items() if not key.startswith(("PET_", "FLYTE", "_F_"))},
                    "FLYTE_INTERNAL_EXECUTION_ID": "execution-1",
                    "FLYTE_INTERNAL_EXECUTION_PROJECT": "p",
                    "FLYTE_INTERNAL_EXECUTION_DOMAIN": "d",
                    "FLYTE_ATTEMPT_NUMBER": "0",
                    **environment,
                },
            )

    def end(self):
        """Waits for the pod's end.

        Returns:
            Its exit code, its output literals by name (None: it wrote none) and its error (None: it wrote none).
        """
        code = self.process.wait(timeout=180)
        outputs = error = None
        if (self.outputs / "outputs.pb").exists():
            literals = literals_pb2.LiteralMap.FromString((self.outputs / "outputs.pb").read_bytes()).literals
            outputs = {name: literal.scalar.primitive for name, literal in literals.items()}
        if (self.outputs / "error.pb").exists():
            error = errors_pb2.ErrorDocument.FromString((self.outputs / "error.pb").read_bytes()).error
        return code, outputs, error


@pytest.fixture
def pods(tmp_path):
    started = []

    def start(task, environments, **inputs):
        group = [Pod(task, tmp_path / f"pod-{number}", env, inputs) for number, env in enumerate(environments)]
        started.extend(group)
        return group

    yield start
    for pod in started:
        if pod.process.poll() is None:
            pod.process.kill()
            pod.process.wait()
        print(pod.log.read_text())


def text(value):
    return literals_pb2.Primitive(string_value=value)


def integer(value):
    return literals_pb2.Primitive(integer=value)


def elastic_environments(pods):
    """What the operator sets on the pods of an elastic job (its workers find each other at worker-0)."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return [
        {
            "PET_RDZV_ENDPOINT": f"127.0.0.1:{port}",
            "PET_RDZV_BACKEND": "c10d",
            "PET_NNODES": f"{pods}:{pods}",
            "PET_NPROC_PER_NODE": "2",
            "PET_MAX_RESTARTS": "0",
        }
    ] * pods


def test_one_pod_with_two_ranks_writes_rank_zeros_result(pods):
    (pod,) = pods("one_node", [{}], x=integer(5))
    code, outputs, error = pod.end()
    assert (code, error) == (0, None)
    assert outputs == {"o0": integer(5)}


def test_exactly_one_of_two_pods_writes_outputs_and_the_other_ends_well(pods):
    ends = [pod.end() for pod in pods("two_nodes", elastic_environments(2), x=integer(5))]
    assert [(code, error) for code, _, error in ends] == [(0, None), (0, None)]
    written = [outputs for _, outputs, _ in ends if outputs is not None]
    assert written == [{"o0": literals_pb2.Primitive(string_value="rank 0: 20.0")}]


@pytest.mark.parametrize("recoverable", [False, True])
def test_the_error_of_a_rank_is_written_with_its_text_and_kind_by_every_pod(pods, recoverable):
    arguments = {"recoverable": literals_pb2.Primitive(boolean=recoverable)}
    ends = [pod.end() for pod in pods("fails_on_rank_one", elastic_environments(2), **arguments)]
    errors = [error for _, _, error in ends if error is not None]
    assert [outputs for _, outputs, _ in ends] == [None, None]
    text = "the lease ran out" if recoverable else "ValueError: the loss is not a number"
    assert len(errors) == 2
    for error in errors:
        assert text in error.message
        assert "in rank 1" in error.message
        assert "During handling of the above exception" not in error.message
        assert error.kind == errors_pb2.ContainerError.Kind.Value("RECOVERABLE" if recoverable else "NON_RECOVERABLE")
    assert errors[0].timestamp == errors[1].timestamp


def test_a_pod_whose_peer_is_killed_reports_what_a_retry_may_mend(pods, tmp_path):
    first, second = pods("waits_in_a_collective", elastic_environments(2), marker=text(str(tmp_path)))
    while len(list(tmp_path.glob("rank-*"))) < 4:
        assert first.process.poll() is None, first.log.read_text()
        os.sched_yield()
    # Which pod holds the rendezvous is decided by who comes first here, so that either may have to notice.
    second.process.kill()
    second.process.wait()
    code, outputs, error = first.end()
    assert (code, outputs) == (0, None)
    assert error.kind == errors_pb2.ContainerError.Kind.Value("RECOVERABLE"), error.message
    assert "NodeLostError" in error.message


def test_a_run_that_takes_too_long_is_an_error_with_the_stacks_and_the_deck_of_the_pod(pods):
    (pod,) = pods("takes_too_long", [{}])
    _, outputs, error = pod.end()
    assert outputs is None
    assert error.kind == errors_pb2.ContainerError.Kind.Value("NON_RECOVERABLE")
    assert "timeout: the run took longer than 3 s" in error.message
    assert "in takes_too_long" in error.message
    assert "LaunchTimeoutError" in (pod.outputs / "deck.html").read_text()


def test_a_pod_of_a_job_with_a_master_is_the_rank_that_the_operator_says(pods):
    environments = [{"RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
    ends = [pod.end() for pod in pods("master_and_workers", environments, x=integer(1))]
    text = literals_pb2.Primitive(string_value="rank 0 of 2: 1")
    assert ends == [(0, {"o0": text}, None), (0, None, None)]


def test_a_pod_that_no_operator_made_says_so(pods):
    (pod,) = pods("two_nodes", [{}], x=integer(5))
    _, outputs, error = pod.end()
    assert outputs is None
    assert "PET_RDZV_ENDPOINT is not set" in error.message


def test_a_rank_has_the_execution_of_its_pod(pods):
    (pod,) = pods("says_its_context", [{}])
    _, outputs, error = pod.end()
    assert error is None
    assert outputs["o0"].string_value.startswith("execution-1 ")
    assert outputs["o0"].string_value.endswith("/raw/ True")


def test_an_evicted_pod_ends_without_an_error_file(pods, tmp_path):
    pod, _ = pods("waits", elastic_environments(2), marker=literals_pb2.Primitive(string_value=str(tmp_path)))
    while len(list(tmp_path.glob("rank-*"))) < 4:
        assert pod.process.poll() is None, pod.log.read_text()
        os.sched_yield()
    pod.process.send_signal(signal.SIGTERM)
    _, outputs, error = pod.end()
    assert (outputs, error) == (None, None)

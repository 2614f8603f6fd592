"""All nodes of a group on this machine, each a process of its own, as a pod would be.

Each gets the environment that the training operator writes, and the first holds the rendezvous. A node that is killed
is started again, and so are nodes that had to give up because it held the rendezvous, as long as the plan has restarts
left: what a pod's restart policy does in a cluster.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from typing import Any

from torch.distributed.elastic.multiprocessing.api import SignalException

from flyte_torchrun.launch.agent import is_fallout, read_error
from flyte_torchrun.launch.errors import LaunchError, LaunchTerminatedError, NodeLostError, RankError, describe_exit
from flyte_torchrun.launch.files import RunFolder
from flyte_torchrun.launch.node import ending_on_signals, run_node
from flyte_torchrun.launch.output import ProcessOutput
from flyte_torchrun.launch.plan import LaunchPlan
from flyte_torchrun.launch.processes import Supervised, end, wait, wait_for_all
from flyte_torchrun.launch.rank import Surroundings, take_over_output
from flyte_torchrun.launch.timeline import Recorder, TimelineEvent

__all__ = ["NODE_PID_VARIABLE", "run_nodes"]

# In the environment of a rank of several nodes on one machine: the process of its node, such as to kill it.
NODE_PID_VARIABLE = "FLYTE_TORCHRUN_NODE_PID"

_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_TO_END = 7.0  # beyond the grace of its ranks, for a node whose group has failed
# On one machine a lost node is noticed sooner than torch's 15 s.
_KEEP_ALIVE = {"keep_alive_interval": 1, "keep_alive_max_attempt": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeAssignment:
    """What one node's process is to do."""

    plan: LaunchPlan
    nproc: int
    folder: RunFolder
    surroundings: Surroundings
    variables: dict[str, str]
    output: tuple[Any, ...]
    outcome: Any
    first_attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """How a node ended."""

    error: LaunchError | None = None
    timeline: tuple[TimelineEvent, ...] = ()


class _Node(Supervised):
    """The process of one node, in one of its starts."""

    def __init__(self, assignment: _NodeAssignment, output: ProcessOutput) -> None:
        self.assignment = assignment
        self.index = assignment.plan.node_rank or 0
        super().__init__("forkserver", _run_in_process, assignment, f"node-{self.index}", output)

    def outcome(self) -> _Outcome | None:
        """How it ended; None: it was killed."""
        try:
            outcome = pickle.loads(self.assignment.outcome.read_bytes())
        except FileNotFoundError:
            return None
        assert isinstance(outcome, _Outcome)
        return outcome


def run_nodes(plan: LaunchPlan, nproc: int, folder: RunFolder, recorder: Recorder) -> None:
    """Runs all nodes, and waits for them.

    Args:
        plan: the group; its `nodes` run here.
        nproc: how many ranks each node runs.
        folder: where inputs, result and errors lie.
        recorder: takes the events of all nodes.

    Raises:
        LaunchError: as `launch` says.
    """
    folder.expect(None)
    with _reserved_port() as port:
        group = _Group(plan, nproc, folder, recorder, port)
        try:
            group.run()
        except SignalException as error:
            raise LaunchTerminatedError(error.sigval) from None
        finally:
            group.end()


class _Group:
    """The nodes of one run."""

    def __init__(self, plan: LaunchPlan, nproc: int, folder: RunFolder, recorder: Recorder, port: int) -> None:
        self._plan = plan
        self._nproc = nproc
        self._folder = folder
        self._recorder = recorder
        self._endpoint = f"127.0.0.1:{port}"
        self._surroundings = Surroundings.current()
        self._losses = 0
        self._is_ending = False
        self._starts = 0
        self._nodes: list[_Node] = []
        self._errors: list[LaunchError] = []

    def run(self) -> None:
        """Starts the nodes and waits for them."""
        self._nodes = [self._start(index) for index in range(self._plan.nodes)]
        running = list(self._nodes)
        while running:
            wait(running, _SECONDS_BETWEEN_LOOKS)
            for node in [node for node in running if node.exit_code is not None]:
                running.remove(node)
                if self._is_to_be_started_again(node):
                    running.append(self._start(node.index))
                    self._nodes.append(running[-1])
            if self._errors and running:
                # The others know as well, or will soon see that a node is gone.
                wait_for_all(running, self._plan.shutdown_grace + _SECONDS_TO_END)
                self._is_ending = True
                end(running, signal.SIGTERM, self._plan.shutdown_grace)
                for node in running:
                    self._is_to_be_started_again(node)
                running = []
        if self._errors:
            raise min(self._errors, key=_weight)

    def end(self) -> None:
        """Ends whatever is left of the nodes and their ranks."""
        end([node for node in self._nodes if not node.is_closed], signal.SIGTERM, self._plan.shutdown_grace + 5.0)
        for node in self._nodes:
            node.close_output()
            self._kill_ranks(node.index)

    def _start(self, index: int) -> _Node:
        plan = replace(
            self._plan,
            nodes=1,
            node_rank=index,
            rdzv_endpoint=self._endpoint,
            rdzv_configs={**_KEEP_ALIVE, **self._plan.rdzv_configs},
        )
        path = self._folder.of_node(index, self._starts)
        self._starts += 1
        output = ProcessOutput(path, "")
        assignment = _NodeAssignment(
            plan=plan,
            nproc=self._nproc,
            folder=self._folder,
            surroundings=self._surroundings,
            variables=_variables(plan, self._nproc),
            output=output.pipes,
            outcome=path.with_name(f"{path.name}.outcome"),
            first_attempt=self._losses,
        )
        return _Node(assignment, output)

    def _is_to_be_started_again(self, node: _Node) -> bool:
        """Takes over how the node ended; whether that is no reason to end the group."""
        node.close_output()
        self._kill_ranks(node.index)
        outcome = node.outcome()
        if outcome is None or isinstance(outcome.error, LaunchTerminatedError):
            if self._is_ending:
                return False
            self._losses += 1
            if outcome is None:
                kind, _ = describe_exit(node.exit_code or 0)
                text = f"node {node.index} was lost: its process ended by {kind}"
            else:
                self._recorder.events += outcome.timeline
                text = f"node {node.index} was lost: {outcome.error}"
            self._recorder.mark("lost node", attempt=node.assignment.first_attempt, detail=text)
            if self._losses <= self._plan.max_restarts and not self._errors:
                return True
            self._errors.append(NodeLostError(text))
            return False
        self._recorder.events += outcome.timeline
        if outcome.error is None:
            return False
        is_for_a_lost_node = isinstance(outcome.error, NodeLostError) and self._losses > 0
        if is_for_a_lost_node and self._losses <= self._plan.max_restarts and not self._errors:
            return True
        self._errors.append(_with_cause(outcome.error, self._folder))
        return False

    def _kill_ranks(self, index: int) -> None:
        """Ends the ranks of a node that is gone, as the end of a pod does; a node that ended well has none left."""
        for group in self._folder.registered(index):
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


def _with_cause(error: LaunchError, folder: RunFolder) -> LaunchError:
    """The error with the user's own exception, which its rank has left in the run's folder."""
    if isinstance(error, RankError):
        return read_error(folder.of_rank(error.attempt, error.rank).error) or error
    return error


def _weight(error: LaunchError) -> tuple[int, float]:
    """What says most about the cause comes first."""
    if isinstance(error, RankError):
        return (2 if is_fallout(error) else 0), error.timestamp
    return (3 if isinstance(error, NodeLostError) else 1), 0.0


def _variables(plan: LaunchPlan, nproc: int) -> dict[str, str]:
    """What the training operator writes into a pod of an elastic job (as of 1.9.3)."""
    return {
        "PYTHONUNBUFFERED": "1",
        "PET_RDZV_ENDPOINT": str(plan.rdzv_endpoint),
        "PET_RDZV_BACKEND": plan.rdzv_backend,
        "PET_NNODES": f"{plan.min_nodes}:{plan.max_nodes}",
        "PET_NPROC_PER_NODE": str(nproc),
        "PET_MAX_RESTARTS": str(plan.max_restarts),
    }


@contextmanager
def _reserved_port() -> Iterator[int]:
    """A free port that nobody else gets while the first node is not yet listening on it, or is started again."""
    with socket.socket() as holder:
        # Bound, not listening: with this option a second socket may bind the port and listen, as torch's store does.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def _run_in_process(assignment: _NodeAssignment) -> None:
    """The main function of a node's process."""
    os.setpgid(0, 0)
    try:
        take_over_output(assignment.output)
        assignment.folder.register(None)
    except OSError:
        os._exit(1)  # the launcher is gone
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    assignment.surroundings.take_over({**assignment.variables, NODE_PID_VARIABLE: str(os.getpid())})
    _share_the_server()
    recorder = Recorder(node=assignment.plan.node_rank)
    failure = None
    try:
        with ending_on_signals(is_one_node=False, is_raised_again=False):
            run_node(
                assignment.plan,
                assignment.nproc,
                assignment.folder,
                recorder,
                first_attempt=assignment.first_attempt,
            )
    except LaunchError as error:
        failure = error
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        raise
    outcome = _Outcome(error=failure, timeline=recorder.timeline())
    part = assignment.outcome.with_suffix(".part")
    part.write_bytes(pickle.dumps(outcome))
    part.rename(assignment.outcome)


def _share_the_server() -> None:
    """Has the ranks of this node forked from the server that this process was forked from.

    multiprocessing means to do so, but starts another server, since it knows the process of its own only.
    """
    server: Any = getattr(forkserver, "_forkserver", None)
    if server is not None and server._forkserver_address is not None and server._forkserver_pid is None:
        server.ensure_running = lambda: None

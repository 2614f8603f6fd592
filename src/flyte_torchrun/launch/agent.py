"""The agent of one node: torch elastic's, with ranks that are started and ended here.

torch's SimpleElasticAgent brings rendezvous, restarts and the assignment of ranks; what it leaves to its subclasses is
how ranks are started, watched and ended. torch's own subclass passes results through queues and looks at the ranks once
per interval; this one waits for the end of any process and passes nothing.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import time
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.events.api import Event, EventSource
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from flyte_torchrun.launch.agreement import Round
from flyte_torchrun.launch.errors import LaunchError, LaunchTimeoutError, NodeLostError, RankError, describe_exit
from flyte_torchrun.launch.files import RunFolder
from flyte_torchrun.launch.output import ProcessOutput
from flyte_torchrun.launch.plan import LaunchPlan, usable_cpus
from flyte_torchrun.launch.processes import RankProcess, end, wait
from flyte_torchrun.launch.rank import Assignment, Surroundings
from flyte_torchrun.launch.rendezvous import is_host, reporting_progress
from flyte_torchrun.launch.timeline import Recorder

__all__ = ["Agent", "is_fallout", "read_error"]

# How long a node whose ranks only lost their peers waits for the node that knows why.
_SECONDS_FOR_THE_CAUSE = 5.0
# How long a node may show nothing before it counts as lost, beyond the grace in which it may be busy ending ranks.
_SECONDS_UNTIL_LOST = 15.0
_SECONDS_FOR_STACKS = 2.0
_SECONDS_FOR_LEAVING = 5.0
_SECONDS_BETWEEN_LOOKS = 0.02

# What a rank sees when a peer is gone: never the cause, as long as another rank has a better one.
_FALLOUT_TYPES = {"DistBackendError", "DistNetworkError", "DistStoreError", "ConnectionError", "BrokenPipeError"}
_FALLOUT_TEXTS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed")


class Agent(SimpleElasticAgent):
    """Starts, watches and ends the ranks of one node.

    Attributes:
        attempt: how often the group has been restarted; the same on every node.
    """

    def __init__(
        self, spec: WorkerSpec, plan: LaunchPlan, folder: RunFolder, recorder: Recorder, node: int, first_attempt: int
    ) -> None:
        super().__init__(spec)
        self._plan = plan
        self._folder = folder
        self._recorder = recorder
        self._node = node
        self._surroundings = Surroundings.current()
        self._ranks: list[RankProcess] = []
        self._deaths: list[RankError] = []
        self._round: Any = None
        self._started_at = time.monotonic()
        self._first_end: float | None = None
        self.attempt = first_attempt - 1
        self._has_lost_a_node = False
        self._makes_room = False
        folder.expect(node)

    @property
    def has_started(self) -> bool:
        """Whether this node has started ranks."""
        return bool(self._ranks)

    @property
    def holds_rank_zero(self) -> bool:
        """Whether global rank 0 is among the ranks that were started last."""
        return any(rank.assignment.rank == 0 for rank in self._ranks)

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        with self._recorder.span("rendezvous", attempt=self.attempt + 1), reporting_progress(self._plan):
            super()._rendezvous(worker_group)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._round = Round(worker_group.store, worker_group.group_rank or 0, worker_group.group_world_size or 1)
        failures = self._plan.max_restarts - self._remaining_restarts
        start = self._round.begin(self.attempt + 1, failures, worker_group.spec.local_addr or "127.0.0.1")
        if self.attempt >= 0:
            reason = str(self.first_error()).split("\n")[0] if self._ranks and self._deaths else "a node came or left"
            self._recorder.mark("restart", attempt=start.attempt, detail=reason)
        self.attempt = start.attempt
        # torch counts on each node only what failed there.
        self._remaining_restarts = max(self._plan.max_restarts - start.failures, 0)
        self._deaths = []
        self._first_end = None
        threads, given = self._threads(worker_group)
        self._ranks = []
        # A forked rank waits until all are forked: the store's thread, which answers it, might hold a lock meanwhile,
        # that the next rank would inherit locked for ever.
        gate = os.pipe() if self._plan.start_method == "fork" else None
        try:
            for worker in worker_group.workers:
                variables = self._variables(worker_group, worker, (start.address, start.port))
                if not given:
                    variables["OMP_NUM_THREADS"] = str(threads)
                self._ranks.append(self._start_rank(worker, variables, threads, gate))
        finally:
            for descriptor in gate or ():
                os.close(descriptor)
        return {rank.assignment.local_rank: rank.pid for rank in self._ranks}

    def _start_rank(
        self, worker: Any, variables: dict[str, str], threads: int, gate: tuple[int, int] | None
    ) -> RankProcess:
        rank, attempt, plan = worker.global_rank, self.attempt, self._plan
        files = self._folder.of_rank(attempt, rank)
        files.clear()
        output = ProcessOutput(
            files.path,
            f"[rank {rank}] ",
            is_shown=plan.log_ranks is None or rank in plan.log_ranks,
            log_folder=None if plan.log_dir is None else Path(plan.log_dir, f"attempt_{attempt}", f"rank_{rank}"),
        )
        assignment = Assignment(
            folder=self._folder.path,
            surroundings=self._surroundings,
            node=self._node,
            pipes=output.pipes,
            rank=rank,
            local_rank=worker.local_rank,
            attempt=attempt,
            variables=variables,
            threads=threads,
            start_method=plan.start_method,
            preload=plan.preload,
            collective_timeout=plan.nccl_collective_timeout_sec,
            gate=gate,
        )
        return RankProcess(assignment, output)

    def _threads(self, worker_group: WorkerGroup) -> tuple[int, bool]:
        """Threads of each rank, and whether the environment says so."""
        given = self._surroundings.environment.get("OMP_NUM_THREADS", "")
        if given.isdigit() and int(given) > 0:
            threads = int(given)
        else:
            threads = self._plan.omp_num_threads or max(1, usable_cpus() // worker_group.spec.local_world_size)
        if self._plan.start_method == "fork":
            # The threads of this process's OpenMP do not survive a fork, and a rank that waited for them would hang.
            threads = 1
        return threads, bool(given)

    def _variables(self, worker_group: WorkerGroup, worker: Any, master: tuple[str, int]) -> dict[str, str]:
        """What torchrun sets in each rank's environment, and the options of NCCL that the environment does not set."""
        spec, plan = worker_group.spec, self._plan
        variables = {
            "RANK": worker.global_rank,
            "LOCAL_RANK": worker.local_rank,
            "GROUP_RANK": worker_group.group_rank,
            "ROLE_RANK": worker.role_rank,
            "ROLE_NAME": spec.role,
            "WORLD_SIZE": worker.world_size,
            "LOCAL_WORLD_SIZE": spec.local_world_size,
            "GROUP_WORLD_SIZE": worker_group.group_world_size,
            "ROLE_WORLD_SIZE": worker.role_world_size,
            "MASTER_ADDR": master[0],
            "MASTER_PORT": master[1],
            "TORCHELASTIC_RESTART_COUNT": self.attempt,
            "TORCHELASTIC_MAX_RESTARTS": spec.max_restarts,
            "TORCHELASTIC_RUN_ID": spec.rdzv_handler.get_run_id(),
            "TORCHELASTIC_USE_AGENT_STORE": True,
        }
        monitoring = plan.nccl_enable_monitoring
        nccl = {
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": 0 if plan.nccl_async_error_handling is False else 1,
            "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": plan.nccl_heartbeat_timeout_sec,
            "TORCH_NCCL_ENABLE_MONITORING": None if monitoring is None else int(monitoring),
        }
        given = self._surroundings.environment
        variables |= {name: value for name, value in nccl.items() if value is not None and name not in given}
        return {name: str(value) for name, value in variables.items()}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        wait(self._ranks, self._plan.monitor_interval)
        ended = [rank for rank in self._ranks if rank.exit_code is not None]
        for rank in ended:
            is_known = any(death.rank == rank.assignment.rank for death in self._deaths)
            # A crash of native code while the process ends after its function returned is no failure.
            if not is_known and rank.assignment.files.ended_at() is None:
                self._deaths.append(self._death(rank))
        if self._deaths:
            self._agree_with_other_nodes()
            return self._failed()
        if error := self._round.failure():
            raise error
        if len(ended) == len(self._ranks):
            # The group has ended well only when all nodes have: until then one of them may start it again.
            self._round.tell_done()
            if self._round.all_are_done():
                values = {rank.assignment.rank: None for rank in self._ranks}
                return RunResult(state=WorkerState.SUCCEEDED, return_values=values)
        self._check_time(ended)
        self._round.beat()
        if lost := self._round.silent(self._plan.shutdown_grace + _SECONDS_UNTIL_LOST):
            if self._remaining_restarts > 0:
                return self._failed()
            raise self._told(NodeLostError(f"node {lost[0]} of the group has shown no sign of life"))
        return RunResult(state=WorkerState.HEALTHY)

    def leave(self) -> None:
        """Ends this node's part in the rendezvous.

        The node that holds the store stays until the others have left, so that they learn what it told them.
        """
        handler: Any = self._worker_group.spec.rdzv_handler
        if self._makes_room:
            # To close the rendezvous would end the group, which may go on with another node in this one's place.
            getattr(handler, "_stop_heartbeats", lambda: None)()
            return
        handler.shutdown()
        if self._round is None or self._round.is_alone:
            return
        deadline = time.monotonic() + _SECONDS_FOR_LEAVING
        with contextlib.suppress(RuntimeError):  # the store is gone: so all have left
            self._round.tell_left()
            is_holder = is_host(self._plan) is not False and not self._has_lost_a_node
            while is_holder and not self._round.all_have_left() and time.monotonic() < deadline:
                time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _failed(self) -> RunResult:
        failures = {death.rank: ProcessFailure(death.local_rank, 0, death.exit_code or 1, "") for death in self._deaths}
        return RunResult(state=WorkerState.FAILED, failures=failures)

    def _check_time(self, ended: list[RankProcess]) -> None:
        now, plan = time.monotonic(), self._plan
        if plan.timeout is not None and now - self._started_at > plan.timeout:
            raise self._told(self._timeout(f"timeout: the run took longer than {plan.timeout:g} s"))
        if plan.hang_timeout is None:
            return
        if ended:
            self._round.tell_first_end()
        if self._first_end is None and (ended or self._round.has_first_end()):
            self._first_end = now
        running = [rank for rank in self._ranks if rank.exit_code is None]
        if self._first_end is not None and now - self._first_end > plan.hang_timeout and running:
            first = f"rank {ended[0].assignment.rank}" if ended else "a rank of another node"
            names = ", ".join(str(rank.assignment.rank) for rank in running)
            text = f"hang_timeout: {first} ended, and {plan.hang_timeout:g} s later ranks {names} still ran"
            raise self._told(self._timeout(text))

    def _timeout(self, text: str) -> LaunchTimeoutError:
        """The error, with what the ranks are doing: they write that down when they are asked to."""
        running = [rank for rank in self._ranks if rank.exit_code is None]
        for rank in running:
            rank.ask_for_stacks()
        deadline = time.monotonic() + _SECONDS_FOR_STACKS
        while not all(rank.has_left_stacks() for rank in running) and time.monotonic() < deadline:
            wait(running, 0.05)
        return LaunchTimeoutError(text, {rank.assignment.rank: rank.stacks() for rank in running})

    def _death(self, rank: RankProcess) -> RankError:
        code = rank.exit_code or 0
        kind, message = describe_exit(code, rank.memory())
        return RankError(
            exception_type=kind,
            message=message,
            rank=rank.assignment.rank,
            local_rank=rank.assignment.local_rank,
            host=socket.gethostname(),
            attempt=self.attempt,
            timestamp=rank.ended_at or time.time(),
            exit_code=code,
        )

    def _agree_with_other_nodes(self) -> None:
        """Once no restart is left: raises what another node told first, or tells the others, who would wait in vain."""
        if self._round.is_alone or self._remaining_restarts > 0:
            return
        mine = self.first_error()
        try:
            deadline = time.monotonic() + (_SECONDS_FOR_THE_CAUSE if is_fallout(mine) else 0)
            while (theirs := self._round.failure()) is None and time.monotonic() < deadline:
                self._round.beat()
                self._round.silent(0)
                time.sleep(self._plan.monitor_interval)
            if theirs is None:
                if is_fallout(mine) and self._round.silent(_SECONDS_FOR_THE_CAUSE / 2):
                    theirs = NodeLostError(f"a node of the group is gone; here {mine}")
                self._told(theirs or mine)
        except RuntimeError as error:
            # The node that held the store is gone. This node's own error is what is left to report, if it is one.
            if is_fallout(mine):
                raise NodeLostError(f"the node that held the rendezvous is gone ({error}); here {mine}") from error
            return
        if theirs is not None:
            raise theirs

    def _told(self, error: LaunchError) -> LaunchError:
        """The error, after the other nodes were told."""
        self._has_lost_a_node = isinstance(error, NodeLostError)
        self._round.tell_failure(error)
        return error

    def first_error(self) -> RankError:
        """The failure that was first on this node, of those that are no consequence of another."""
        records = [read_error(rank.assignment.files.error) for rank in self._ranks]
        found = {error.rank: error for error in records if error is not None}
        found |= {death.rank: death for death in self._deaths if death.rank not in found}
        return min(found.values(), key=lambda error: (is_fallout(error), error.timestamp))

    @property
    def has_error_of_its_own(self) -> bool:
        """Whether a rank of this node failed, and not for the loss of a peer."""
        return bool(self._deaths) and not is_fallout(self.first_error())

    def _invoke_run(self, role: str = "default") -> RunResult:
        try:
            return super()._invoke_run(role)
        except SignalException as error:
            self._makes_room = self._round is not None and not self._round.is_alone and self._remaining_restarts > 0
            if self._round is not None and not self._makes_room:
                with contextlib.suppress(RuntimeError):  # the node that holds the store may be gone
                    self._told(NodeLostError(f"{socket.gethostname()} was asked to end by {error.sigval.name}"))
            raise

    def _stop_workers(self, worker_group: WorkerGroup, is_restart: bool = False) -> None:
        self._shutdown()

    def _shutdown(
        self,
        death_sig: signal.Signals = signal.SIGTERM,
        timeout: float | None = None,
        is_restart: bool = False,
    ) -> None:
        remaining = [rank for rank in self._ranks if not rank.is_closed]
        if not remaining:
            return
        start, is_needed = time.time(), any(rank.exit_code is None for rank in remaining)
        end(remaining, death_sig, self._plan.shutdown_grace)
        if is_needed:
            self._recorder.add("end of ranks", start, time.time(), attempt=self.attempt)
        for rank in remaining:
            rank.close(self._recorder)

    # The nodes wait for each other in _monitor_workers, where a restart is still possible.
    def _exit_barrier(self) -> None:
        pass

    # torch reports events to a log that nobody reads here, and asks the name service for this host's name each time.
    def _construct_event(self, state: str, source: EventSource, *_: Any, **__: Any) -> Event:
        return Event(f"torchelastic.worker.status.{state}", source)

    def _record_worker_events(self, result: RunResult) -> None:
        pass


def read_error(path: Path) -> RankError | None:
    """What a rank left as its error; None: nothing."""
    if not path.exists():
        return None
    record, pickled = pickle.loads(path.read_bytes())
    error = RankError(**record)
    if pickled is not None:
        try:
            error.__cause__ = pickle.loads(pickled)
        except Exception:
            error.__cause__ = None  # its class cannot be rebuilt in this process
    return error


def is_fallout(error: RankError) -> bool:
    """Whether this is what a rank sees when a peer is gone."""
    return error.exception_type in _FALLOUT_TYPES or any(text in error.message for text in _FALLOUT_TEXTS)

"""The agent of one node: torch elastic's, with ranks that are started and ended here.

torch's SimpleElasticAgent brings rendezvous, restarts and the barrier at the end; what it leaves to its subclasses is
how ranks are started, watched and ended. torch's own subclass passes results through queues and looks at the ranks once
per interval; this one waits for the end of any process and passes nothing.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import time
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.events.api import Event, EventSource
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from flyte_torchrun.launch.errors import LaunchTimeoutError, RankError, describe_exit
from flyte_torchrun.launch.files import RunFolder
from flyte_torchrun.launch.plan import LaunchPlan, usable_cpus
from flyte_torchrun.launch.processes import RankProcess, end, wait
from flyte_torchrun.launch.rank import Assignment, Surroundings

__all__ = ["Agent"]

# Where the first node tells the others, in the store of this round of the rendezvous, which store the ranks use.
_STORE_KEY = "flyte_torchrun/store"
# Where a node tells the others, in the group's store, that it failed for good.
_FAILURE_KEY = "flyte_torchrun/failure"
_LONGEST_TRACEBACK = 2**16
_LOOKS_BEFORE_LEAVING = 10
# How long a node whose ranks only lost their peers waits for the node that knows why.
_SECONDS_FOR_THE_CAUSE = 5.0

# What a rank sees when a peer is gone: never the cause, as long as another rank has a better one.
_FALLOUT_TYPES = {"DistBackendError", "DistNetworkError", "DistStoreError", "ConnectionError", "BrokenPipeError"}
_FALLOUT_TEXTS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Socket closed")


class Agent(SimpleElasticAgent):
    """Starts, watches and ends the ranks of one node.

    Attributes:
        attempt: how often the group has been restarted.
    """

    def __init__(self, spec: WorkerSpec, plan: LaunchPlan, folder: RunFolder) -> None:
        super().__init__(spec)
        self._plan = plan
        self._folder = folder
        self._surroundings = Surroundings.current()
        self._ranks: list[RankProcess] = []
        self._deaths: list[RankError] = []
        self._store_of_the_ranks: Any = None
        self._started_at = time.monotonic()
        self._first_end: float | None = None
        self.attempt = -1

    @property
    def holds_rank_zero(self) -> bool:
        """Whether global rank 0 is among the ranks that were started last."""
        return any(rank.assignment.rank == 0 for rank in self._ranks)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        # Counted here, since torch does not count a restart for a new node.
        self.attempt += 1
        self._deaths = []
        self._first_end = None
        threads, given = self._threads(worker_group)
        master = self._new_store(worker_group)
        self._ranks = []
        for worker in worker_group.workers:
            variables = self._variables(worker_group, worker, master)
            if not given:
                variables["OMP_NUM_THREADS"] = str(threads)
            assignment = Assignment(
                folder=self._folder.path,
                surroundings=self._surroundings,
                rank=worker.global_rank,
                local_rank=worker.local_rank,
                attempt=self.attempt,
                variables=variables,
                threads=threads,
                start_method=self._plan.start_method,
                preload=self._plan.preload,
            )
            self._ranks.append(RankProcess(assignment))
        return {rank.assignment.local_rank: rank.pid for rank in self._ranks}

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

    def _new_store(self, worker_group: Any) -> tuple[str, str]:
        """Address and port of a store for the ranks, held by the first node's agent, a new one for every start.

        torch would have the ranks share the store of the rendezvous, in which a restarted group finds the addresses of
        the one before, or choose a port that somebody else may take until rank 0 listens on it.
        """
        distributed: Any = torch.distributed
        if worker_group.group_rank == 0:
            address = worker_group.spec.local_addr
            self._store_of_the_ranks = distributed.TCPStore(address, 0, is_master=True, wait_for_workers=False)
            worker_group.store.set(_STORE_KEY, f"{address} {self._store_of_the_ranks.port}")
        address, port = worker_group.store.get(_STORE_KEY).decode().split()
        return address, port

    def _variables(self, worker_group: WorkerGroup, worker: Any, master: tuple[str, str]) -> dict[str, str]:
        """What torchrun sets in each rank's environment."""
        spec = worker_group.spec
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
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        }
        return {name: str(value) for name, value in variables.items()}

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        wait(self._ranks, self._plan.monitor_interval)
        ended = [rank for rank in self._ranks if rank.exit_code is not None]
        for rank in ended:
            if not self._is_complete(rank) and all(death.rank != rank.assignment.rank for death in self._deaths):
                self._deaths.append(self._death(rank))
        if self._deaths:
            self._agree_with_other_nodes()
            failures = {
                death.rank: ProcessFailure(death.local_rank, 0, death.exit_code or 1, "") for death in self._deaths
            }
            return RunResult(state=WorkerState.FAILED, failures=failures)
        if len(ended) == len(self._ranks):
            values = {rank.assignment.rank: None for rank in self._ranks}
            return RunResult(state=WorkerState.SUCCEEDED, return_values=values)
        self._check_time(ended)
        if error := self._failure_elsewhere():
            raise error
        return RunResult(state=WorkerState.HEALTHY)

    def _is_complete(self, rank: RankProcess) -> bool:
        """Whether the function returned: a crash of native code while the process ends after that is no failure."""
        return self._folder.end(self.attempt, rank.assignment.rank).exists()

    def _check_time(self, ended: list[RankProcess]) -> None:
        now = time.monotonic()
        if self._plan.timeout is not None and now - self._started_at > self._plan.timeout:
            raise LaunchTimeoutError(f"timeout: the run took longer than {self._plan.timeout} s")
        if ended and self._first_end is None:
            self._first_end = now
        bound = self._plan.hang_timeout
        if bound is not None and self._first_end is not None and now - self._first_end > bound:
            running = ", ".join(str(rank.assignment.rank) for rank in self._ranks if rank.exit_code is None)
            raise LaunchTimeoutError(
                f"hang_timeout: rank {ended[0].assignment.rank} ended, and {bound} s later ranks {running} still ran"
            )

    def _death(self, rank: RankProcess) -> RankError:
        code = rank.exit_code or 0
        kind, message = describe_exit(code)
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
        group: Any = self._worker_group
        if group.group_world_size == 1 or self._remaining_restarts > 0:
            return
        mine = self.first_error()
        try:
            deadline = time.monotonic() + (_SECONDS_FOR_THE_CAUSE if _is_fallout(mine) else 0)
            while (theirs := self._failure_elsewhere()) is None and time.monotonic() < deadline:
                time.sleep(self._plan.monitor_interval)
            if theirs is None:
                record = {**vars(mine), "traceback": mine.traceback[-_LONGEST_TRACEBACK:]}
                group.store.set(_FAILURE_KEY, json.dumps(record))
                time.sleep(_LOOKS_BEFORE_LEAVING * self._plan.monitor_interval)  # the store may end with this node
        except RuntimeError:
            return  # the node that held the store is gone: this node's own error is what is left to report
        if theirs is not None:
            raise theirs

    def _failure_elsewhere(self) -> RankError | None:
        group: Any = self._worker_group
        if group.group_world_size == 1 or not group.store.check([_FAILURE_KEY]):
            return None
        return RankError(**json.loads(group.store.get(_FAILURE_KEY)))

    def first_error(self) -> RankError:
        """The failure that was first on this node, of those that are no consequence of another."""
        records: dict[int, RankError] = {}
        for rank in self._ranks:
            path = self._folder.error(self.attempt, rank.assignment.rank)
            if path.exists():
                records[rank.assignment.rank] = _read_error(path)
        found = [*records.values(), *(death for death in self._deaths if death.rank not in records)]
        return min(found, key=lambda error: (_is_fallout(error), error.timestamp))

    def _stop_workers(self, worker_group: WorkerGroup, is_restart: bool = False) -> None:
        self._shutdown()

    def _shutdown(
        self,
        death_sig: signal.Signals = signal.SIGTERM,
        timeout: float | None = None,
        is_restart: bool = False,
    ) -> None:
        end(self._ranks, death_sig, self._plan.shutdown_grace)

    # torch reports events to a log that nobody reads here, and asks the name service for this host's name each time.
    def _construct_event(self, state: str, source: EventSource, *_: Any, **__: Any) -> Event:
        return Event(f"torchelastic.worker.status.{state}", source)

    def _record_worker_events(self, result: RunResult) -> None:
        pass


def _read_error(path: Path) -> RankError:
    record, pickled = pickle.loads(path.read_bytes())
    error = RankError(**record)
    if pickled is not None:
        try:
            error.__cause__ = pickle.loads(pickled)
        except Exception:
            error.__cause__ = None  # its class cannot be rebuilt in this process
    return error


def _is_fallout(error: RankError) -> bool:
    return error.exception_type in _FALLOUT_TYPES or any(text in error.message for text in _FALLOUT_TEXTS)

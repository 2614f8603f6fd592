"""One node of a group: rendezvous, agent and ranks, in this process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)

from flyte_torchrun.launch.agent import Agent
from flyte_torchrun.launch.errors import (
    LaunchError,
    LaunchTerminatedError,
    LaunchTimeoutError,
    NodeLostError,
    RendezvousError,
)
from flyte_torchrun.launch.files import RunFolder
from flyte_torchrun.launch.plan import LaunchPlan
from flyte_torchrun.launch.rendezvous import local_address, make_rendezvous, split_endpoint
from flyte_torchrun.launch.timeline import Recorder

__all__ = ["ending_on_signals", "run_node"]


def run_node(plan: LaunchPlan, nproc: int, folder: RunFolder, recorder: Recorder, *, first_attempt: int = 0) -> bool:
    """Runs this node's ranks.

    Args:
        plan: the group, of which this process is one node.
        nproc: how many ranks run here.
        folder: where inputs, result and errors lie.
        recorder: takes the events of this node.
        first_attempt: how often the group is known to have been started before.

    Returns:
        Whether global rank 0 was among them.

    Raises:
        LaunchError: as `launch` says.
    """
    agent = None
    address = local_address(plan)
    try:
        handler = make_rendezvous(plan, address)
        try:
            spec = WorkerSpec(
                role="default",
                local_world_size=nproc,
                entrypoint=run_node,  # torch wants to know one; the agent starts the ranks itself
                rdzv_handler=handler,
                max_restarts=plan.max_restarts,
                monitor_interval=1e-3,  # the agent itself waits for the ranks, up to the plan's interval
                local_addr=address,
                **_static_master(plan),
            )
            agent = Agent(spec, plan, folder, recorder, plan.node_rank or 0, first_attempt)
            result = agent.run()
        finally:
            (handler.shutdown if agent is None else agent.leave)()
    except (DistNetworkError, DistStoreError) as error:
        if agent is not None and agent.has_error_of_its_own:
            raise agent.first_error() from error
        raise NodeLostError(f"the node that holds the rendezvous at {plan.rdzv_endpoint} is gone: {error}") from error
    except SignalException as error:
        raise LaunchTerminatedError(error.sigval) from None
    except (RendezvousClosedError, RendezvousConnectionError, RendezvousTimeoutError) as error:
        if isinstance(error, RendezvousConnectionError) and agent is not None and agent.has_started:
            raise NodeLostError(
                f"the node that holds the rendezvous at {plan.rdzv_endpoint} is gone: {error}"
            ) from error
        raise _rendezvous_error(plan, error) from error
    if result is None:
        raise RendezvousError(f"the group at {plan.rdzv_endpoint} had ended before this node joined it")
    if result.is_failed():
        failure = agent.first_error()
        raise failure from failure.__cause__
    return agent.holds_rank_zero


def _rendezvous_error(plan: LaunchPlan, error: Exception) -> LaunchError:
    if plan.timeout is not None and plan.timeout <= plan.join_timeout and isinstance(error, RendezvousTimeoutError):
        return LaunchTimeoutError(
            f"timeout: the nodes did not find each other at {plan.rdzv_endpoint} within {plan.timeout:g} s"
        )
    wanted = f"{plan.min_nodes} nodes" if plan.min_nodes == plan.max_nodes else f"{plan.min_nodes} nodes at least"
    return RendezvousError(
        f"{wanted} did not find each other at the rendezvous {plan.rdzv_endpoint}: {type(error).__name__}: {error}."
        f" This node waited up to join_timeout = {plan.join_timeout:g} s for the others, and up to read_timeout ="
        f" {plan.read_timeout:g} s for an answer of the store; set join_timeout higher if the others start later"
    )


def _static_master(plan: LaunchPlan) -> dict[str, Any]:
    if plan.rdzv_backend != "static" or plan.rdzv_endpoint is None:
        return {}
    host, port = split_endpoint(plan.rdzv_endpoint)
    return {"master_addr": host, "master_port": port}


@contextmanager
def ending_on_signals(*, is_one_node: bool, is_raised_again: bool = True) -> Iterator[None]:
    """Makes SIGTERM and SIGINT end the ranks first; the environment and the handlers are afterwards as they were.

    Args:
        is_one_node: whether torch's rendezvous is not used.
        is_raised_again: whether the signal is raised again, after the ranks have ended, for the caller's own handler.
    """
    name, value = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"
    # torch's own default keeps what the first round of a rendezvous agreed on, and later rounds then wait in vain.
    is_added = not is_one_node and os.environ.setdefault(name, value) is value
    is_main = threading.current_thread() is threading.main_thread()
    # A signal that the caller ignores, as a program under nohup does, goes on being ignored.
    numbers = [n for n in (signal.SIGTERM, signal.SIGINT) if is_main and signal.getsignal(n) is not signal.SIG_IGN]
    handlers = {number: signal.signal(number, _raise_exception) for number in numbers}
    received = None
    try:
        yield
    except LaunchTerminatedError as error:
        received = error
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        if is_added:
            os.environ.pop(name, None)
        if received is not None and is_raised_again:
            signal.raise_signal(received.signal_number)


def _raise_exception(number: int, _: object) -> None:
    raise SignalException(f"signal {number}", signal.Signals(number))

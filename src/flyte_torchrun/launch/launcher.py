"""From a plan and a function to one result."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flyte_torchrun.launch.errors import (
    LaunchTerminatedError,
    RendezvousError,
    TorchNotInstalledError,
)
from flyte_torchrun.launch.files import RunFolder, load, save
from flyte_torchrun.launch.plan import LaunchPlan, resolve_nproc
from flyte_torchrun.launch.processes import prepare

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler

__all__ = ["LaunchResult", "launch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """What a launch returns.

    Attributes:
        value: what the function returned in global rank 0, its tensors on the CPU; None where that rank ran elsewhere.
        is_rank_zero_here: whether global rank 0 was among this node's ranks.
    """

    value: Any
    is_rank_zero_here: bool


def launch(plan: LaunchPlan, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> LaunchResult:
    """Runs the function in every rank of the worker group and waits for all of them.

    Each rank gets arguments of its own: changing one in place is seen by no other rank, nor by the caller. A coroutine
    function is run to its end in each rank. Tensors on a GPU arrive, and come back, on the CPU.

    Args:
        plan: the worker group.
        function: what to run; any function that cloudpickle takes, also of `__main__`, nested or decorated.
        *args: its arguments.
        **kwargs: its keyword arguments.

    Raises:
        RankError: a rank failed, and no restart is left: the first real failure, with the rank's traceback.
        LaunchTimeoutError: a time limit of the plan was passed.
        LaunchTerminatedError: SIGTERM was sent to this process, and its own handler let it go on.
        RendezvousError: the nodes did not find each other.
        SerializationError: an argument cannot be pickled; it is named.
        TorchNotInstalledError: torch is missing.
        PlanError: `gpu` was asked for where there is none.
    """
    names = [f"argument {index}" for index in range(len(args))] + [f"argument {name!r}" for name in kwargs]
    if plan.start_method == "forkserver":
        prepare(plan.start_method, plan.preload)  # the server loads torch while this process does
    _require_torch()
    nproc = resolve_nproc(plan.nproc_per_node)
    if plan.start_method == "fork":
        prepare(plan.start_method, plan.preload)
    from flyte_torchrun.launch.pickling import payload_size

    size = payload_size({"the function": function, **dict(zip(names, [*args, *kwargs.values()], strict=True))})
    with RunFolder.new(size) as folder:
        save((function, args, kwargs), folder.inputs)
        with _unchanged_process(is_one_node=plan.rdzv_endpoint is None):
            return _run(plan, nproc, folder)


def _run(plan: LaunchPlan, nproc: int, folder: RunFolder) -> LaunchResult:
    from torch.distributed import DistNetworkError
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.rendezvous.api import (
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousTimeoutError,
    )

    from flyte_torchrun.launch.agent import Agent

    agent = None
    try:
        address = _local_address(plan)
        handler = _rendezvous(plan, address)
        try:
            spec = WorkerSpec(
                role="default",
                local_world_size=nproc,
                entrypoint=_run,  # torch wants to know one; the agent starts the ranks itself
                rdzv_handler=handler,
                max_restarts=plan.max_restarts,
                monitor_interval=1e-3,  # the agent itself waits for the ranks, up to the plan's interval
                local_addr=address,
                **_static_master(plan),
            )
            agent = Agent(spec, plan, folder)
            result = agent.run()
        finally:
            handler.shutdown()
    except DistNetworkError as error:
        raise RendezvousError(f"the node that holds the rendezvous at {plan.rdzv_endpoint} is gone: {error}") from error
    except SignalException as error:
        raise LaunchTerminatedError(error.sigval) from None
    except (RendezvousClosedError, RendezvousConnectionError, RendezvousTimeoutError) as error:
        raise RendezvousError(
            f"the nodes did not find each other at {plan.rdzv_endpoint or 'this node'}:"
            f" {type(error).__name__}: {error};"
            f" join_timeout is {plan.join_timeout} s, read_timeout is {plan.read_timeout} s"
        ) from error
    if result is None:
        raise RendezvousError("the worker group had ended before this node joined it")
    if result.is_failed():
        failure = agent.first_error()
        raise failure from failure.__cause__
    is_here = agent.holds_rank_zero
    return LaunchResult(value=load(folder.result) if is_here else None, is_rank_zero_here=is_here)


def _rendezvous(plan: LaunchPlan, address: str) -> RendezvousHandler:
    import torch.distributed.elastic.rendezvous.registry as registry
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    configs = {"join_timeout": int(plan.join_timeout) or 1, "read_timeout": int(plan.read_timeout) or 1}
    configs["timeout"] = configs["join_timeout"]
    if plan.rdzv_endpoint is None:
        configs["is_host"] = True
    return registry.get_rendezvous_handler(
        RendezvousParameters(
            backend="c10d" if plan.rdzv_endpoint is None else plan.rdzv_backend,
            endpoint=plan.rdzv_endpoint or "127.0.0.1:0",
            run_id=plan.run_id,
            min_nodes=plan.min_nodes,
            max_nodes=plan.max_nodes,
            local_addr=address,
            **{**configs, **plan.rdzv_configs},
        )
    )


def _static_master(plan: LaunchPlan) -> dict[str, Any]:
    if plan.rdzv_backend != "static" or plan.rdzv_endpoint is None:
        return {}
    host, port = _split(plan.rdzv_endpoint)
    return {"master_addr": host, "master_port": port}


def _local_address(plan: LaunchPlan) -> str:
    """The address under which other nodes reach this one: that of the interface towards the rendezvous.

    A host name would do only where every node can resolve it, which pods cannot promise. One node asks no name service.
    """
    if plan.rdzv_endpoint is None:
        return "127.0.0.1"
    host, port = _split(plan.rdzv_endpoint)
    deadline = time.monotonic() + plan.join_timeout
    while True:
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError as error:
            if time.monotonic() > deadline:
                raise RendezvousError(
                    f"{host} has no address after join_timeout = {plan.join_timeout} s: {error}"
                ) from error
            time.sleep(1.0)


def _split(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return (host.strip("[]") or endpoint, int(port)) if port.isdigit() and host else (endpoint.strip("[]"), 29400)


def _require_torch() -> None:
    for module, extra in (("torch", "torch"), ("cloudpickle", "torch")):
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:
            raise TorchNotInstalledError(
                f"running ranks needs {module}, which cannot be loaded here ({error}): pip install"
                f" 'flyte-torchrun[{extra}]'"
            ) from error


@contextmanager
def _unchanged_process(*, is_one_node: bool) -> Iterator[None]:
    """Leaves environment and signal handlers as they were, and makes SIGTERM and SIGINT end the ranks first.

    After the ranks have ended the signal is raised again for the caller's own handler.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException

    def raise_exception(number: int, _: object) -> None:
        raise SignalException(f"signal {number}", signal.Signals(number))

    environment = dict(os.environ)
    if not is_one_node:
        # torch's own default keeps what the first round of a rendezvous agreed on, and later rounds then wait in vain.
        os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    is_main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT) if is_main else ()
    handlers = {number: signal.signal(number, raise_exception) for number in numbers}
    received = None
    try:
        yield
    except LaunchTerminatedError as error:
        received = error
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        if received is not None:
            signal.raise_signal(received.signal_number)

# SPDX-License-Identifier: Apache-2.0
"""vLLM: the plugin, the code that runs in its workers, and a driver for `LLM` and for a server.

In the workers (`--worker-extension-cls driftless.engines.vllm.WorkerExtension`) the driftless_*
methods stage and report; the weight transfer backend `driftless` (vllm_backend.py) commits inside
vLLM's own start/update/finish. Neither raises (except check_replies_are_returned): if one rank
raised and another did not, all later replies would be assigned to the wrong calls, and half of the
engine would serve other weights (rank_receiver.py, drive.py).

    llm = LLM(model, worker_extension_cls=EXTENSION, weight_transfer_config=TRANSFER_CONFIG)
    driver = follow(llm)                   # the configuration that the engine was started with
    while training:
        driver.start_staging(60)           # returns at once; the ranks stage on threads
        outputs = llm.generate(prompts)
        driver.update(60, started=True)    # commits on all ranks, or on none

    driver = follow("http://host:8000", "host_shm:NAME")      # a server, and an agent on its host

allowed.py says which names a call may use.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

from .. import _native, errors
from . import allowed, drive
from .rank_receiver import RankReceiver, Reply, reply, text_of
from .target import EngineTarget, checkpoint_directory
from .ways import WayName

BACKEND = "driftless"
EXTENSION = "driftless.engines.vllm.WorkerExtension"
TRANSFER_CONFIG = {"backend": BACKEND}
# Set to 1 to make a CPU engine keep weights as loaded (vllm_load_layout.py).
LOAD_LAYOUT_VARIABLE = "DRIFTLESS_VLLM_KEEP_LOAD_LAYOUT"


# --- in every process of the engine ---------------------------------------------------------------


def register() -> None:
    """The entry point in `vllm.general_plugins`. vLLM calls it in every process, possibly twice."""
    register_backend()
    if os.environ.get(LOAD_LAYOUT_VARIABLE) == "1":
        from . import vllm_load_layout

        vllm_load_layout.keep()


def register_backend() -> None:
    try:
        from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    except ImportError:
        return  # a release without weight transfer: the worker extension suffices
    if BACKEND not in getattr(WeightTransferEngineFactory, "_registry", {}):
        WeightTransferEngineFactory.register_engine(
            BACKEND, "driftless.engines.vllm_backend", "DriftlessTransferEngine"
        )


# --- in the workers -------------------------------------------------------------------------------


class WorkerExtension:
    """Mixed into vLLM's worker. Each method returns one reply (rank_receiver.py). `session` in a
    reply: True if our backend commits, between vLLM's start and finish; False if the driver must
    call driftless_commit."""

    def driftless_open(
        self, source: str | None = None, nonce: str = "", take_over: str = ""
    ) -> Reply:
        """Follows the configuration that the operator allowed under that name (allowed.py)."""
        return self._driftless_answer(nonce, lambda it: it.open_allowed(source, nonce, take_over))

    def driftless_stage(
        self, nonce: str = "", timeout_s: float = 60.0, ticket: str = ""
    ) -> Reply:
        return self._driftless_answer(nonce, lambda it: it.stage(nonce, float(timeout_s), ticket))

    def driftless_status(self, nonce: str = "") -> Reply:
        return self._driftless_answer(nonce, lambda it: it.status(nonce))

    def driftless_commit(self, version: int, nonce: str = "", ticket: str = "") -> Reply:
        return self._driftless_answer(nonce, lambda it: it.commit(int(version), nonce, ticket))

    def driftless_rollback(self, version: int, nonce: str = "") -> Reply:
        return self._driftless_answer(nonce, lambda it: it.rollback(int(version), nonce))

    def driftless_shares(self, sweep: bool = False, nonce: str = "") -> Reply:
        return self._driftless_answer(nonce, lambda it: it.shares(bool(sweep), nonce))

    def driftless_read(
        self, tensor: str = "", first: int = 0, units: int = 0, nonce: str = ""
    ) -> Reply:
        return self._driftless_answer(
            nonce, lambda it: it.read(str(tensor), int(first), int(units), nonce)
        )

    def driftless_close(self, nonce: str = "") -> Reply:
        return self._driftless_answer(nonce, lambda it: it.close(nonce))

    def _driftless_answer(self, nonce: str, call: Any) -> Reply:
        check_replies_are_returned(getattr(self, "vllm_config", None))
        try:
            answer = call(self._driftless_receiver())
        except Exception as problem:  # noqa: BLE001  vLLM must not see it
            answer = reply(nonce, getattr(self, "rank", -1), text_of(problem))
        backend = getattr(self, "weight_transfer_engine", None)
        updating = getattr(self, "_weight_update_active", False)
        session = getattr(backend, "prepares_updates", False)
        return {**answer, "session": session, "updating": updating}

    def _driftless_receiver(self) -> RankReceiver:
        """The backend's receiver if vLLM runs our backend; otherwise the extension makes one."""
        backend: Any = getattr(self, "weight_transfer_engine", None)
        made = self.__dict__.get("_driftless_made")
        if isinstance(getattr(backend, "receiver", None), RankReceiver):
            made = backend.receiver
        if made is None:
            model = self.model_runner.get_model()  # type: ignore[attr-defined]
            made = make_receiver(self.vllm_config, model, self.rank)  # type: ignore[attr-defined]
            # an older release: the backend commits what this receiver stages
            if hasattr(backend, "receiver"):
                backend.receiver = made
        if self.__dict__.get("_driftless_made") is not made:
            self.__dict__["_driftless_made"] = made
            maker: Any = made.make_target
            maker.runner = self.model_runner  # type: ignore[attr-defined]
            note_sleeps(self, made)
        return made


def check_replies_are_returned(vllm_config: Any) -> None:
    """vLLM calls all data-parallel replicas of a server, but returns only the first one's replies.
    The other replicas raise, on all their ranks: otherwise a failed commit there would go
    unnoticed."""
    given = getattr(vllm_config, "parallel_config", None)
    number = getattr(given, "data_parallel_index", getattr(given, "data_parallel_rank", 0))
    if getattr(given, "data_parallel_hybrid_lb", False):  # one server per host
        number = getattr(given, "data_parallel_rank_local", 0)
    if number and not getattr(given, "data_parallel_external_lb", False):
        raise errors.UnsupportedError(
            f"vLLM does not return the replies of data-parallel replica {number}: start a server for "
            "each replica (--data-parallel-rank, or without data parallelism)"
        )


def note_sleeps(worker: Any, receiver: RankReceiver) -> None:
    """Notifies the receiver when the worker's weights go to sleep, and when they are back."""
    for name, wrap in (("sleep", notify_sleep), ("wake_up", notify_wake)):
        method = getattr(worker, name, None)
        if callable(method):
            worker.__dict__[name] = wrap(method, receiver)


def notify_sleep(sleep: Any, receiver: RankReceiver) -> Any:
    @wraps(sleep)
    def notify(level: int = 1, *args: Any, **kwargs: Any) -> Any:
        receiver.note_sleep(int(level))
        return sleep(level, *args, **kwargs)

    return notify


def notify_wake(wake_up: Any, receiver: RankReceiver) -> Any:
    @wraps(wake_up)
    def notify(tags: Any = None, *args: Any, **kwargs: Any) -> Any:
        done = wake_up(tags, *args, **kwargs)
        if tags is None or "weights" in tags:
            receiver.note_wake()
        return done

    return notify


def make_receiver(vllm_config: Any, model: Any, rank: int) -> RankReceiver:
    return RankReceiver(rank, TargetMaker(vllm_config, model, rank), settings_of(vllm_config))


@dataclass
class TargetMaker:
    """`runner`: the worker's model runner, if the worker extension is loaded."""

    vllm_config: Any
    model: Any
    rank: int | None = None
    runner: Any = None

    def __call__(self, chunk_bytes: int) -> EngineTarget:
        return make_target(self.vllm_config, self.model, chunk_bytes, self.runner, self.rank)


def make_target(
    vllm_config: Any, module: Any, chunk_bytes: int, runner: Any = None, rank: int | None = None
) -> EngineTarget:
    """A target that writes in place, if possible. If not, and unless the operator set
    {"reload": false}, vLLM's own reload loads the modules that need it, or the whole model."""
    from . import ModuleTarget, vllm_layout, vllm_parts, vllm_reload
    from .loaders import module_loader

    given = settings_of(vllm_config)
    model = vllm_config.model_config
    base = given.get("base") or checkpoint_directory(model.model, getattr(model, "revision", None))
    drafters = vllm_parts.drafters(module, runner)
    placement = partial(vllm_parts.experts, runner)
    allow: tuple[WayName, ...] = ("direct", "plan", "masked", "whole")
    # With packed layers, vLLM reloads the whole model or nothing.
    if given.get("reload", True) and not vllm_reload.packed_copies(module):
        allow += ("reload",)
    target = ModuleTarget(
        module, base=base, run=given.get("run"), version=given.get("version", 0),
        chunk_bytes=chunk_bytes, drafters=drafters,
        allow=allow,
        refreshes=vllm_parts.refreshes(vllm_config, module, drafters), placement=placement,
        load_layout=vllm_layout.load_layout(
            vllm_config, module, drafters, placement, module_loader(module)
        ),
        rank=rank,
    )  # fmt: skip
    why = vllm_reload.why_not_in_place(module, target)
    if why is None:
        if any(way.way == "reload" for way in target.ways.values()):
            logging.getLogger("driftless").warning("rank %s: %s", rank, target.describe())
        return target
    if not given.get("reload", True):
        raise errors.UnsupportedError(f"{why}; allow a reload, or keep the load layout")
    return vllm_reload.ReloadTarget(module, vllm_config, base, why)


def settings_of(vllm_config: Any) -> dict[str, Any]:
    """The operator's settings from the start of the engine (allowed.py)."""
    given = getattr(vllm_config, "additional_config", None)
    found = given.get(BACKEND) if isinstance(given, dict) else None
    return allowed.settings(found if isinstance(found, dict) else None)


# --- driving it -----------------------------------------------------------------------------------


def follow(
    engine: Any, source: str | None = None, timeout_s: float = 120.0, token: str = ""
) -> drive.Driver:
    """A driver whose engine follows `source`: an agent of its host ("host_shm:NAME"), or a
    configuration that its operator allowed (allowed.py). `engine`: an `LLM`, or the address of a
    server that was started with VLLM_SERVER_DEV_MODE=1; for a server, `timeout_s` limits each call,
    and requests in flight continue with the new weights, their caches computed again."""
    if isinstance(engine, str):
        native = _native.EngineDriver.vllm(engine, source, timeout_s, token)
    else:
        native = _native.EngineDriver.in_process(Offline(engine), source)
    driver = drive.Driver(native)
    driver.open()
    return driver


def update(
    engine: Any, source: str | None = None, timeout_s: float = 60.0
) -> drive.Update | None:
    """One update, from open to a confirmed version; None: no newer version came."""
    return follow(engine, source).update(timeout_s)


class Offline:
    """The driver's calls to an `LLM` of this process. One thread generates and updates, so nothing
    needs to be paused."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.in_session = False

    def __call__(self, operation: str, arguments: str) -> str:
        return json.dumps(getattr(self, operation)(**json.loads(arguments)))

    def rpc(self, method: str, kwargs: dict[str, Any]) -> Any:
        # without a timeout: after one, late replies would answer later calls
        return self.llm.collective_rpc(method, kwargs=kwargs)

    def pause(self) -> None: ...
    def resume(self) -> None: ...

    def begin(self) -> None:
        try:
            self.llm.start_weight_update()
        except Exception:  # an earlier update was not finished
            self.llm.finish_weight_update()
            self.llm.start_weight_update()
        self.in_session = True

    def write(self, **commit: Any) -> None:
        if self.in_session:
            self.llm.update_weights({"update_info": commit})
        else:
            self.rpc("driftless_commit", commit)

    def finish(self, label: str | None = None) -> None:
        # Older releases keep no version label.
        named = {"weight_version": label} if label and self.keeps_label() else {}
        self.llm.finish_weight_update(**named)
        self.in_session = False

    def clear_cache(self) -> None:
        self.llm.reset_prefix_cache()

    def keeps_label(self) -> bool:
        return hasattr(self.llm, "update_weight_version")

    def read_label(self) -> str:
        if not self.keeps_label():
            raise NotImplementedError("this vLLM keeps no version of its weights")
        return str(self.llm.get_weight_version())

    def set_label(self, label: str) -> None:
        if self.keeps_label():
            self.llm.update_weight_version(label)

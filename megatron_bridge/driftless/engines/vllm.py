# SPDX-License-Identifier: Apache-2.0
"""vLLM: the plugin, what runs in its workers, and a driver for `LLM` and for a server.

In the workers (`--worker-extension-cls driftless.engines.vllm.WorkerExtension`) the driftless_*
methods stage and tell; the weight transfer backend `driftless` (vllm_backend.py) commits inside
vLLM's own start/update/finish. Neither raises (but for check_heard): a rank that raises where
another does not makes the reply queue slip by one, and half of the engine would serve other weights
(rank_receiver.py, drive.py).

    llm = LLM(model, worker_extension_cls=EXTENSION, weight_transfer_config=TRANSFER_CONFIG)
    driver = follow(llm)                   # the configuration that the engine was started with
    while training:
        driver.start_staging(60)           # returns at once; the ranks stage on threads
        outputs = llm.generate(prompts)
        driver.update(60, started=True)    # all ranks, or none

    driver = follow("http://host:8000", "host_shm:NAME")      # a server, and an agent of its host

What a call may name is in allowed.py.
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
# Set to 1 if a CPU engine shall keep weights as they were loaded (vllm_load_layout.py).
LOAD_LAYOUT_VARIABLE = "DRIFTLESS_VLLM_KEEP_LOAD_LAYOUT"


# --- in every process of the engine ---------------------------------------------------------------


def register() -> None:
    """The entry point in `vllm.general_plugins`. vLLM calls it in every process, perhaps twice."""
    register_backend()
    if os.environ.get(LOAD_LAYOUT_VARIABLE) == "1":
        from . import vllm_load_layout

        vllm_load_layout.keep()


def register_backend() -> None:
    try:
        from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    except ImportError:
        return  # a release without weight transfer: the worker extension works all the same
    if BACKEND not in getattr(WeightTransferEngineFactory, "_registry", {}):
        WeightTransferEngineFactory.register_engine(
            BACKEND, "driftless.engines.vllm_backend", "DriftlessTransferEngine"
        )


# --- in the workers -------------------------------------------------------------------------------


class WorkerExtension:
    """Mixed into vLLM's worker. Each method returns one reply (rank_receiver.py), and in `session` whether
    our backend commits between vLLM's start and finish; else driftless_commit does."""

    def driftless_open(
        self, source: str | None = None, nonce: str = "", take_over: str = ""
    ) -> Reply:
        """Follows what the engine's operator allowed under that name (allowed.py)."""
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
        check_heard(getattr(self, "vllm_config", None))
        try:
            said = call(self._driftless_follower())
        except Exception as problem:  # noqa: BLE001  vLLM must not see it
            said = reply(nonce, getattr(self, "rank", -1), text_of(problem))
        backend = getattr(self, "weight_transfer_engine", None)
        updating = getattr(self, "_weight_update_active", False)
        session = getattr(backend, "prepares_updates", False)
        return {**said, "session": session, "updating": updating}

    def _driftless_follower(self) -> RankReceiver:
        """The backend's, where vLLM runs it; else one of its own."""
        backend: Any = getattr(self, "weight_transfer_engine", None)
        made = self.__dict__.get("_driftless_made")
        if isinstance(getattr(backend, "follower", None), RankReceiver):
            made = backend.follower
        if made is None:
            model = self.model_runner.get_model()  # type: ignore[attr-defined]
            made = make_follower(self.vllm_config, model, self.rank)  # type: ignore[attr-defined]
            if hasattr(backend, "follower"):  # an older release: it commits what is staged here
                backend.follower = made
        if self.__dict__.get("_driftless_made") is not made:
            self.__dict__["_driftless_made"] = made
            maker: Any = made.make_target
            maker.runner = self.model_runner  # type: ignore[attr-defined]
            note_sleeps(self, made)
        return made


def check_heard(vllm_config: Any) -> None:
    """vLLM asks all data-parallel replicas of a server and hands on what the first one says. The
    others can only raise, each on all its ranks: else their failed commits would pass for done."""
    given = getattr(vllm_config, "parallel_config", None)
    number = getattr(given, "data_parallel_index", getattr(given, "data_parallel_rank", 0))
    if getattr(given, "data_parallel_hybrid_lb", False):  # a server for each host
        number = getattr(given, "data_parallel_rank_local", 0)
    if number and not getattr(given, "data_parallel_external_lb", False):
        raise errors.UnsupportedError(
            f"data-parallel replica {number} of this server is not heard: start a server for each "
            "replica (--data-parallel-rank, or without data parallelism)"
        )


def note_sleeps(worker: Any, follower: RankReceiver) -> None:
    """The follower is told when the worker's weights go to sleep, and when they are back."""
    for name, tell in (("sleep", tell_sleep), ("wake_up", tell_wake)):
        method = getattr(worker, name, None)
        if callable(method):
            worker.__dict__[name] = tell(method, follower)


def tell_sleep(sleep: Any, follower: RankReceiver) -> Any:
    @wraps(sleep)
    def told(level: int = 1, *args: Any, **kwargs: Any) -> Any:
        follower.note_sleep(int(level))
        return sleep(level, *args, **kwargs)

    return told


def tell_wake(wake_up: Any, follower: RankReceiver) -> Any:
    @wraps(wake_up)
    def told(tags: Any = None, *args: Any, **kwargs: Any) -> Any:
        done = wake_up(tags, *args, **kwargs)
        if tags is None or "weights" in tags:
            follower.note_wake()
        return done

    return told


def make_follower(vllm_config: Any, model: Any, rank: int) -> RankReceiver:
    return RankReceiver(rank, TargetMaker(vllm_config, model, rank), settings_of(vllm_config))


@dataclass
class TargetMaker:
    """`runner`: the worker's, if the worker extension is there."""

    vllm_config: Any
    model: Any
    rank: int | None = None
    runner: Any = None

    def __call__(self, chunk_bytes: int) -> EngineTarget:
        return make_target(self.vllm_config, self.model, chunk_bytes, self.runner, self.rank)


def make_target(
    vllm_config: Any, module: Any, chunk_bytes: int, runner: Any = None, rank: int | None = None
) -> EngineTarget:
    """In place where that is possible; else, where the engine was not told otherwise
    ({"reload": false}), by vLLM's own reload: of the modules that need it, or of all."""
    from . import ModuleTarget, vllm_layout, vllm_parts, vllm_reload
    from .loaders import own_loader

    given = settings_of(vllm_config)
    model = vllm_config.model_config
    base = given.get("base") or checkpoint_directory(model.model, getattr(model, "revision", None))
    drafters = vllm_parts.drafters(module, runner)
    placement = partial(vllm_parts.experts, runner)
    allow: tuple[WayName, ...] = ("direct", "plan", "masked", "whole")
    # Of packed layers all is reloaded, or nothing.
    if given.get("reload", True) and not vllm_reload.packed_copies(module):
        allow += ("reload",)
    target = ModuleTarget(
        module, base=base, run=given.get("run"), version=given.get("version", 0),
        chunk_bytes=chunk_bytes, drafters=drafters,
        allow=allow,
        refreshes=vllm_parts.refreshes(vllm_config, module, drafters), placement=placement,
        load_layout=vllm_layout.load_layout(
            vllm_config, module, drafters, placement, own_loader(module)
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
    """What the operator gave at start (allowed.py)."""
    given = getattr(vllm_config, "additional_config", None)
    found = given.get(BACKEND) if isinstance(given, dict) else None
    return allowed.settings(found if isinstance(found, dict) else None)


# --- driving it -----------------------------------------------------------------------------------


def follow(
    engine: Any, source: str | None = None, timeout_s: float = 120.0, token: str = ""
) -> drive.Driver:
    """A driver whose engine follows `source`: an agent of its host ("host_shm:NAME"), or a
    configuration that its operator allowed (allowed.py). `engine`: an `LLM`, or the address of a
    server that was started with VLLM_SERVER_DEV_MODE=1; then `timeout_s` is for one call, and
    requests in flight are kept: they go on with the new weights, their caches computed again."""
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
    """One update, from an open to a confirmed version; None: nothing newer came."""
    return follow(engine, source).update(timeout_s)


class Offline:
    """The driver's calls to an `LLM` of this process. Generation and updates come from one thread,
    so nothing needs to be paused."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.in_session = False

    def __call__(self, operation: str, arguments: str) -> str:
        return json.dumps(getattr(self, operation)(**json.loads(arguments)))

    def rpc(self, method: str, kwargs: dict[str, Any]) -> Any:
        return self.llm.collective_rpc(method, kwargs=kwargs)  # a timeout would make the queue slip

    def pause(self) -> None: ...
    def resume(self) -> None: ...

    def begin(self) -> None:
        try:
            self.llm.start_weight_update()
        except Exception:  # an update of before that nobody finished
            self.llm.finish_weight_update()
            self.llm.start_weight_update()
        self.in_session = True

    def write(self, **commit: Any) -> None:
        if self.in_session:
            self.llm.update_weights({"update_info": commit})
        else:
            self.rpc("driftless_commit", commit)

    def finish(self, label: str | None = None) -> None:
        # Older releases keep no version.
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

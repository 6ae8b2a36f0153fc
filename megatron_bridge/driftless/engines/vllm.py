"""vLLM: the plugin, what runs in its workers, and a driver for `LLM` and for a server.

In the workers (`--worker-extension-cls driftless.engines.vllm.WorkerExtension`) the driftless_*
methods stage and tell; the weight transfer backend `driftless` (vllm_backend.py) commits inside
vLLM's own start/update/finish. Neither ever raises: a rank that raises where another does not makes
the reply queue slip by one, and half of the engine would serve other weights (follower.py,
drive.py).

    llm = LLM(model, worker_extension_cls=EXTENSION, weight_transfer_config=TRANSFER_CONFIG)
    follower = follow(llm)                   # the configuration that the engine was started with
    while training:
        follower.start_staging(60)           # returns at once; the ranks stage on threads
        outputs = llm.generate(prompts)
        follower.update(60, started=True)    # all ranks, or none

    follower = follow("http://host:8000", "host_shm:NAME")      # a server, and an agent of its host

What a call may name is in allowed.py.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Any

from .. import errors
from . import allowed, drive
from .follower import Follower, Reply, checkpoint_directory, text_of
from .http_calls import NoSuchRoute, request

BACKEND = "driftless"
EXTENSION = "driftless.engines.vllm.WorkerExtension"
TRANSFER_CONFIG = {"backend": BACKEND}
# Set to 1 where a CPU engine shall keep weights as they were loaded (vllm_load_layout.py).
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
    """Mixed into vLLM's worker. Each method returns one reply (follower.py), and in `session` whether
    our backend commits between vLLM's start and finish; else driftless_commit does."""

    def driftless_open(self, source: str | None = None, nonce: str = "") -> Reply:
        """Follows what the engine's operator allowed under that name (allowed.py)."""
        return self._driftless_answer(nonce, lambda it: open_with(it, source, nonce))

    def driftless_stage(self, nonce: str = "", timeout_s: float = 60.0) -> Reply:
        return self._driftless_answer(nonce, lambda it: it.stage(nonce, float(timeout_s)))

    def driftless_status(self, nonce: str = "") -> Reply:
        return self._driftless_answer(nonce, lambda it: it.status(nonce))

    def driftless_commit(self, version: int, nonce: str = "") -> Reply:
        return self._driftless_answer(nonce, lambda it: it.commit(int(version), nonce))

    def driftless_rollback(self, version: int, nonce: str = "") -> Reply:
        return self._driftless_answer(nonce, lambda it: it.rollback(int(version), nonce))

    def driftless_close(self, nonce: str = "") -> Reply:
        return self._driftless_answer(nonce, lambda it: it.close(nonce))

    def _driftless_answer(self, nonce: str, call: Any) -> Reply:
        try:
            reply = call(self._driftless_follower())
        except Exception as problem:  # noqa: BLE001  vLLM must not see it
            reply = failure(nonce, getattr(self, "rank", -1), problem)
        backend = getattr(self, "weight_transfer_engine", None)
        return {**reply, "session": getattr(backend, "prepares_updates", False)}

    def _driftless_follower(self) -> Follower:
        """The backend's, where vLLM runs it; else one of its own."""
        backend: Any = getattr(self, "weight_transfer_engine", None)
        if isinstance(getattr(backend, "follower", None), Follower):
            return backend.follower
        made = self.__dict__.get("_driftless_made")
        if made is None:
            model = self.model_runner.get_model()  # type: ignore[attr-defined]
            made = make_follower(self.vllm_config, model, self.rank)  # type: ignore[attr-defined]
            self.__dict__["_driftless_made"] = made
            if hasattr(backend, "follower"):  # an older release: it commits what is staged here
                backend.follower = made
        return made


def make_follower(vllm_config: Any, model: Any, rank: int) -> Follower:
    follower = Follower(rank, lambda chunk_bytes: make_target(vllm_config, model, chunk_bytes))
    follower.settings = settings_of(vllm_config)  # type: ignore[attr-defined]
    return follower


def make_target(vllm_config: Any, module: Any, chunk_bytes: int) -> Any:
    """In place where that is possible for all weights; else, where the engine was not told
    otherwise ({"reload": false}), by vLLM's own reload."""
    from . import ModuleTarget, vllm_reload

    given = settings_of(vllm_config)
    model = vllm_config.model_config
    base = given.get("base") or checkpoint_directory(model.model, getattr(model, "revision", None))
    target = ModuleTarget(module, base=base, run=given.get("run"), version=given.get("version", 0),
                          chunk_bytes=chunk_bytes)  # fmt: skip
    why = vllm_reload.why_not_in_place(module, target)
    if why is None:
        return target
    if not given.get("reload", True):
        raise errors.UnsupportedError(f"{why}; allow a reload, or keep the load layout")
    return vllm_reload.ReloadTarget(module, vllm_config, base, why)


def open_with(follower: Follower, source: str | None, nonce: str) -> Reply:
    try:
        found = allowed.source_of(source, getattr(follower, "settings", {}))
    except errors.Error as problem:
        return failure(nonce, follower.rank, problem)
    return follower.open(found.config, found.sets, nonce)


def settings_of(vllm_config: Any) -> dict[str, Any]:
    """What the operator gave at start (allowed.py)."""
    given = getattr(vllm_config, "additional_config", None)
    found = given.get(BACKEND) if isinstance(given, dict) else None
    return allowed.settings(found if isinstance(found, dict) else None)


def failure(nonce: str, rank: int, problem: BaseException) -> Reply:
    """The reply of a rank that could not even ask its follower."""
    return {
        "nonce": nonce, "rank": rank, "ok": False, "error": text_of(problem), "state": "closed",
        "version": 0, "staged_version": None, "digest": "", "run": "", "ways": {}, "timings": {},
    }  # fmt: skip


# --- driving it -----------------------------------------------------------------------------------


def in_session(replies: Sequence[Any], before: bool) -> bool:
    """What the workers say about it; an answer to somebody else's question says nothing."""
    said = [one["session"] for one in replies if isinstance(one, dict) and "session" in one]
    return all(said) if said else before


def follow(engine: Any, source: str | None = None, **options: Any) -> drive.Driver:
    """A driver whose engine follows `source`: an agent of its host ("host_shm:NAME"), or a
    configuration that its operator allowed (allowed.py). `engine`: an `LLM`, or a server's
    address."""
    driven = Server(engine, **options) if isinstance(engine, str) else Offline(engine, **options)
    driver = drive.Driver(driven)
    driver.open(source)
    return driver


def update(
    engine: Any, source: str | None = None, timeout_s: float = 60.0
) -> drive.Update | None:
    """One update, from an open to a confirmed version; None: nothing newer came."""
    return follow(engine, source).update(timeout_s)


class Offline:
    """An `LLM` of this process. Generation and updates come from one thread, so nothing needs to be
    paused."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.session = True

    def call(self, method: str, **arguments: Any) -> Sequence[Reply]:
        # Never with a timeout: the queue would slip.
        replies = self.llm.collective_rpc(method, kwargs=arguments)
        self.session = in_session(replies, self.session)
        return replies

    def pause(self) -> None: ...

    def begin(self) -> None:
        if not self.session:
            return
        try:
            self.llm.start_weight_update()
        except Exception:  # an update of before that nobody finished
            self.llm.finish_weight_update()
            self.llm.start_weight_update()

    def write(self, version: int, nonce: str) -> None:
        if self.session:
            self.llm.update_weights({"update_info": {"version": version, "nonce": nonce}})
        else:
            self.call("driftless_commit", version=version, nonce=nonce)

    def finish(self, version: int) -> None:
        keeps = hasattr(self.llm, "update_weight_version")  # older releases keep no version
        if self.session:
            self.llm.finish_weight_update(**({"weight_version": str(version)} if keeps else {}))
        elif keeps:
            self.llm.update_weight_version(str(version))

    def clear_cache(self) -> None:
        self.llm.reset_prefix_cache()

    def resume(self) -> None: ...


class Server:
    """A server, started with VLLM_SERVER_DEV_MODE=1. Requests in flight are kept: they go on with
    the new weights, their caches computed again."""

    def __init__(self, url: str, timeout_s: float = 120.0) -> None:
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self.session = True

    def call(self, method: str, **arguments: Any) -> Sequence[Reply]:
        answer = self.post("/collective_rpc", {"method": method, "kwargs": arguments})
        self.session = in_session(answer["results"], self.session)
        return answer["results"]

    def pause(self) -> None:
        self.post("/pause?mode=keep&clear_cache=false")

    def begin(self) -> None:
        if not self.session:
            return
        try:
            self.post("/start_weight_update")
        except errors.IoError:  # an update of before that nobody finished
            self.post("/finish_weight_update", {})
            self.post("/start_weight_update")

    def write(self, version: int, nonce: str) -> None:
        if self.session:
            self.post("/update_weights", {"update_info": {"version": version, "nonce": nonce}})
        else:
            self.call("driftless_commit", version=version, nonce=nonce)

    def finish(self, version: int) -> None:
        if self.session:
            self.post("/finish_weight_update", {"weight_version": str(version)})
            return
        with contextlib.suppress(NoSuchRoute):  # a release that keeps no version
            self.post("/update_weight_version", {"new_version": str(version)})

    def clear_cache(self) -> None:
        done = self.post("/reset_prefix_cache?reset_running_requests=true")
        if not done.get("success", True):
            raise errors.BusyError("vLLM did not clear its prefix cache: call /reset_prefix_cache")

    def resume(self) -> None:
        self.post("/resume")

    def weight_version(self) -> str:
        try:
            return self.post("/weight_info", None, "GET")["weight_version"]
        except NoSuchRoute as problem:
            raise errors.UnsupportedError(
                f"this vLLM keeps no version of its weights ({problem}): ask driftless_status"
            ) from None

    def post(self, path: str, body: Any = None, method: str = "POST") -> dict[str, Any]:
        return request(self.url + path, body, method, self.timeout_s)

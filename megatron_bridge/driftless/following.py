# SPDX-License-Identifier: Apache-2.0
"""follow(): one call for a rollout. It composes the steps that docs/start/python.md shows: a Job, a
target and a Receiver; for an engine that serves HTTP, an Agent."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from . import _native
from ._native import Agent, CheckpointTarget, Config, Job, MemoryTarget, Receiver, Target, Waiting
from .errors import (
    DeadlineExceededError,
    Error,
    IncompleteError,
    InvalidArgumentError,
    IoError,
    WrongBaseError,
)
from .publishing import base_of, unwrapped
from .where import Where, config_of, in_mpi

_logger = logging.getLogger(__name__)

_SLICE_S = 1.0  # a wait comes in slices, so that close() and the timeout are noticed
_ASK_S = 0.5  # between two attempts to reach an engine


class Held(NamedTuple):
    """The version that a follower holds. `proven`: the weights match the run's digest of `version`;
    otherwise `unproven` is the reason why they could not be checked."""

    run: str
    version: int
    digest: str
    proven: bool
    unproven: str | None = None


def follow(
    model: Any,
    where: Where,
    base: str | os.PathLike[str] | None = None,
    *,
    timeout_s: float | None = None,
    pause: Callable[[], object] | None = None,
    resume: Callable[[], object] | None = None,
    overrides: Sequence[str] = (),
) -> Follower:
    """Keeps weights at the newest version of a run:

        for update in driftless.follow(model, "weights"):
            print(update.version)

    The loop ends when the run has ended and the follower holds its last version. The weights change
    only between two rounds of the loop. A loop of your own calls update() instead.

    `model` is one of:
    - a torch module that holds the base. `base` names the base checkpoint; by default it is the one
      that a transformers model was loaded from. The module's dtypes may differ from the
      checkpoint's. If there is no checkpoint, the module's weights are the base, and the run must
      publish the module's dtypes;
    - a dict of tensors (torch, numpy) that hold the base, by the published names;
    - a checkpoint directory, which is patched in place;
    - the http(s):// address of a vLLM or SGLang server on this host that runs Driftless' receiver
      (docs/start/engines.md): an agent in this process drives it, and `update` is its record.

    `where`: as in publish(), or http(s)://host/path of a bucket. `timeout_s`: the loop raises
    DeadlineExceededError after this time without a new version; None: it waits forever. `pause`,
    `resume`: called before and after each commit. `overrides`: "key=value" over the
    configuration."""
    config = config_of(where, overrides)
    if isinstance(model, str) and model.startswith(("http://", "https://")):
        if base is not None or pause is not None or resume is not None:
            raise InvalidArgumentError(
                f"{model} was started with its base, and its agent pauses it: leave out base=, "
                "pause= and resume="
            )
        return Follower(_Engine(model, where, config, overrides), timeout_s)
    return Follower(_Weights(_target_of(model, base), config, pause, resume), timeout_s)


class Follower:
    """A run that follow() has joined: an iterator, and a context manager."""

    def __init__(self, side: _Side, timeout_s: float | None) -> None:
        self._side, self._timeout_s = side, timeout_s
        self._held, self._ended = side.held(), False
        self._drop = weakref.finalize(self, _drop, side.job, os.getpid())

    def update(self, timeout_s: float = 0.0) -> Any:
        """Commits the newest version, after waiting up to `timeout_s` for one. Returns the
        UpdateReport of the commit, or the record of an engine (docs/operate/metrics.md). None: no
        newer version came."""
        if not self._drop.alive:
            return None
        done = self._side.update(timeout_s)
        self._held, self._ended = self._side.held(), self._side.ended()
        return done

    @property
    def held(self) -> Held:
        """As of the last update; also valid after close()."""
        return self._held

    @property
    def version(self) -> int:
        return self._held.version

    @property
    def ended(self) -> bool:
        """The run has ended, and its last version is held. False if the trainer crashed."""
        return self._ended

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        began = time.monotonic()
        while not self._ended and self._drop.alive:
            done = self.update(_SLICE_S)
            if done is not None:
                return done
            waited = time.monotonic() - began
            if self._timeout_s is not None and waited >= self._timeout_s and not self._ended:
                raise DeadlineExceededError(
                    f"nothing newer than version {self.version} of run {self._held.run} for "
                    f"{waited:.0f} s, and the run has not ended: check the trainer (driftless "
                    "status WHERE), or give a longer timeout_s="
                )
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Closes the receiver, and reports that to the publishers. The weights stay as they are."""
        if self._drop.detach() is None:
            return
        try:
            self._side.leave()
        except BaseException:
            self._side.job.leave()
            raise
        self._side.job.close()

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, kind: Any, failure: BaseException | None, trace: Any) -> None:
        if failure is None:
            self.close()
        elif self._drop.detach() is not None:
            self._side.job.leave()


class _Side(Protocol):
    job: Job

    def update(self, timeout_s: float) -> Any: ...
    def held(self) -> Held: ...
    def ended(self) -> bool: ...
    def leave(self) -> None: ...


class _Weights:
    """Follows with weights of this process, or with a checkpoint directory."""

    def __init__(
        self,
        target: Target,
        config: Config,
        pause: Callable[[], object] | None,
        resume: Callable[[], object] | None,
    ) -> None:
        self.job = Job(config, "rollout", launched=in_mpi(config))
        try:
            with _no_grad():
                self._receiver = Receiver(self.job, target, pause=pause, resume=resume)
            _check_ways(target)
        except BaseException:
            self.job.leave()
            raise

    def update(self, timeout_s: float) -> Any:
        with _no_grad():
            return self._receiver.commit() if self._receiver.stage(timeout_s) else None

    def held(self) -> Held:
        of = self._receiver
        return Held(str(of.run), of.version, str(of.digest), of.proven, of.unproven)

    def ended(self) -> bool:
        end = self._receiver.end()
        return end is not None and self._receiver.version >= end.version

    def leave(self) -> None:
        self._receiver.leave()


class _Engine:
    """Follows with a server on this host, through an agent in this process."""

    def __init__(self, url: str, where: Where, config: Config, overrides: Sequence[str]) -> None:
        if isinstance(where, Config) or "engines[0].url" in config.settings():
            raise InvalidArgumentError(
                "a configuration with engines is for driftless.Agent or `driftless agent`; to "
                "follow by one address give a directory, a bucket or a file without engines"
            )
        kind = _kind_of(url, config.connect_s)
        name = "driftless-" + re.sub(r"[^0-9A-Za-z]+", "-", url.partition("://")[2]).strip("-")
        more = [f"engines[0].url={url}", f"engines[0].kind={kind}"]
        if config.settings()["road.host_shm.name"] == "driftless":  # several engines of a host
            more.append(f"road.host_shm.name={name}")
        self._url, self._done, self._over = url, deque[dict[str, Any]](), False
        self._last: dict[str, Any] = {}
        self.job = Job(config_of(where, [*overrides, *more]), "rollout", launched=in_mpi(config))
        try:
            self._agent = Agent(self.job, on_record=self._take, on_failure=_warn)
        except BaseException:
            self.job.leave()
            raise

    def _take(self, record: dict[str, Any]) -> None:
        if record.get("engine") and not record.get("error"):
            self._done.append(record)

    def update(self, timeout_s: float) -> Any:
        until = time.monotonic() + timeout_s
        while not self._done and not self._over:
            self._over = self._agent.step()
            if time.monotonic() >= until:
                break
        if not self._done:
            return None
        self._last = self._done.popleft()
        return self._last

    def held(self) -> Held:
        last, proof = self._last, self._last.get("proven", "")
        why = None if proof else "no update yet" if not last else "the engine cannot prove it"
        return Held(
            last.get("run", ""), last.get("version", 0), last.get("digest", ""), bool(proof), why
        )

    def ended(self) -> bool:
        return self._over and not self._done

    def leave(self) -> None:
        end = self._agent.end(confirm=self._over)
        late = [each["engine"] for each in end["engines"] if each["version"] < end["version"]]
        if self._over and (late or not end["all_have_it"]):
            raise IncompleteError(
                f"the run ended at version {end['version']}, and {self._url} does not have it; "
                "start vLLM or SGLang again, and follow again"
            )


def _target_of(model: Any, base: str | os.PathLike[str] | None) -> Target:
    if isinstance(model, str | os.PathLike):
        if base is not None:
            raise InvalidArgumentError(
                "base= is for a module; a checkpoint directory records its version"
            )
        return CheckpointTarget(os.fspath(model))
    if isinstance(model, Mapping):
        if base is not None:
            raise InvalidArgumentError("base= is for a module; a dict's tensors are the base")
        return _memory(dict(model))
    if not hasattr(model, "named_parameters"):
        raise InvalidArgumentError(
            f"{type(model).__name__} cannot follow a run: give a torch module, a dict of tensors, "
            "a checkpoint's directory or an engine's http:// address"
        )
    found = base_of(model, base)
    if found is not None:
        from .engines import ModuleTarget

        return ModuleTarget(unwrapped(model), base=found)
    from .torch import unique_tensors

    return _memory(dict(unique_tensors(unwrapped(model))))


def _check_ways(target: Any) -> None:
    """A module's receiver refuses an unwritable tensor only when a version changes it. A
    follower needs every tensor, so it refuses such a module at once."""
    layout = target.layout
    ways = getattr(target, "ways", {}) if layout is not None else {}
    bad = [spec.name for spec in layout.tensors if _is_refused(ways, spec.name)] if ways else []
    if bad:
        raise WrongBaseError(
            f"{len(bad)} of {len(layout.tensors)} tensors of the run cannot be written into this "
            f"module: '{bad[0]}': {ways[bad[0]].reason}; load the module from the base checkpoint, "
            "or give base= the one that it was loaded from"
        )


def _is_refused(ways: Any, name: str) -> bool:
    return name in ways and ways[name].way == "refused"


def _memory(tensors: dict[str, Any]) -> MemoryTarget:
    on_gpu = next((each for each in tensors.values() if getattr(each, "is_cuda", False)), None)
    if on_gpu is None:
        return MemoryTarget(tensors, version=0)
    import torch

    stream = torch.cuda.current_stream(on_gpu.device).cuda_stream
    return MemoryTarget(tensors, version=0, stream=stream)


def _kind_of(url: str, wait_s: float) -> str:
    """As find_engine_kind() of plugin/engines. Waits for a server that is still starting."""
    until, waiting = time.monotonic() + wait_s, Waiting()
    while True:
        try:
            answer = _native.sglang_call(url, "/server_info", None, 5.0)
            return "sglang" if '"tp_size"' in answer else "vllm"
        except IoError as problem:
            if time.monotonic() >= until:
                raise DeadlineExceededError(
                    f"{problem}; no engine answered for {wait_s:g} s: start it, or give its address"
                ) from problem
        except Error:
            return "vllm"  # vLLM has no such page
        waiting.look(lambda: f"no engine answers on {url} yet")
        time.sleep(_ASK_S)


def _warn(failure: str) -> None:
    _logger.warning("driftless: %s", failure)


def _no_grad() -> contextlib.AbstractContextManager[Any]:
    """Disables gradients, because targets of torch write into parameters. Without torch it does
    nothing."""
    torch = sys.modules.get("torch")
    return torch.no_grad() if torch is not None else contextlib.nullcontext()


def _drop(job: Job, process: int) -> None:
    """Releases the job of a follower that was not closed."""
    if os.getpid() == process:
        with contextlib.suppress(Exception):
            job.leave()

# SPDX-License-Identifier: Apache-2.0
"""Driftless as a checkpoint engine of verl.

    actor_rollout_ref.rollout.checkpoint_engine:
      backend: driftless
      custom_backend_module: driftless.verl
      engine_kwargs: { driftless: { config: driftless.yaml, base: MODEL } }

verl imports this module in its driver, its trainers and its rollouts. docs/start/verl.md shows how.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine, Iterable, Iterator
from typing import Any

import torch
from verl.checkpoint_engine.base import (
    CheckpointEngine,
    CheckpointEngineManager,
    CheckpointEngineRegistry,
    CheckpointEngineWorker,
)
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup
from verl.utils.ray_utils import auto_await

import ray

from ._native import (
    CheckpointSource,
    Config,
    Job,
    OwnedTarget,
    Publisher,
    PublishReport,
    Receiver,
)
from .errors import DeadlineExceededError, MismatchError, WrongRunError
from .torch import PublisherGroup, publisher_group
from .verl_shards import EngineShards, tied_names
from .whole import Tensors, taken

_logger = logging.getLogger(__name__)

BACKEND = "driftless"
IDENTITY = f"{BACKEND}/identity"
Identity = tuple[str, int, str]  # run, version, digest: version numbers repeat across runs


@CheckpointEngineRegistry.register(BACKEND)
class DriftlessEngine(CheckpointEngine):
    """Both sides of verl's checkpoint engine. Every sync publishes a version.

    `config`: the file of Driftless' configuration. `base`: the checkpoint that trainer and rollouts
    start from; the run has its names and dtypes. `timeout_s`: how long a rollout may take to
    receive a published version. `is_master`: verl sets it on trainers only."""

    def __init__(
        self,
        bucket_size: int,
        is_master: bool | None = None,
        *,
        config: str,
        base: str,
        timeout_s: float = 600.0,
    ) -> None:
        loaded = Config.load(os.fspath(config))
        self._trainer = _Trainer(loaded, base, bool(is_master))
        self._rollout = _Rollout(loaded, base, timeout_s)

    # verl's interface. Publishers and receivers meet on the road, so there is no topology to build.

    def prepare(self) -> dict[str, Any]:
        return {}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        return {}, {}

    def init_process_group(self, **kwargs: Any) -> None:
        """Does nothing: see build_topology()."""

    def finalize(self) -> None:
        """Does nothing: a publisher and a receiver live as long as their process."""

    async def send_weights(
        self, weights: Any, global_steps: int | None = None
    ) -> dict[str, Any] | None:
        """`weights`: verl's training engine, or an iterator of (name, whole tensor)."""
        report = self._trainer.send(weights, global_steps)
        if report is None:
            return None
        found = {"version": report.version, "changed": report.changed_units,
                 "wire_bytes": report.wire_bytes, "publish_ms": report.total_ms}  # fmt: skip
        metrics: dict[str, Any] = {f"{BACKEND}/{name}": value for name, value in found.items()}
        return {**metrics, IDENTITY: self._trainer.identity(report)}  # update_weights() removes it

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """All tensors of the held version: verl's engines may have dropped theirs."""
        for name, tensor in self._rollout.weights():
            yield name, tensor

    # update_weights(), below, calls these on each rollout's engine.

    def stage(self, wanted: Identity) -> None:
        self._rollout.stage(wanted)

    def commit(self, wanted: Identity) -> None:
        self._rollout.commit(wanted)

    def take_back(self, wanted: Identity) -> None:
        self._rollout.take_back(wanted)

    def held(self) -> Identity:
        return self._rollout.held()


class _Trainer:
    """One rank's trainer side. Every rank publishes its shards; if verl sends whole tensors, only
    the first rank publishes."""

    def __init__(self, config: Config, base: str, master: bool) -> None:
        self._config, self._path, self._master = config, base, master
        self._base: CheckpointSource | None = None
        self._tied: frozenset[str] = frozenset()
        self._shards: EngineShards | None = None
        self._group: PublisherGroup | None = None
        self._publisher: Publisher | None = None

    def identity(self, report: PublishReport) -> Identity:
        assert self._publisher is not None
        return self._publisher.run, report.version, str(report.digest)

    def send(self, weights: Any, step: int | None = None) -> PublishReport | None:
        """Returns None on ranks that publish nothing."""
        engine = weights if hasattr(weights, "get_per_tensor_param") else None
        if self._base is None:
            base = CheckpointSource(self._path)
            self._tied = tied_names(base)
            self._shards = EngineShards.of(engine, base, self._tied)
            self._base = base  # from here on: shards, or whole tensors
        if self._shards is not None:
            return self._published(self._shards, self._shards.of_base(), step)
        if engine is not None:
            weights, _ = engine.get_per_tensor_param()
        return self._send_whole(weights)

    def _send_whole(self, weights: Iterable[tuple[str, torch.Tensor]]) -> PublishReport | None:
        assert self._base is not None
        if not self._master:  # it only takes part in every tensor's gather
            for _ in weights:
                pass
            return None
        sent = taken(self._base, ((n, t) for n, t in weights if n not in self._tied))
        base = {name: self._base.tensor(name) for name in sent}
        return self._published(Tensors(self._base, sent), Tensors(self._base, base))

    def _published(self, source: Any, base: Any, step: int | None = None) -> PublishReport:
        if self._publisher is None:
            if self._shards is not None and self._group is None:  # collective: once, on all ranks
                self._group = publisher_group()
            job = Job(self._config, "trainer", launched=False)
            self._publisher = Publisher(job, base, group=self._group, checkpoint=self._base)
            for note in self._publisher.notes if self._publisher.rank == 0 else ():
                _logger.warning("driftless: %s", note)
        known = step is not None and step >= 0
        return self._publisher.publish(source, step=step if known else None)


class _Rollout:
    """One worker's rollout side: the weights of the version that its engine has, or gets next, in
    host memory."""

    def __init__(self, config: Config, base: str, timeout_s: float) -> None:
        self._config, self._base, self._timeout_s = config, base, timeout_s
        self._target: OwnedTarget | None = None
        self._receiver: Receiver | None = None

    def stage(self, wanted: Identity) -> None:
        """Fetches a published version, and all before it, while the engine generates."""
        run, version, _ = wanted
        deadline = time.monotonic() + self._timeout_s
        receiver = self._opened()
        if receiver.run != run:
            raise WrongRunError(
                f"the trainer published version {version} of run {run}, and the rollout "
                f"{receiver.id} follows run {receiver.run}: start the rollouts again"
            )
        while receiver.version < version and receiver.staged_version != version:
            if receiver.stage(timeout_s=min(1.0, self._timeout_s)):
                if receiver.staged_version != version:  # an earlier version
                    receiver.commit()
            elif time.monotonic() > deadline:
                raise DeadlineExceededError(
                    f"version {version} is published, but after {self._timeout_s:g} s the rollout "
                    f"{receiver.id} sees none after {receiver.version}: check that both "
                    "sides have the same road"
                )

    def commit(self, wanted: Identity) -> None:
        receiver = self._opened()
        if receiver.version < wanted[1]:
            receiver.commit()
        if self.held() != wanted:
            raise MismatchError(f"the rollout {receiver.id} holds {self.held()}, not {wanted}")

    def take_back(self, wanted: Identity) -> None:
        """Undoes this version, staged or committed: the one before is held again."""
        receiver, (run, version, _) = self._receiver, wanted
        if receiver is None or receiver.run != run:
            return
        if version in (receiver.staged_version, receiver.version):
            receiver.rollback()

    def held(self) -> Identity:
        receiver = self._opened()
        if not receiver.state.valid:
            raise MismatchError(f"the rollout {receiver.id} holds no version; restart it")
        return receiver.run, receiver.version, str(receiver.digest)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        target = self._target
        if target is None or target.layout is None:
            raise RuntimeError("driftless: weights were asked for before the first version")
        for spec in target.layout.tensors:
            yield spec.name, target.ref(spec.name).torch()

    def _opened(self) -> Receiver:
        if self._receiver is None:
            job = Job(self._config, "rollout", launched=False)
            target = OwnedTarget(self._base)
            self._receiver = Receiver(job, target, timeout_s=self._timeout_s)
            self._target = target
        return self._receiver


# --- the driver's side -----------------------------------------------------------------------------

_theirs = CheckpointEngineManager.update_weights
_worker_class = ray.remote(CheckpointEngineWorker)


async def _all(refs: Iterable[Awaitable[Any]]) -> list[Any]:
    """The results, once all have ended; raises the first failure."""
    found = await asyncio.gather(*refs, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return list(found)


async def _to_the_end(
    work: Iterable[Coroutine[Any, Any, BaseException | None]],
) -> list[BaseException | None]:
    """The results of all tasks, once all have ended. If this is cancelled meanwhile, the tasks go
    on, and the cancellation is the first result."""
    tasks = [asyncio.ensure_future(each) for each in work]
    ended: list[BaseException | None] = []
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as cancelled:
            ended = [cancelled]
    return ended + [task.result() for task in tasks]


class _Sync:
    """One update of all replicas. Engines generate until every one has the version staged beside
    it, are paused for the commit only, and resume even after a failure (_deliver())."""

    def __init__(self, manager: CheckpointEngineManager, steps: dict[Identity, int | None]) -> None:
        self._manager, self._steps = manager, steps
        self._rollout = _group([worker for each in manager.replicas for worker in each.workers])

    async def run(self, global_steps: int | None) -> dict[str, float]:
        # In this mode only, verl passes its training engine, and with it the shards.
        sends = self._manager.actor_wg.update_weights(
            global_steps=global_steps, mode="delta_sharded"
        )
        metrics = {name: value for sent in await _all(sends) for name, value in (sent or {}).items()}
        wanted: Identity = metrics.pop(IDENTITY)
        self._steps[wanted] = global_steps
        await self._each("stage", wanted)
        failed: list[BaseException] = []
        try:
            await self._manager.abort_replicas()
            await self._manager.release_kv_cache_replicas()
            await self._each("commit", wanted)
        except BaseException as error:
            failed.append(error)
        deliveries = [self._deliver(each) for each in self._manager.replicas]
        failed += [error for error in await _to_the_end(deliveries) if error is not None]
        if failed:
            for other in failed[1:]:
                failed[0].add_note(f"and then: {other}")
            raise failed[0]
        return metrics

    async def _each(self, method: str, wanted: Identity) -> None:
        """Calls a method of every rollout's engine. If one fails, all take the version back."""
        count = self._rollout.world_size
        call = self._rollout.execute_checkpoint_engine
        try:
            await _all(call([method] * count, [wanted] * count))
        except BaseException as error:
            undone = call(["take_back"] * count, [wanted] * count)
            for each in await asyncio.gather(*undone, return_exceptions=True):
                if isinstance(each, BaseException):
                    error.add_note(f"and then: {each}")
            raise

    async def _deliver(self, replica: Any) -> BaseException | None:
        """The engine loads the version held beside it, new or old, because releasing the cache may
        have dropped its weights. Then it resumes. It stays paused if its ranks do not hold one
        version, or if loading fails twice: its weights are then unknown."""
        group = _group(replica.workers)
        failure: Exception = RuntimeError()
        for _ in range(2):
            try:
                held = set(await _all(group.execute_checkpoint_engine(["held"] * group.world_size)))
                if len(held) != 1:
                    raise RuntimeError(f"its ranks hold the versions {sorted(held)}")
                await _all(group.update_weights(global_steps=self._steps.get(held.pop())))
                await replica.resume_kv_cache()
                await replica.resume_generation()
                return None
            except Exception as error:
                failure = error
        failure.add_note(f"driftless: replica {replica.replica_rank} stays paused")
        return failure


def _group(workers: list[Any]) -> RayWorkerGroup:
    made = RayClassWithInitArgs(cls=_worker_class)
    return RayWorkerGroup(worker_handles=workers, ray_cls_with_init=made)


@auto_await
async def _update_weights(
    self: CheckpointEngineManager, global_steps: int | None = None
) -> dict[str, float]:
    if self.backend != BACKEND:
        return await _theirs(self, global_steps=global_steps)
    steps: dict[Identity, int | None] = self.__dict__.setdefault("_driftless_steps", {})
    return await _Sync(self, steps).run(global_steps)


# Replaced here, because half of verl's trainers ignore `rollout.checkpoint_manager_class`.
CheckpointEngineManager.update_weights = _update_weights

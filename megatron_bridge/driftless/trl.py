# SPDX-License-Identifier: Apache-2.0
"""Driftless as the weight transfer of TRL's asynchronous trainers.

    AsyncGRPOTrainer(..., weight_transfer=driftless.trl.WeightTransfer(config, base=model_path))

TRL calls it on its main process, with whole tensors. docs/start/trl.md shows how.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Iterable

import torch

from ._native import (
    CheckpointSource,
    Config,
    Job,
    Publisher,
    PublishReport,
    ReceiverReport,
    Waiting,
)
from .errors import DeadlineExceededError
from .whole import Tensors, taken

_logger = logging.getLogger(__name__)


class WeightTransfer:
    """Implements TRL's WeightTransferProtocol. Every sync publishes a version, also the first one,
    which has the weights as they were loaded.

    `config`: Driftless' configuration, or its file. `base`: the checkpoint that trainer and engines
    start from. The run has the names and dtypes of `base`, and only the tensors that TRL sends.
    Receivers that hold others (frozen towers, stored copies of tied tensors) prove that these are
    the base's. `wait_for`: how many receivers (agents, engines) must report the version, with its
    digest, before a sync returns; it is an error if they do not within `timeout_s`. pause() and
    resume() do nothing: receivers pause their engines by themselves, for the commit only."""

    def __init__(
        self,
        config: Config | str | os.PathLike[str],
        base: str | os.PathLike[str],
        wait_for: int = 1,
        timeout_s: float = 600.0,
    ) -> None:
        self._config = config if isinstance(config, Config) else Config.load(os.fspath(config))
        self._base = CheckpointSource(os.fspath(base))
        self._wait_for, self._timeout_s = wait_for, timeout_s
        self._job: Job | None = None
        self._publisher: Publisher | None = None
        self._named: set[str] = set()
        # reports from before the first version
        self._earlier_reports: dict[str, tuple[int, str]] = {}
        self.last: PublishReport | None = None

    def init_weight_transfer(self) -> None:
        self._job = Job(self._config, "trainer", launched=False)

    def pause(self) -> None:
        """Does nothing: an engine generates until its receiver has staged the version."""

    def send_weights(self, iterator: Iterable[tuple[str, torch.Tensor]]) -> None:
        if self._job is None:
            raise RuntimeError("send_weights() before init_weight_transfer()")
        sent = taken(self._base, iterator)
        if self._publisher is None:  # the first sync shows which tensors the run has
            base = {name: self._base.tensor(name) for name in sent}
            source = Tensors(self._base, base)
            self._publisher = Publisher(self._job, source, checkpoint=self._base)
            for note in self._publisher.notes:
                _logger.warning("driftless: %s", note)
            found = self._publisher.receivers()
            self._earlier_reports = {each.id: (each.version, each.proof) for each in found}
        self.last = self._publisher.publish(Tensors(self._base, sent))
        self._await_receivers(self._publisher, self.last)

    def resume(self) -> None:
        """Does nothing: see pause()."""

    def destroy(self) -> None:
        """Ends the run; receivers see that."""
        job, publisher = self._job, self._publisher
        self._job = self._publisher = None
        try:
            if publisher is not None:
                publisher.declare_end()
        finally:
            if job is not None:
                job.close()

    def _await_receivers(self, publisher: Publisher, sent: PublishReport) -> None:
        deadline = time.monotonic() + self._timeout_s
        waiting = Waiting()
        while True:
            found = publisher.receivers()
            there = [each for each in found if self._holds(each, sent)]
            if len(there) >= self._wait_for:
                self._name_unproven(e.id for e in there if e.partial or not e.proven)
                return
            known = ", ".join(map(_described, found)) or "none is there"
            text = f"{len(there)} of {self._wait_for} receivers have version {sent.version}: {known}"
            waiting.look(functools.partial(str, text))
            if time.monotonic() > deadline:
                raise DeadlineExceededError(
                    f"version {sent.version} (digest {sent.digest}) is published, but {len(there)} "
                    f"of {self._wait_for} receivers have it after {self._timeout_s:g} s "
                    f"({known}): check the agent's log, or lower wait_for="
                )
            time.sleep(0.02)

    def _holds(self, receiver: ReceiverReport, sent: PublishReport) -> bool:
        """Compares digests: an earlier run's receiver may have left a report with the same version
        number. A receiver of only some tensors has another digest; it counts if it reported in this
        run."""
        if receiver.version != sent.version or not receiver.digest:
            return False
        if receiver.partial:
            return self._earlier_reports.get(receiver.id) != (receiver.version, receiver.proof)
        return receiver.digest == sent.digest

    def _name_unproven(self, ids: Iterable[str]) -> None:
        """Logs, once, each counted receiver that does not prove all tensors of the version."""
        if new := sorted(set(ids) - self._named):
            self._named.update(new)
            logging.getLogger(__name__).warning(
                "counted as receivers, and do not prove all tensors of the version: %s",
                ", ".join(new),
            )


def _described(receiver: ReceiverReport) -> str:
    if not receiver.digest:
        return f"{receiver.id}: nothing"
    return f"{receiver.id}: version {receiver.version} with digest {receiver.digest}"

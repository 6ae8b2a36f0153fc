# SPDX-License-Identifier: Apache-2.0
"""TRL's asynchronous trainers, with Driftless as what moves their weights.

    AsyncGRPOTrainer(..., weight_transfer=driftless.trl.WeightTransfer(config, base=model_path))

TRL calls it on its main process, with whole tensors. docs/start/trl.md shows it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ._native import CheckpointSource, Config, Job, Publisher, PublishReport, TensorSpec
from .errors import DeadlineExceededError, WrongLayoutError
from .torch_dtypes import TORCH_DTYPES


class WeightTransfer:
    """What TRL asks of a weight transfer (its WeightTransferProtocol). A version of the run for every
    sync: the first one, of the weights as they were loaded, too.

    `config`: of Driftless, or its file. `base`: the checkpoint that trainer and engines start from;
    what TRL sends is published under its names and in its types, and what TRL does not send (frozen
    towers, stored copies of tied tensors) is no part of the run. `wait_for`: so many receivers
    (agents, engines) have the version before a sync returns; if they do not within `timeout_s`, that
    is an error. Engines are paused by their own receivers, for the commit alone: pause() and
    resume() do nothing."""

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
        self.last: PublishReport | None = None

    def init_weight_transfer(self) -> None:
        self._job = Job(self._config, "trainer", launched=False)

    def pause(self) -> None:
        """Nothing: an engine goes on until its receiver has the version ready."""

    def send_weights(self, iterator: Iterable[tuple[str, torch.Tensor]]) -> None:
        if self._job is None:
            raise RuntimeError("send_weights() before init_weight_transfer()")
        sent = _taken(self._base, iterator)
        if self._publisher is None:  # which tensors the run has is known now
            base = {name: self._base.tensor(name) for name in sent}
            self._publisher = Publisher(self._job, _Tensors(self._base, base))
        self.last = self._publisher.publish(_Tensors(self._base, sent))
        self._await_receivers(self._publisher, self.last.version)

    def resume(self) -> None:
        """Nothing: see pause()."""

    def destroy(self) -> None:
        """The run has ended, and receivers are told."""
        job, publisher = self._job, self._publisher
        self._job = self._publisher = None
        try:
            if publisher is not None:
                publisher.declare_end()
        finally:
            if job is not None:
                job.close()

    def _await_receivers(self, publisher: Publisher, version: int) -> None:
        deadline = time.monotonic() + self._timeout_s
        while True:
            found = publisher.receivers()
            there = [each.id for each in found if each.version >= version]
            if len(there) >= self._wait_for:
                return
            if time.monotonic() > deadline:
                known = ", ".join(f"{each.id}: version {each.version}" for each in found)
                raise DeadlineExceededError(
                    f"version {version} is published, but {len(there)} of {self._wait_for} "
                    f"receivers have it after {self._timeout_s:g} s ({known or 'none is there'}): "
                    "look at the agent's log, or wait for fewer (wait_for=)"
                )
            time.sleep(0.02)


class _Tensors:
    """Tensors of the base's names as a source."""

    def __init__(self, base: CheckpointSource, tensors: dict[str, Any]) -> None:
        self._specs = [spec for spec in base.tensors() if spec.name in tensors]
        self._tensors = tensors

    def tensors(self) -> list[TensorSpec]:
        return self._specs

    def visit(self) -> Iterator[list[tuple[int, Any]]]:
        for number, spec in enumerate(self._specs):
            yield [(number, self._tensors[spec.name])]


def _taken(
    base: CheckpointSource, iterator: Iterable[tuple[str, torch.Tensor]]
) -> dict[str, torch.Tensor]:
    """What TRL sends comes once, and a dense version is read twice: it is kept, in the base's types,
    in host memory. All of it is taken, whatever fails: the other ranks take part in every tensor's
    gather."""
    specs = {spec.name: spec for spec in base.tensors()}
    found: dict[str, torch.Tensor] = {}
    wrong: WrongLayoutError | None = None
    for name, tensor in iterator:
        spec = specs.get(name)
        if spec is not None and name not in found and tuple(tensor.shape) == tuple(spec.shape):
            dtype = TORCH_DTYPES[spec.dtype]
            found[name] = tensor.detach().to(device="cpu", dtype=dtype, copy=True).contiguous()
        elif wrong is None:
            there = "not there" if spec is None else f"of shape {tuple(spec.shape)}"
            wrong = WrongLayoutError(
                f"{base.path}: the trainer sends '{name}' of shape {tuple(tensor.shape)}"
                f"{' twice' if name in found else ''}; in the checkpoint it is {there}. Give base= "
                "the checkpoint that the trainer was started from"
            )
    if wrong is not None:
        raise wrong
    return found

# SPDX-License-Identifier: Apache-2.0
"""vLLM's weight transfer backend `driftless`. vLLM imports it in its workers.

It commits what the worker extension staged. Failures are kept in the rank's receiver and reported
by driftless_status: an exception on one rank only would put the ranks out of step for good.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from .vllm import EXTENSION, make_receiver

RELOADING = (
    "vLLM is about to reload the model: begin with start_weight_update(is_checkpoint_format=False)"
)


@dataclass
class InitInfo(WeightTransferInitInfo):
    source: str | None = None  # a name that the operator allowed (allowed.py); None: "own"
    nonce: str = ""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    version: int | None = None  # None: whatever is staged
    nonce: str = ""
    ticket: str = ""  # of the staging that it commits
    # Releases without start_weight_update read this to decide whether to prepare a reload.
    is_checkpoint_format: bool = False


class DriftlessTransferEngine(WeightTransferEngine):
    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    # Whether the backend implements start and finish. In older releases the worker does, and may
    # prepare a reload; driftless_commit needs neither.
    prepares_updates = hasattr(WeightTransferEngine, "start_weight_update")

    def __init__(self, config: Any, *rest: Any, **named: Any) -> None:
        """Takes (config, vllm_config, device, model); in older releases (config, parallel_config),
        and in some (config, parallel_config, model)."""
        super().__init__(config, *rest, **named)
        self.receiver: Any = None  # in older releases the extension makes it
        if hasattr(self, "vllm_config") and getattr(self, "model", None) is not None:
            self.receiver = make_receiver(self.vllm_config, self.model, rank_of(self))

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        if self.receiver is not None:
            self.receiver.open_allowed(init_info.source, init_info.nonce)

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class, without its synchronization of an accelerator, which raises on
        machines that have none."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(
        self, update_info: UpdateInfo, load_weights: Callable[..., Any] | None = None
    ) -> None:
        """Older releases pass `load_weights`, and call this inside the worker's default device."""
        if self.receiver is None:  # the same on all ranks, so it may raise
            raise RuntimeError(
                "nothing follows a run here: start vLLM with --worker-extension-cls "
                f"{EXTENSION} and call driftless_open and driftless_stage first"
            )
        if inspect.ismethod(load_weights):
            # vLLM has moved the model's parameters to the meta device for a reload. Raising would
            # leave them there; vLLM's finish puts them back.
            self.receiver.refuse(RELOADING, update_info.nonce)
            return
        with torch.device("cpu") if load_weights else contextlib.nullcontext():
            self.receiver.commit(update_info.version, update_info.nonce, update_info.ticket)

    def finish_weight_update(self) -> None: ...

    def shutdown(self) -> None:
        if self.receiver is not None:
            self.receiver.close()

    @staticmethod
    def trainer_send_weights(*_: Any, **__: Any) -> None:
        """An abstract method in older releases. Trainers publish by driftless.Publisher or its
        hooks."""
        raise NotImplementedError("weights are published by driftless.Publisher, not by vLLM")


def rank_of(engine: Any) -> int:
    if torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return getattr(engine.parallel_config, "rank", 0)

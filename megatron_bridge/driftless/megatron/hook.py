# SPDX-License-Identifier: Apache-2.0
"""If a training run calls us: after `optimizer.step()`."""

from __future__ import annotations

from typing import Any

from .arguments import options_from
from .session import Session


def attach(
    model: Any, optimizer: Any, args: Any, hf_config: dict[str, Any] | None = None
) -> Session | None:
    """Starts weight updates for a run that was given the flags; None (and nothing of ours runs)
    where they are off. Collective over all trainer ranks, before training and after a checkpoint
    was loaded.

    `model`: what Megatron's `get_model()` returns, or one model. `hf_config`: the contents of the
    model's config.json, where neither --update-weight-hf-checkpoint nor the model itself tells.
    """
    options = options_from(args)
    if options is None:
        return None
    session = Session(model, options, args, hf_config, optimizer)
    wrap_step(optimizer, session)
    return session


def wrap_step(optimizer: Any, session: Session) -> None:
    """MegatronOptimizer.step() returns (successful, grad norm, zeros); its result is passed on."""
    inner = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        successful = result[0] if isinstance(result, tuple) else True
        session.after_step(bool(successful))
        return result

    optimizer.step = step

# SPDX-License-Identifier: Apache-2.0
"""If a training run calls us: after `optimizer.step()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .arguments import options_from
from .session import Session


def attach(
    model: Any, optimizer: Any, args: Any, hf_config: dict[str, Any] | None = None
) -> Session | None:
    """Starts weight updates for a run that was given the flags; None (and nothing of ours runs)
    where they are off. Collective over all trainer ranks, before training and after a checkpoint
    was loaded. Called again, for parameters that were moved or loaded anew, it takes the run over
    from the session that has its road: rollouts follow on.

    `model`: what Megatron's `get_model()` returns, or one model. `hf_config`: the contents of the
    model's config.json, where neither --update-weight-hf-checkpoint nor the model itself tells.
    """
    options = options_from(args)
    if options is None:
        return None
    sessions: list[Session] = optimizer.__dict__.setdefault("_driftless_sessions", [])
    session = Session(model, options, args, hf_config, optimizer, sessions)
    sessions[:] = [each for each in sessions if not each.closed] + [session]
    session.hooks.append(wrap_step(optimizer, session))
    return session


def wrap_step(optimizer: Any, session: Session) -> Callable[[], None]:
    """MegatronOptimizer.step() returns (successful, grad norm, zeros); its result is passed on.
    Returns what ends our part."""
    inner = optimizer.step
    sessions = [session]

    def step(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        successful = result[0] if isinstance(result, tuple) else True
        for each in sessions:
            each.after_step(bool(successful))
        return result

    optimizer.step = step
    return sessions.clear

# SPDX-License-Identifier: Apache-2.0
"""Where training calls Driftless: after `optimizer.step()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .arguments import options_from
from .session import Session


def attach(
    model: Any, optimizer: Any, args: Any, hf_config: dict[str, Any] | None = None
) -> Session | None:
    """Starts weight updates if the flags ask for them; otherwise returns None and does nothing.
    Collective over all trainer ranks, before training and after a checkpoint was loaded. A second
    call, for parameters that were moved or loaded again, continues the run of the session with the
    same road: rollouts keep following.

    `model`: the result of Megatron's `get_model()`, or one model. `hf_config`: the contents of the
    model's config.json, needed if neither --update-weight-hf-checkpoint nor the model provides it.
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
    """Wraps MegatronOptimizer.step(), which returns (successful, grad norm, zeros); the result is
    passed on. Returns a function that removes the wrapper."""
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

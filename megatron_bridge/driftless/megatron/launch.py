# SPDX-License-Identifier: Apache-2.0
"""`python -m driftless.megatron SCRIPT ARGS...`: runs an unchanged Megatron-LM script with our
flags.

It wraps three functions of `megatron.training` before the script imports them: the argument parser
gets the flags, the argument validation refuses wrong flags, and the setup of model and optimizer
attaches the hook.
"""

from __future__ import annotations

import functools
import inspect
import os
import runpy
import sys
from collections.abc import Callable
from typing import Any

from ..torch_group import torch_environment
from .arguments import add_arguments
from .checks import check_arguments
from .errors import SyncError
from .session import Session

_sessions: list[Session] = []  # sessions of this process' script; closed at its end


def _with_flags(provider: Callable[..., Any] | None) -> Callable[..., Any]:
    def extra(parser: Any) -> Any:
        return add_arguments(provider(parser) if provider else parser)

    return extra


def _wrap_parser(module: Any, name: str) -> bool:
    """Adds our flags to those of a function's `extra_args_provider`."""
    inner = getattr(module, name, None)
    if inner is None or "extra_args_provider" not in inspect.signature(inner).parameters:
        return False

    @functools.wraps(inner)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(inner).bind_partial(*args, **kwargs)
        bound.arguments["extra_args_provider"] = _with_flags(
            bound.arguments.get("extra_args_provider")
        )
        return inner(*bound.args, **bound.kwargs)

    setattr(module, name, wrapped)
    return True


def _wrap_validation(module: Any, name: str) -> None:
    """Checks arguments after they are validated (and complete), before a model is built."""
    inner = getattr(module, name, None)
    if inner is None:
        return

    @functools.wraps(inner)
    def wrapped(args: Any, *more: Any, **kwargs: Any) -> Any:
        result = inner(args, *more, **kwargs)
        check_arguments(args if result is None else result)
        return result

    setattr(module, name, wrapped)


def _replace_taken(module: Any, name: str) -> None:
    """Replaces the wrapped function in modules that have already imported it by name."""
    wrapped = getattr(module, name, None)
    for other in list(sys.modules.values()):
        if not getattr(other, "__name__", "").startswith("megatron.") or wrapped is None:
            continue
        if getattr(other, name, None) is inspect.unwrap(wrapped):
            setattr(other, name, wrapped)


def install() -> None:
    """Wraps the functions. Call it before the script imports Megatron's training."""
    import megatron.training.arguments as arguments
    import megatron.training.training as training

    # Older releases parse in initialize_megatron(), newer ones in parse_and_validate_args().
    if not _wrap_parser(arguments, "parse_args"):
        raise SyncError(
            "this Megatron-LM's parse_args() takes no extra_args_provider; call "
            "driftless.megatron.add_arguments() and attach() from the training script"
        )
    _wrap_validation(arguments, "validate_args")
    for name in ("parse_args", "validate_args"):
        _replace_taken(arguments, name)
    setup = training.setup_model_and_optimizer

    @functools.wraps(setup)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        from .hook import attach

        result = setup(*args, **kwargs)
        session = attach(result[0], result[1], training.get_args())
        if session is not None:
            _sessions.append(session)
        return result

    training.setup_model_and_optimizer = wrapped
    _close_before_destroy()


def _close_before_destroy() -> None:
    """Ends the run while the ranks can still agree on it, before the process groups go."""
    import torch.distributed as dist

    destroy = dist.destroy_process_group

    @functools.wraps(destroy)
    def wrapped(group: Any = None) -> None:
        if group is None:
            _close_sessions()
        destroy(group)

    dist.destroy_process_group = wrapped


def _close_sessions() -> None:
    while _sessions:
        session = _sessions.pop(0)
        try:
            session.close()
        except Exception as failure:
            session.report.failure(failure)


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if not given or given[0] in ("-h", "--help"):
        print("usage: python -m driftless.megatron SCRIPT ARGS...\n\n"
              "Runs a Megatron-LM training script with the flags --update-weight-...\n"
              "and the hook behind them. `SCRIPT --help` lists them.", file=sys.stderr)  # fmt: skip
        return 0 if given else 2
    script = given[0]
    torch_environment()
    sys.argv = list(given)
    directory = os.path.dirname(os.path.abspath(script))
    sys.path.insert(0, directory)  # as `python SCRIPT` does
    install()
    runpy.run_path(script, run_name="__main__")
    _close_sessions()
    return 0

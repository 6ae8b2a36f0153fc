# SPDX-License-Identifier: Apache-2.0
"""Known optimizers of Megatron: which elements of each parameter a rank's optimizer writes, and
from which fp32 values.

Known optimizers keep fp32 values beside bf16 (or fp16) parameters, and copy them in
`_copy_main_params_to_model_params()`. Just before that copy, the old and new values of exactly the
elements that the rank owns are both available. For other optimizers `unknown()` returns the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from .checks import OPTIMIZER_WRITES_ELSEWHERE
from .topology import RankFacts, Sizes

COPY = "_copy_main_params_to_model_params"


class Owned(NamedTuple):
    """Elements [begin, end) of a flat parameter that this rank's optimizer writes."""

    begin: int
    end: int
    owner: bool  # whether this rank publishes them
    # index in children() of the optimizer that writes them; None: no optimizer does
    child: int | None = None
    main: torch.Tensor | None = None  # their fp32 values
    main_begin: int = 0  # their first element in `main`


def children(optimizer: Any) -> list[Any]:
    """The inner optimizers that have parameters on this rank."""
    found = getattr(optimizer, "chained_optimizers", [optimizer])
    return [child for child in found if not getattr(child, "is_stub_optimizer", False)]


def unknown(optimizer: Any) -> str | None:
    """Why changes cannot be captured at this optimizer's writes; None: they can."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from megatron.core.optimizer.optimizer import (
        ChainedOptimizer,
        Float16OptimizerWithFloat16Params,
    )

    if optimizer is None:
        return "no optimizer was passed"
    known = (DistributedOptimizer, Float16OptimizerWithFloat16Params)
    if type(optimizer) not in (ChainedOptimizer, *known):
        return f"the optimizer {type(optimizer).__name__} is not known"
    for child in children(optimizer):
        if type(child) not in known:
            return f"the optimizer {type(child).__name__} is not known"
        reason = _unusual(child)
        if reason is not None:
            return reason
    return None


def _unusual(child: Any) -> str | None:
    """Why an optimizer of a known class writes parameters elsewhere or in another way; None: it
    does not."""
    config, ddp = child.config, getattr(child, "ddp_config", None)
    for name in OPTIMIZER_WRITES_ELSEWHERE:
        if getattr(config, name, False) or getattr(ddp, name, False):
            return f"{name} is set"
    for parameter, main in _pairs(child):
        if parameter.dtype not in (torch.bfloat16, torch.float16):
            return f"a parameter of type {parameter.dtype} is written in place"
        if not parameter.is_contiguous() or main is None or not main.is_contiguous():
            return f"a parameter of shape {tuple(parameter.shape)} has no contiguous fp32 values"
    return None


def _pairs(child: Any) -> Iterator[tuple[Any, Any]]:
    """Every parameter that this rank's optimizer writes in part or whole, with its fp32 values."""
    ranges = hasattr(child, "shard_fp32_from_float16_groups")
    names = (
        ("model_float16_groups", "shard_fp32_from_float16_groups", "model_fp32_groups")
        if ranges
        else ("float16_groups", "fp32_from_float16_groups", "fp32_from_fp32_groups")
    )
    models, mains, in_place = (getattr(child, name) for name in names)
    for model_group, main_group in zip(models, mains, strict=True):
        yield from zip(model_group, main_group, strict=True)
    for group in in_place:
        yield from zip(group, group, strict=True)


def owned(optimizer: Any, facts: RankFacts, sizes: Sizes) -> dict[torch.Tensor, Owned]:
    """Ownership of every parameter that this rank's known optimizer writes. With the distributed
    optimizer a rank owns what it updates. Replicas that every data-parallel rank updates are
    divided among these ranks."""
    found = {}
    for number, child in enumerate(children(optimizer)):
        distributed = hasattr(child, "shard_fp32_from_float16_groups")
        first = getattr(child, "distributed_optimizer_instance_id", 0) == 0
        for parameter, main in _pairs(child):
            if distributed:
                part = child._get_model_param_range_map(parameter)["param"]
                found[parameter] = Owned(part.start, part.end, first, number, main)
                continue
            expert = not getattr(parameter, "allreduce", True)
            rank, count = (facts.edp, sizes.edp) if expert else (facts.dp, sizes.dp)
            begin, end = (parameter.numel() * n // count for n in (rank, rank + 1))
            found[parameter] = Owned(begin, end, True, number, main, begin)
    return found


def before_copies(optimizer: Any, call: Callable[[int], None]) -> Callable[[], None]:
    """Calls `call` with the index in children(), before that optimizer copies fp32 values to
    parameters. Returns a function that removes the hook."""
    calls = [call]
    for number, child in enumerate(children(optimizer)):
        setattr(child, COPY, _preceded(getattr(child, COPY), calls, number))
    return calls.clear


def _preceded(
    inner: Callable[..., Any], calls: list[Callable[[int], None]], number: int
) -> Callable[..., Any]:
    def copy(*args: Any, **kwargs: Any) -> Any:
        for call in calls:
            call(number)
        return inner(*args, **kwargs)

    return copy

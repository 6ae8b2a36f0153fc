# SPDX-License-Identifier: Apache-2.0
"""For vLLM on a CPU: keeps parameters as they were loaded, so that they can be written in place.

vLLM's CPU kernels want other layouts: linears are packed and their parameter emptied, experts are
packed in place. Here linears run by torch, and experts are packed on every call. That is slow: it
is for tests and small models. On a GPU unquantized layers keep their layout by themselves.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any


def keep() -> None:
    """Idempotent. Before models are loaded."""
    from vllm import _custom_ops

    _custom_ops._supports_onednn = False
    # Older releases pack otherwise, or not.
    with contextlib.suppress(ImportError):
        from vllm.model_executor.layers.fused_moe.experts import cpu_moe

        if hasattr(cpu_moe, "CPUUnquantizedExperts"):
            keep_experts(cpu_moe)


def keep_experts(cpu_moe: Any) -> None:
    experts: Any = cpu_moe.CPUUnquantizedExperts
    if getattr(experts, "_driftless_keeps", False):
        return
    apply, pack = experts.apply, cpu_moe.cpu_prepack_moe_weight
    signature = inspect.signature(apply)

    def packed_apply(*arguments: Any, **named: Any) -> Any:
        call = signature.bind(*arguments, **named)
        for name in ("w1", "w2"):
            call.arguments[name] = pack(call.arguments[name], call.arguments["self"].isa)
        only_own(call.arguments)
        return apply(*call.args, **call.kwargs)

    def keeps(self: Any, layer: Any) -> None:
        wanted = self._padded_intermediate_size(self.moe_config)
        if wanted != self.moe_config.intermediate_size_per_partition:
            raise RuntimeError("experts that need padding cannot keep their layout")

    experts.apply, experts.process_weights_after_loading = packed_apply, keeps
    experts._driftless_keeps = True


def only_own(given: dict[str, Any]) -> None:
    """vLLM's CPU kernel takes every expert for one of its own, also if each rank has some of them
    (expert parallel): those of other ranks count nothing here."""
    if (slots := given.get("expert_map")) is not None:
        own = slots[given["topk_ids"].long()]
        given["topk_weights"] = given["topk_weights"].masked_fill(own < 0, 0)
        given["topk_ids"] = own.clamp(min=0).to(given["topk_ids"].dtype)

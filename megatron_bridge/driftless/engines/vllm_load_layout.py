# SPDX-License-Identifier: Apache-2.0
"""For vLLM on a CPU: keeps parameters as loaded, so that they can be written in place.

vLLM's CPU kernels use other layouts: they pack linears and empty the parameter, and pack experts in
place. With this module linears run in torch, and experts are packed on every call. That is slow: it
is for tests and small models. On a GPU unquantized layers keep their layout anyway.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any


def keep() -> None:
    """Idempotent. Call it before models are loaded."""
    from vllm import _custom_ops

    _custom_ops._supports_onednn = False
    # Older releases pack in another way, or not at all.
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
        zero_remote_experts(call.arguments)
        return apply(*call.args, **call.kwargs)

    def keeps(self: Any, layer: Any) -> None:
        wanted = self._padded_intermediate_size(self.moe_config)
        if wanted != self.moe_config.intermediate_size_per_partition:
            raise RuntimeError("experts that need padding cannot keep their layout")

    experts.apply, experts.process_weights_after_loading = packed_apply, keeps
    experts._driftless_keeps = True


def zero_remote_experts(given: dict[str, Any]) -> None:
    """Zeroes the weights of experts that other ranks hold (expert parallel): vLLM's CPU kernel
    takes every expert for a local one."""
    if (slots := given.get("expert_map")) is not None:
        local = slots[given["topk_ids"].long()]
        given["topk_weights"] = given["topk_weights"].masked_fill(local < 0, 0)
        given["topk_ids"] = local.clamp(min=0).to(given["topk_ids"].dtype)

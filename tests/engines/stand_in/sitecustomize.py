# SPDX-License-Identifier: Apache-2.0
"""Prepares Python for SGLang on a CPU, before SGLang is imported.

Some builds of torchvision crash on import, because their operators are missing in torch. SGLang
imports torchvision without using it, so an empty module replaces the part that fails.

SGLang's experts in plain torch fail with expert parallelism ("index -1 is out of bounds"): experts
of other ranks have the number -1. This gives them the weight 0.

With DRIFTLESS_TEST_FP8, linears in FP8 blocks run as on a Hopper GPU, with a kernel in plain torch:
the kernels for CPUs need AMX.
"""

import importlib.abc
import importlib.util
import os
import sys
import types

NAME = "torchvision._meta_registrations"
sys.modules.setdefault(NAME, types.ModuleType(NAME))



def patch_experts(module):
    forward = module.moe_forward_native

    def own_experts(layer, x, topk_output, *more):
        weights, experts = topk_output.topk_weights, topk_output.topk_ids
        if not (experts < 0).any():
            return forward(layer, x, topk_output, *more)
        result = x.new_zeros(x.shape)
        for number, (both, down) in enumerate(zip(layer.w13_weight, layer.w2_weight)):
            gate, up = (x @ both.t()).chunk(2, dim=-1)
            share = weights.masked_fill(experts != number, 0).sum(dim=-1, keepdim=True)
            result += share.to(x.dtype) * ((gate * gate.sigmoid() * up) @ down.t())
        return result

    module.moe_forward_native = own_experts


def plain_linear(input, weight, block_size, weight_scale, input_scale=None, bias=None, **_):
    whole = weight_scale.repeat_interleave(block_size[0], 0).repeat_interleave(block_size[1], 1)
    values = weight.float() * whole[: weight.shape[0], : weight.shape[1]]
    made = input @ values.to(input.dtype).T
    return made if bias is None else made + bias


def patch_fp8(module):
    import torch

    dtypes = [torch.float32, torch.bfloat16, torch.half]
    module._is_cpu = False
    module.dispatch_w8a8_block_fp8_linear = lambda *_, **__: plain_linear
    module.Fp8Config.get_supported_act_dtypes = classmethod(lambda _: dtypes)


PATCHES = {"sglang.srt.layers.moe.fused_moe_native": patch_experts}
if os.environ.get("DRIFTLESS_TEST_FP8"):
    PATCHES["sglang.srt.layers.quantization.fp8"] = patch_fp8


class Patched(importlib.abc.Loader):
    def __init__(self, loader, patch):
        self.loader, self.patch = loader, patch

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        self.patch(module)


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in PATCHES:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None:
            spec.loader = Patched(spec.loader, PATCHES[name])
        return spec


sys.meta_path.insert(0, Finder())

# SPDX-License-Identifier: Apache-2.0
"""What SGLang needs on a CPU before it is imported.

torchvision's build for some machines has operators that its torch has not, and dies of them when it
is imported. SGLang imports it without using it.

SGLang's experts in plain torch fail with expert parallelism ("index -1 is out of bounds"): experts
of other ranks have the number -1 there. Here they count nothing.
"""

import importlib.abc
import importlib.util
import sys
import types

NAME = "torchvision._meta_registrations"
sys.modules.setdefault(NAME, types.ModuleType(NAME))

EXPERTS = "sglang.srt.layers.moe.fused_moe_native"


class Patched(importlib.abc.Loader):
    def __init__(self, loader):
        self.loader = loader

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
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


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != EXPERTS:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None:
            spec.loader = Patched(spec.loader)
        return spec


sys.meta_path.insert(0, Finder())

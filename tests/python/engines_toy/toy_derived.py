# SPDX-License-Identifier: Apache-2.0
"""Toy engines that compute tensors from their parameters after loading, as MLA does."""

from types import SimpleNamespace

import torch

from toy_engine import HEADS, HIDDEN, ToyEngine


def absorbed(weight):
    """Two parts of a projection, each in a kernel's layout."""
    first, second = weight.view(HIDDEN, 2, HEADS // 2).unbind(1)
    return first.t().contiguous(), (second.float() * 2).to(weight.dtype)


class Derived(ToyEngine):
    """`derived`: the derived tensors, for comparison: {name: tensor}."""

    def __init__(self, rank=0, tp=1, odd=()):
        super().__init__(rank, tp, odd)
        # Every model has such tensors, which depend on no parameter.
        self.rotary = [torch.arange(64.0).cos(), torch.arange(64.0).sin()]
        self.mask = torch.ones(32, 32).tril()
        self.register_buffer("table", torch.arange(40.0), persistent=False)

    def derived(self):
        return {
            f"{i}.{name}": tensor
            for i, layer in enumerate(self.layers)
            for name, tensor in self.derived_of(layer).items()
        }

    def derived_of(self, layer):
        return {name: layer.__dict__[name] for name in ("w_kc", "w_vc")}


class Posted(Derived):
    """As SGLang: a method of the model that copies into existing tensors, or assigns new ones."""

    def post_load_weights(self, weight_names=None):
        for layer in self.layers:
            for name, new in zip(("w_kc", "w_vc"), absorbed(layer.o.data), strict=True):
                old = layer.__dict__.get(name)
                if old is None:
                    layer.__dict__[name] = new
                else:
                    old.copy_(new)


class PostedInLoader(Posted):
    """As DeepSeek in SGLang: the loader calls the method."""

    def load_weights(self, weights):
        super().load_weights(weights)
        self.post_load_weights()


class Assigned(Posted):
    """As older vLLM: in a helper object, a new tensor each time."""

    def post_load_weights(self, weight_names=None):
        for layer in self.layers:
            new = absorbed(layer.o.data)
            if "impl" not in layer.__dict__:
                layer.__dict__["impl"] = SimpleNamespace()
            layer.impl.w_kc, layer.impl.w_vc = new

    def derived_of(self, layer):
        return {"w_kc": layer.impl.w_kc, "w_vc": layer.impl.w_vc}


class Processed(Derived):
    """As vLLM: each layer has a method that takes a dtype and makes parameters."""

    def __init__(self, rank=0, tp=1, odd=()):
        super().__init__(rank, tp, odd)
        for layer in self.layers:
            layer.process_weights_after_loading = lambda act_dtype, on=layer: self.process(on)

    def process(self, layer):
        for name, new in zip(("W_UK_T", "W_UV"), absorbed(layer.o.data), strict=True):
            if name in layer._parameters:
                layer._parameters[name].data.copy_(new)
            else:
                setattr(layer, name, torch.nn.Parameter(new, requires_grad=False))

    def post_load_weights(self):
        for layer in self.layers:
            self.process(layer)

    def derived_of(self, layer):
        return {"W_UK_T": layer.W_UK_T.data, "W_UV": layer.W_UV.data}


class Failing(Posted):
    """Fails a given number of times, after some of the work."""

    failures = 0

    def post_load_weights(self, weight_names=None):
        super().post_load_weights()
        if self.failures:
            self.failures -= 1
            self.layers[0].w_kc.zero_()
            raise RuntimeError("injected")


class NotTwice(Posted):
    """Changes the parameter itself, so it cannot run twice."""

    def post_load_weights(self, weight_names=None):
        for layer in self.layers:
            layer.w_kc = layer.o.data * 2
            layer.o.data.mul_(2)


class OnlyInLoader(Derived):
    """Has no method: the loader computes the tensor."""

    def load_weights(self, weights):
        pairs = list(weights)
        super().load_weights(pairs)
        for name, _ in pairs:
            if name.endswith("o.weight"):
                layer = self.layers[int(name.split(".")[1])]
                for key, new in zip(("w_kc", "w_vc"), absorbed(layer.o.data), strict=True):
                    layer.__dict__[key] = new


class Unknown(Derived):
    """Copies of unknown origin: fused, transposed, converted."""

    def make(self):
        for layer in self.layers:
            rows = layer.qkv.data.float()
            layer.parts = {"q": rows[:HEADS].clone(), "kv": (rows[HEADS:].t().contiguous(),)}


class Fused(Derived):
    """One copy of several parameters."""

    def make(self):
        for layer in self.layers:
            layer.both = torch.cat([layer.gate_up.data, layer.qkv.data]).t().contiguous()


class Cut(Derived):
    """A copy of a part of a parameter."""

    def make(self):
        for layer in self.layers:
            layer.queries = layer.qkv.data[:HEADS].clone()


class Waiting(ToyEngine):
    """As SGLang's DeepSeek with q_a_proj and kv_a_proj: keeps one part until the other arrives, and
    copies both at once."""

    def load_weights(self, weights):
        kept = {}

        def others():
            for name, tensor in weights:
                layer, _, part = name.rpartition(".")[0].rpartition(".")
                if part not in ("gate", "up") or "experts" in name:
                    yield name, tensor
                    continue
                kept[name] = tensor
                both = [kept.get(f"{layer}.{each}.weight") for each in ("gate", "up")]
                if all(each is not None for each in both):
                    into = self.layers[int(layer.split(".")[1])].gate_up
                    into.data.copy_(torch.cat(both, dim=0))
                    for each in ("gate", "up"):
                        kept.pop(f"{layer}.{each}.weight")

        super().load_weights(others())

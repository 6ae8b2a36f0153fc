# SPDX-License-Identifier: Apache-2.0
"""A toy engine with codes and scales that changes them after loading as real engines do: other
objects without loaders, requantized, swapped, packed, or with a copy of the scales in its
kernel."""

from contextlib import contextmanager
from functools import partial

import torch

from driftless.engines.load_layout import LoadLayout, put_back, restore

ROWS, COLUMNS, EXPERTS = 8, 16, 3
CODES = torch.float8_e4m3fn
HOW = ("kept", "requantized", "swapped", "packed", "copied")


class Loaded(torch.nn.Parameter):
    """A parameter as the loader expects it."""


def block_shapes():
    shapes = {"norm": (torch.bfloat16, (COLUMNS,))}
    for layer in ("a", "b"):
        for part in ("gate", "up"):
            for expert in range(EXPERTS):
                name = f"{layer}.{expert}.{part}.weight"
                shapes[name] = (CODES, (ROWS, COLUMNS))
                shapes[f"{name}_scale_inv"] = (torch.float32, (1, 1))
    return shapes


class Experts(torch.nn.Module):
    """gate and up of each expert, and their scales; changed after loading according to `how`."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.reset()
        self.wanted = {
            name: self.to_meta(each) for name, each in self.named_parameters(recurse=False)
        }

    def reset(self):
        self.w13 = Loaded(torch.zeros(EXPERTS, 2 * ROWS, COLUMNS).to(CODES), requires_grad=False)
        self.scale = Loaded(torch.zeros(EXPERTS, 2, 1), requires_grad=False)
        for each in (self.w13, self.scale):
            each.load = self.load

    @staticmethod
    def to_meta(parameter):
        meta = parameter.data.to("meta")
        meta.__class__, meta.__dict__ = parameter.__class__, dict(parameter.__dict__)
        return meta

    @staticmethod
    def load(parameter, expert, part, tensor):
        rows = parameter.shape[1] // 2
        parameter.data[expert].narrow(0, rows * (part == "up"), rows).copy_(tensor)

    def finish(self):
        codes, scale = self.w13.data, self.scale.data
        if self.how == "requantized":
            codes, scale = (codes.float() / 2).to(CODES), scale * 2
        elif self.how == "swapped":
            codes, scale = (each.roll(each.shape[1] // 2, 1) for each in (codes.float(), scale))
            codes = codes.to(CODES)
        elif self.how == "packed":
            codes = codes.view(torch.int32).clone()
        elif self.how == "copied":
            self.kernel_scale = scale.clone()
        self.w13, self.scale = (torch.nn.Parameter(each, False) for each in (codes, scale))


class BlockEngine(torch.nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.norm = torch.nn.Parameter(torch.zeros(COLUMNS, dtype=torch.bfloat16), False)
        self.a, self.b = Experts(a), Experts(b)
        self.fails = False

    def load_weights(self, weights):
        self.load(weights)

    def load_one(self, name, tensor):
        layer, expert, part, kind = name.split(".")
        module = self.get_submodule(layer)
        parameter = module.w13 if kind == "weight" else module.scale
        parameter.load(parameter, int(expert), part, tensor)

    def load(self, weights):
        for name, tensor in weights:
            if name == "norm":
                self.norm.data.copy_(tensor)
                continue
            self.load_one(name, tensor)
            if self.fails:
                self.fails = False
                raise RuntimeError("injected in a reload")

    # --- LoadLayout's functions for ModuleTarget --------------------------------------------------

    @contextmanager
    def loading(self, stand_ins):
        restored = []
        with put_back(restored, stand_ins):
            for prefix in ("a", "b"):
                layer = self.get_submodule(prefix)
                for name, wanted in layer.wanted.items():
                    called = f"{prefix}.{name}"
                    made = restore(layer._parameters, name, wanted, stand_ins, called, id)
                    restored += [made] if made else []
            yield

    def unwritable(self):
        return {
            f"{prefix}.{name}": "its kernel has another scale"
            for prefix in ("a", "b")
            if self.get_submodule(prefix).how == "copied"
            for name in ("w13", "scale")
        }

    def module_of(self, parameter):
        owner = parameter.rpartition(".")[0]
        return owner or None

    def reload(self, modules, weights):
        layers = [self.get_submodule(name) for name in modules]
        kept = [dict(layer._parameters) for layer in layers]
        for layer in layers:
            layer.reset()
        try:
            self.load(weights)
            for layer, tensors in zip(layers, kept, strict=True):
                layer.finish()
                for name, tensor in tensors.items():
                    tensor.data.copy_(layer._parameters[name])
        finally:
            for layer, tensors in zip(layers, kept, strict=True):
                layer._parameters.update(tensors)

    def layout(self, reloads=True, rule=""):
        return LoadLayout(
            loading=self.loading,
            unwritable=self.unwritable,
            reloads=self if reloads else None,
            only_rule=lambda parameter: rule if "." in parameter else "",
            advice=lambda parameter: f"set KEEP={parameter.split('.')[0]}",
        )


def fresh_blocks(how, weights):
    engine = BlockEngine(*how)
    with torch.no_grad():
        engine.load(weights.items())
    for layer in (engine.a, engine.b):
        layer.finish()
    return engine


def block_weights(generator, values):
    weights = {}
    for name, (dtype, shape) in block_shapes().items():
        count = torch.Size(shape).numel()
        weights[name] = partial(values, generator, dtype, count)().reshape(shape)
        if dtype == torch.float32:
            weights[name].fill_(1.0)  # equal in both halves
    return weights

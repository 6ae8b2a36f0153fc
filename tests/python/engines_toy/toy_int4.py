# SPDX-License-Identifier: Apache-2.0
"""A toy engine with INT4 groups that repacks them after loading as Marlin does: other shapes, codes
in another order, scales transposed, parameters without loaders. Its trainer holds bfloat16."""

import json

import torch

import driftless
import toy_run
from toy_blocks import COLUMNS, BlockEngine, Loaded

ROWS, WIDE, GROUP = 16, 64, 32
SHAPES = {"a": (ROWS, WIDE), "b": (2 * ROWS, WIDE)}
# The order of a word's codes in Marlin's words.
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def in_groups(weights):
    """The checkpoint of these bfloat16 weights: packed codes, scales and shapes."""
    made = {}
    for name, tensor in weights.items():
        if name == "norm":
            made[name] = tensor
            continue
        rows, columns = tensor.shape
        groups = tensor.float().view(rows, -1, GROUP)
        largest = groups.abs().amax(2, keepdim=True)
        scale = (largest * torch.tensor(1 / 7, dtype=torch.float32)).clamp(min=1e-5)
        codes = (groups / scale).round().to(torch.int64).view(rows, -1, 8) + 8
        packed = (codes << (4 * torch.arange(8))).sum(2)
        made[f"{name}_packed"] = (packed - (packed >> 31 << 32)).to(torch.int32)
        made[f"{name}_scale"] = scale.view(rows, -1).bfloat16()
        made[f"{name}_shape"] = torch.tensor([rows, columns], dtype=torch.int32)
    return made


class Linear(torch.nn.Module):
    """`how`: "kept", or "marlin"."""

    def __init__(self, shape, how):
        super().__init__()
        self.shape, self.how = shape, how
        self.reset()
        self.wanted = {
            name: self.to_meta(each) for name, each in self.named_parameters(recurse=False)
        }

    def reset(self):
        rows, columns = self.shape
        made = {
            "weight_packed": torch.zeros(rows, columns // 8, dtype=torch.int32),
            "weight_scale": torch.zeros(rows, columns // GROUP, dtype=torch.bfloat16),
            "weight_shape": torch.zeros(2, dtype=torch.int32),
        }
        for name, tensor in made.items():
            parameter = Loaded(tensor, requires_grad=False)
            parameter.load = self.load
            setattr(self, name, parameter)

    @staticmethod
    def to_meta(parameter):
        meta = parameter.data.to("meta")
        meta.__class__, meta.__dict__ = parameter.__class__, dict(parameter.__dict__)
        return meta

    @staticmethod
    def load(parameter, tensor):
        parameter.data.copy_(tensor)

    def finish(self):
        made = {name: each.data for name, each in self._parameters.items()}
        if self.how == "marlin":
            codes = made["weight_packed"].to(torch.int64)[:, :, None] >> (4 * torch.arange(8)) & 15
            words = (codes[:, :, list(ORDER)] << (4 * torch.arange(8))).sum(2)
            words = (words - (words >> 31 << 32)).to(torch.int32)
            rows, wide = words.shape
            made["weight_packed"] = words.view(rows // 2, 2, wide).transpose(1, 2).reshape(wide, rows)
            made["weight_scale"] = made["weight_scale"].t().contiguous()
        for name, each in made.items():
            setattr(self, name, torch.nn.Parameter(each.clone(), False))


class Int4Engine(BlockEngine):
    def __init__(self, a, b):
        torch.nn.Module.__init__(self)
        self.norm = torch.nn.Parameter(torch.zeros(COLUMNS, dtype=torch.bfloat16), False)
        self.a, self.b = Linear(SHAPES["a"], a), Linear(SHAPES["b"], b)
        self.fails = False

    def load_one(self, name, tensor):
        layer, _, parameter = name.partition(".")
        parameter = getattr(self.get_submodule(layer), parameter)
        parameter.load(parameter, tensor)

    def unwritable(self):
        return {}


def fresh_int4(how, weights):
    """An engine that has loaded the checkpoint of these bfloat16 weights."""
    engine = Int4Engine(*how)
    with torch.no_grad():
        engine.load(in_groups(weights).items())
    for layer in (engine.a, engine.b):
        layer.finish()
    return engine


def int4_weights(generator):
    weights = {"norm": torch.randn(COLUMNS, generator=generator).bfloat16()}
    for layer, shape in SHAPES.items():
        weights[f"{layer}.weight"] = (torch.randn(shape, generator=generator) * 0.02).bfloat16()
    return weights


def stepped(generator, weights):
    """Some weights change a little; in some groups the largest one grows."""
    new = {}
    for name, tensor in weights.items():
        tensor = tensor.clone()
        flat = tensor.view(-1)
        some = torch.randperm(len(flat), generator=generator)[: len(flat) // 10]
        flat[some] = (flat[some].float() * 1.1).bfloat16()
        flat[int(some[0])] *= 3
        new[name] = tensor
    return new


class Int4Run(toy_run.Run):
    """A trainer in bfloat16 whose base has INT4 groups."""

    def write_base(self, weights):
        super().write_base(in_groups(weights))
        only = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
        config = {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"weights": only}},
        }
        text = json.dumps({"quantization_config": config})
        (self.base / "config.json").write_text(text)

    def open(self, weights):
        return driftless.Publisher(self.trainer, toy_run.Source(weights), checkpoint=self.base)

# SPDX-License-Identifier: Apache-2.0
"""A trainer of the toy engine's weights: random checkpoints, deltas with awkward values, a road."""

import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

import driftless
from toy_engine import checkpoint_shapes

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NAMES = {
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
}


def bits(tensor):
    return tensor.view(_BITS[tensor.element_size()])


def random_values(generator, dtype, count):
    if not dtype.is_floating_point:
        return torch.randint(-(2**62), 2**62, (count,), generator=generator)
    return torch.randn(count, generator=generator).to(dtype)


def awkward(generator, dtype, count):
    """Adds NaNs of both signs with odd payloads, infinities and -0."""
    values = random_values(generator, dtype, count)
    if not dtype.is_floating_point or count == 0:
        return values
    special = {
        torch.bfloat16: [0x7FC0, 0x7FA5, -1, 0x7F80, -0x80, -0x8000, 1],
        torch.float32: [0x7FC00000, 0x7FA00001, -1, 0x7F800000, -0x800000, -(2**31), 1],
        torch.float8_e4m3fn: [0x7F, 0xFF, 0x80, 0x01],
    }[dtype]
    where = torch.rand(count, generator=generator) < 0.2
    chosen = torch.randint(len(special), (count,), generator=generator)
    table = torch.tensor(special, dtype=_BITS[values.element_size()])
    bits(values)[where] = table[chosen[where]]
    return values


def make_weights(generator, odd):
    weights = {}
    for name, (dtype, shape) in checkpoint_shapes(odd).items():
        count = 1
        for size in shape:
            count *= size
        weights[name] = random_values(generator, dtype, count).reshape(shape)
    return weights


def step(generator, weights, share=0.05, plain=()):
    """The next version: changes `share` of most tensors; no NaNs in those named in `plain`."""
    new = {}
    for name, tensor in weights.items():
        tensor = tensor.clone()
        if torch.rand(1, generator=generator) < 0.8:
            flat = tensor.view(-1)
            count = max(1, int(len(flat) * share))
            at = torch.randperm(len(flat), generator=generator)[:count]
            maker = random_values if name in plain else awkward
            bits(flat)[at] = bits(maker(generator, tensor.dtype, count))
        new[name] = tensor
    return new


class Source:
    def __init__(self, weights):
        self.weights = weights

    def tensors(self):
        return [
            driftless.TensorSpec(name, _NAMES[tensor.dtype], tensor.shape)
            for name, tensor in self.weights.items()
        ]

    def visit(self):
        for number, tensor in enumerate(self.weights.values()):
            yield [(number, tensor)]


class Run:
    """A base on disk and a publisher over a directory; used in a `with`."""

    def __init__(self, weights, *overrides):
        memory = Path("/dev/shm")
        parent = memory if memory.is_dir() else None
        self.work = Path(tempfile.mkdtemp(prefix="driftless-test-", dir=parent))
        self.base = self.work / "base"
        self.base.mkdir()
        self.write_base(weights)
        text = f"road:\n  kind: shared_fs\n  shared_fs:\n    dir: {self.work}/road\n"
        self.config = driftless.Config.parse(text, list(overrides))
        self.trainer = driftless.Job(self.config, "trainer", launched=False)
        self.rollout = driftless.Job(self.config, "rollout", launched=False)
        self.publisher = self.open(weights)

    def write_base(self, weights):
        save_file({n: t.contiguous() for n, t in weights.items()}, self.base / "model.safetensors")

    def open(self, weights):
        return driftless.Publisher(self.trainer, Source(weights))

    def publish(self, weights):
        return self.publisher.publish(Source(weights))

    def receiver(self, target, **options):
        return driftless.Receiver(self.rollout, target, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.rollout.leave()
        self.trainer.leave()
        shutil.rmtree(self.work, ignore_errors=True)

# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of the Python package: its import from the build, and small weights."""

import sys

import numpy as np
import pytest

from support import REPOSITORY, random_tensor

PACKAGE = REPOSITORY / "build/python"


def driftless():
    """The package; skips the test with the reason if there is none."""
    if not list((PACKAGE / "driftless").glob("_native*.so")):
        reason = f"{PACKAGE} has no module: driftless was configured without Python"
        pytest.skip(reason, allow_module_level=True)
    if str(PACKAGE) not in sys.path:
        sys.path.insert(0, str(PACKAGE))
    import driftless as package

    return package


def weights(rng, rows=64):
    """name -> (dtype, array of the bits)."""
    shapes = {
        "embed.weight": ("BF16", (rows, 32)),
        "layers.0.weight": ("BF16", (48, 32)),
        "layers.1.weight": ("F32", (17, 3)),
        "layers.2.frozen": ("BF16", (16, 16)),
        "norm.weight": ("F16", (33,)),
    }
    made = {}
    for name, (dtype, shape) in shapes.items():
        tensor = random_tensor(rng, dtype, shape)
        kind = {"BF16": "<u2", "F32": "<f4", "F16": "<f2"}[dtype]
        made[name] = (dtype, np.frombuffer(tensor.data, kind).reshape(shape).copy())
    return made


def step(rng, old, fraction=0.02):
    """The next step: all tensors change a little, except the frozen one."""
    new = {}
    for name, (dtype, array) in old.items():
        array = array.copy()
        if "frozen" not in name:
            bits = array.reshape(-1).view(f"<u{array.itemsize}")
            count = max(1, int(len(bits) * fraction))
            bits[rng.choice(len(bits), count, replace=False)] ^= 1
        new[name] = (dtype, array)
    return new


class Source:
    """A publisher's source with these weights, `batch` tensors at a time."""

    def __init__(self, package, tensors, batch=2):
        self.specs = [package.TensorSpec(n, d, a.shape) for n, (d, a) in tensors.items()]
        self.arrays = [array for _, array in tensors.values()]
        self.batch = batch
        self.visits = 0

    def tensors(self):
        return self.specs

    def visit(self):
        self.visits += 1
        pairs = list(enumerate(self.arrays))
        for begin in range(0, len(pairs), self.batch):
            yield pairs[begin : begin + self.batch]


class Broken(Source):
    """A source that raises `failure` at "tensors", at "visit" or in a batch."""

    def __init__(self, *arguments, failure, at):
        super().__init__(*arguments)
        self.failure, self.at, self.closed = failure, at, False

    def tensors(self):
        if self.at == "tensors":
            raise self.failure
        return super().tensors()

    def visit(self):
        if self.at == "visit":
            raise self.failure
        try:
            for number, batch in enumerate(super().visit()):
                if self.at == number:
                    raise self.failure
                yield batch
        finally:
            self.closed = True


def same(target, tensors):
    """Whether an OwnedTarget has the bits of the weights."""
    return all(target.tensor(n).tobytes() == a.tobytes() for n, (_, a) in tensors.items())


def config(package, directory, *overrides):
    text = f"road:\n  kind: shared_fs\n  shared_fs:\n    dir: {directory}\n"
    return package.Config.parse(text, list(overrides))


class Pair:
    """A publisher and a receiver over a directory, in this process."""

    def __init__(self, package, directory, tensors, *overrides, target=None, **receiver):
        self.package = package
        self.config = config(package, directory, *overrides)
        self.trainer = package.Job(self.config, "trainer", launched=False)
        self.rollout = package.Job(self.config, "rollout", launched=False)
        self.publisher = package.Publisher(self.trainer, Source(package, tensors))
        self.target = target or self.memory(tensors)
        self.receiver = package.Receiver(self.rollout, self.target, id="one", **receiver)

    def memory(self, tensors):
        self.arrays = {name: array.copy() for name, (_, array) in tensors.items()}
        dtypes = {name: dtype for name, (dtype, _) in tensors.items()}
        return self.package.MemoryTarget(self.arrays, version=0, dtypes=dtypes)

    def holds(self, tensors):
        return all(self.arrays[n].tobytes() == a.tobytes() for n, (_, a) in tensors.items())

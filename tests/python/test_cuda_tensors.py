# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors of torch in the package: kernels on a stream of the caller, and a target over them.

Tests that need a GPU are skipped without one; tests/gpu/parts/python.sh runs them. All results are
compared with the same calls on host memory.
"""

import os
from pathlib import Path

import numpy as np
import pytest

import binding

if "DRIFTLESS_PYTHON_PACKAGE" in os.environ:
    binding.PACKAGE = Path(os.environ["DRIFTLESS_PYTHON_PACKAGE"])
driftless = binding.driftless()
from driftless import kernels  # noqa: E402


class OnCuda:
    """Claims to be on a GPU, but has no memory."""

    __cuda_array_interface__ = {
        "shape": (4,),
        "typestr": "<i4",
        "data": (0x1000, False),
        "version": 3,
        "strides": None,
    }


@pytest.mark.parametrize(
    "call",
    [
        lambda t: kernels.diff(t, t),
        lambda t: kernels.gather(t, t),
        lambda t: kernels.scatter(t, t, t),
        lambda t: kernels.masked_overwrite(t, t, 0),
        lambda t: kernels.digest("tensor", t),
        lambda t: driftless.MemoryTarget({"tensor": t}),
    ],
    ids=["diff", "gather", "scatter", "masked_overwrite", "digest", "target"],
)
def test_a_tensor_that_is_not_in_gpu_memory_is_refused_by_name(call):
    """If the build has no CUDA, if there is no GPU, and if the GPU does not own the address."""
    with pytest.raises(driftless.Error, match="is on cuda:0: ") as refused:
        call(OnCuda())
    assert refused.value.code in ("unsupported", "invalid_argument")


def test_host_tensors_have_no_stream():
    tensor = np.arange(8, dtype=np.int32)
    assert kernels.digest("t", tensor, stream=7) == kernels.digest("t", tensor)


@pytest.fixture
def torch():
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("torch sees no GPU")
    if not {b.name: b.built for b in driftless.backends()}["cuda"]:
        pytest.skip("driftless was built without CUDA")
    return found


@pytest.fixture
def stream(torch):
    return torch.cuda.Stream()


DTYPES = ["bfloat16", "float32", "int64", "uint8", "float8_e4m3fn"]


def random_bits(torch, dtype, count, seed):
    width = getattr(torch, dtype).itemsize
    made = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, count * width, dtype=np.uint8))
    return made.view(getattr(torch, dtype))


def bits(tensor):
    import torch

    return tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_agree_with_the_hosts(torch, stream, dtype):
    old = random_bits(torch, dtype, 100_003, 1)
    new = old.clone()
    new.view(torch.uint8)[:: 97 * old.element_size()] ^= 1
    number = stream.cuda_stream
    with torch.cuda.stream(stream):  # queued on the stream, not waited for
        old_dev, new_dev = old.pin_memory().cuda(non_blocking=True), new.pin_memory().cuda(non_blocking=True)
    positions, values = kernels.diff(old_dev, new_dev, stream=number)
    expected_positions, expected_values = kernels.diff(old, new)
    assert positions.device == "cuda:0"
    positions, values = positions.torch(), values.torch()
    assert bits(positions) == expected_positions.numpy().tobytes()
    assert bits(values) == bits(expected_values.torch())
    assert bits(kernels.gather(new_dev, positions, stream=number).torch()) == bits(values)
    assert kernels.digest("t", new_dev, stream=number) == kernels.digest("t", new)
    kernels.scatter(old_dev, positions, values, stream=number)
    assert bits(old_dev) == bits(new)
    sentinel = 0x5A
    source = torch.full((old.numel() * old.element_size(),), sentinel, dtype=torch.uint8, device="cuda")
    source[3] = 7
    target = old_dev.view(torch.uint8)
    assert kernels.masked_overwrite(target, source, sentinel, stream=number) == 1
    assert bits(target)[3] == 7


def test_many_changes_and_none(torch):
    old = torch.zeros(1_000_000, dtype=torch.int32, device="cuda")
    positions, values = kernels.diff(old, old + 1)
    assert positions.shape == (1_000_000,) and bool((values.torch() == 1).all())
    assert bool((positions.torch() == torch.arange(1_000_000, device="cuda")).all())
    assert kernels.diff(old, old)[0].shape == (0,)
    empty = torch.empty(0, dtype=torch.int32, device="cuda")
    assert kernels.diff(empty, empty)[0].shape == (0,)


def test_wrong_positions_write_nothing(torch):
    tensor = torch.zeros(100, dtype=torch.int32, device="cuda")
    for wrong in ([5, 3], [1, 100], [-1, 4], [2, 2]):
        positions = torch.tensor(wrong, device="cuda")
        with pytest.raises(driftless.Error):
            kernels.scatter(tensor, positions, torch.ones(2, dtype=torch.int32, device="cuda"))
    with pytest.raises(driftless.errors.InvalidArgumentError, match="'positions' is on cpu"):
        kernels.scatter(tensor, torch.tensor([1]), torch.ones(1, dtype=torch.int32, device="cuda"))
    assert not bool(tensor.any())


def test_a_target_on_the_gpu_follows(torch, stream, work, rng):
    tensors = binding.weights(rng, rows=500)
    dtypes = {name: dtype for name, (dtype, _) in tensors.items()}
    held = {}
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # delays the base: the target must wait for it
        for name, (_, array) in tensors.items():
            bits_of = torch.from_numpy(array.reshape(-1).view(np.uint8).copy()).pin_memory()
            flat = bits_of.cuda(non_blocking=True)
            kind = {"BF16": torch.bfloat16, "F32": torch.float32, "F16": torch.float16}[dtypes[name]]
            held[name] = flat.view(kind).reshape(array.shape)
    target = driftless.MemoryTarget(held, version=0, stream=stream.cuda_stream)
    calls = []
    pair = binding.Pair(
        driftless, work / "road", tensors, "threads=1", target=target,
        pause=lambda: calls.append("pause"), resume=lambda: calls.append("resume"),
    )  # fmt: skip
    history = [tensors]
    for _ in range(3):
        history.append(binding.step(rng, history[-1]))
        pair.publisher.publish(binding.Source(driftless, history[-1]))
        assert pair.receiver.stage(60)
        assert pair.receiver.commit().digest == pair.publisher.digest
        for name, (_, array) in history[-1].items():
            assert bits(held[name]) == array.tobytes()
    assert calls == ["pause", "resume"] * 3
    pair.receiver.rollback()
    assert all(bits(held[n]) == a.tobytes() for n, (_, a) in history[-2].items())


def test_a_target_lies_in_one_place(torch):
    here, there = torch.zeros(4), torch.zeros(4, device="cuda")
    for first, second in ((here, there), (there, here)):
        with pytest.raises(driftless.errors.UnsupportedError, match="'b' is on"):
            driftless.MemoryTarget({"a": first, "b": second})

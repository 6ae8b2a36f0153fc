# SPDX-License-Identifier: Apache-2.0
"""Tensors in and out: accepted protocols, refusals that name the tensor, kernels."""

import array
import ctypes
import gc

import numpy as np
import pytest

import binding

driftless = binding.driftless()
refused = driftless.errors.InvalidArgumentError

NUMPY = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "I16": np.int16, "U16": np.uint16,
    "F16": np.float16, "I32": np.int32, "U32": np.uint32, "F32": np.float32, "F64": np.float64,
    "I64": np.int64, "U64": np.uint64, "C64": np.complex64,
}  # fmt: skip


@pytest.mark.parametrize("dtype", NUMPY)
def test_numpy_in_and_out(dtype, rng):
    data = rng.integers(0, 2, (3, 5)).astype(NUMPY[dtype])
    ref = driftless.TensorRef(data)
    assert (ref.dtype, ref.shape, ref.device) == (dtype, (3, 5), "cpu")
    assert ref.size_bytes == data.nbytes and ref.data_address == data.ctypes.data
    out = ref.numpy()
    assert out.dtype == data.dtype and np.array_equal(out, data) and np.shares_memory(out, data)


@pytest.mark.parametrize("dtype", [d for d in NUMPY if d != "BOOL"])
def test_dlpack_there_and_back(dtype, rng):
    data = rng.integers(0, 100, (4, 3)).astype(NUMPY[dtype])
    ref = driftless.TensorRef(data)
    back = np.from_dlpack(ref)
    assert back.dtype == data.dtype and np.array_equal(back, data)
    assert np.shares_memory(back, data)


class Producer:
    """An object of another library that offers DLPack."""

    def __init__(self, inner, versions):
        self.inner, self.versions = inner, versions

    def __dlpack_device__(self):
        return self.inner.__dlpack_device__()

    def __dlpack__(self, **options):
        if not self.versions and options:
            raise TypeError("unexpected keyword")
        return self.inner.__dlpack__(**options)


@pytest.mark.parametrize("versions", [False, True])
def test_dlpack_of_both_kinds(versions, rng):
    data = rng.integers(0, 100, (4, 3)).astype(np.float32)
    ref = driftless.TensorRef(Producer(driftless.TensorRef(data), versions))
    assert ref.data_address == data.ctypes.data and ref.shape == (4, 3)
    data.flags.writeable = False
    late = driftless.TensorRef(Producer(driftless.TensorRef(data), versions))
    assert late.read_only == versions  # the older kind has no such flag


def test_dlpack_bfloat16_and_float8():
    words = np.arange(6, dtype=np.uint16)
    for dtype, shape in (("BF16", [2, 3]), ("F8_E4M3", [12]), ("F8_E5M2", [3, 4])):
        made = driftless.TensorRef.from_pointer(words.ctypes.data, dtype, shape, owner=words)
        back = driftless.TensorRef(Producer(made, True))
        assert (back.dtype, back.shape) == (dtype, tuple(shape))


def test_dlpack_capsule_that_is_used_or_none():
    ref = driftless.TensorRef(np.zeros(3, np.float32))
    capsule = ref.__dlpack__()

    class Same:
        def __dlpack__(self, **_):
            return capsule

        def __dlpack_device__(self):
            return (1, 0)

    assert driftless.TensorRef(Same()).shape == (3,)
    with pytest.raises(refused, match="tensor 'w'.*used"):
        driftless.TensorRef(Same(), "w")


def test_dlpack_keeps_memory_alive_and_releases_it():
    class Owner:
        alive = 0

        def __init__(self):
            Owner.alive += 1

        def __del__(self):
            Owner.alive -= 1

    words = np.arange(4, dtype=np.float32)
    made = driftless.TensorRef.from_pointer(words.ctypes.data, "F32", [4], owner=Owner())
    taken = driftless.TensorRef(Producer(made, True))
    unused = made.__dlpack__()
    del made, unused
    gc.collect()
    assert Owner.alive == 1 and taken.numpy()[3] == 3
    view = taken.numpy()
    del taken
    gc.collect()
    assert Owner.alive == 1 and view[3] == 3
    del view
    gc.collect()
    assert Owner.alive == 0


def test_buffers():
    assert driftless.TensorRef(bytearray(8)).dtype == "U8"
    assert driftless.TensorRef(b"12345").read_only
    ints = array.array("l", range(5))
    assert driftless.TensorRef(ints).dtype == ("I64" if ints.itemsize == 8 else "I32")
    cast = memoryview(bytearray(24)).cast("f", (2, 3))
    assert driftless.TensorRef(cast).shape == (2, 3)
    doubles = (ctypes.c_double * 4)()
    assert driftless.TensorRef(doubles).dtype == "F64"


def test_empty_and_scalar():
    assert driftless.TensorRef(np.zeros((0, 4), np.float32)).size_bytes == 0
    assert driftless.TensorRef(np.array(3.0)).shape == ()
    assert driftless.TensorRef(np.zeros((0, 4), np.float32)[:, ::2]).shape == (0, 2)


class OnCuda:
    __cuda_array_interface__ = {
        "shape": (2, 3),
        "typestr": "<f4",
        "data": (0x1000, False),
        "version": 3,
        "strides": None,
    }


def test_a_refused_tensor_is_named():
    grid = np.zeros((4, 6), np.float32)
    for wrong in (grid[:, ::2], grid.T, grid[::-1], np.asfortranarray(grid)):
        with pytest.raises(refused, match="tensor 'w' is not contiguous"):
            driftless.TensorRef(wrong, "w")
    with pytest.raises(refused, match="tensor 'w' is not contiguous"):
        driftless.TensorRef(memoryview(bytearray(8))[::2], "w")
    with pytest.raises(refused, match="tensor 'w' is big-endian"):
        driftless.TensorRef(np.zeros(3, ">f4"), "w")
    with pytest.raises(refused, match="tensor 'w' has dtype complex128"):
        driftless.TensorRef(np.zeros(3, np.complex128), "w")
    with pytest.raises(refused, match="tensor 'w' is a list"):
        driftless.TensorRef([1, 2], "w")
    cuda = driftless.TensorRef(OnCuda(), "w")
    assert (cuda.device, cuda.data_address) == ("cuda:0", 0x1000)
    with pytest.raises(driftless.errors.UnsupportedError, match="'w' is on cuda:0.*host"):
        driftless.digest([("w", OnCuda())])


def test_target_refuses_by_name():
    good = np.zeros(3, np.uint16)
    with pytest.raises(refused, match="tensor 'w' has dtype U16, expected F32"):
        driftless.MemoryTarget({"w": good}, dtypes={"w": "F32"})
    with pytest.raises(refused, match="tensor 'w' has dtype I16, expected BF16"):
        driftless.MemoryTarget({"w": good.view(np.int16)}, dtypes={"w": "BF16"})
    with pytest.raises(refused, match="dtypes names 'v'"):
        driftless.MemoryTarget({"w": good}, dtypes={"v": "BF16"})
    with pytest.raises(driftless.errors.UnsupportedError, match="'w' is on cuda:0"):
        driftless.MemoryTarget({"w": OnCuda()})
    good.flags.writeable = False
    with pytest.raises(refused, match="tensor 'w' is read-only"):
        driftless.MemoryTarget({"w": good})
    with pytest.raises(refused, match="run= without version="):
        driftless.MemoryTarget({}, run="0" * 32)


# --- kernels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
def test_diff_gather_scatter(dtype, rng):
    old = rng.integers(0, 9, 100_003).astype(dtype)
    new = old.copy()
    where = np.sort(rng.choice(len(old), 1000, replace=False))
    new[where] += 1
    positions, values = driftless.kernels.diff(old, new, threads=2)
    assert np.array_equal(positions.numpy(), where)
    assert np.array_equal(values.numpy(), new[where])
    assert np.array_equal(driftless.kernels.gather(new, positions).numpy(), new[where])
    target = old.copy()
    driftless.kernels.scatter(target, positions, values)
    assert target.tobytes() == new.tobytes()


def test_diff_compares_bits():
    old = np.array([0.0, np.nan, 1.0], np.float32)
    new = np.array([-0.0, np.nan, 1.0], np.float32)
    positions, values = driftless.kernels.diff(old, new)
    assert positions.numpy().tolist() == [0] and np.signbit(values.numpy()[0])
    none, nothing = driftless.kernels.diff(old, old)
    assert none.shape == (0,) and nothing.shape == (0,)


def test_gather_in_any_order(rng):
    data = rng.integers(0, 255, 1000).astype(np.uint8)
    where = rng.integers(0, 1000, 500)
    assert np.array_equal(driftless.kernels.gather(data, where).numpy(), data[where])


def test_kernels_refuse():
    data = np.zeros(10, np.float32)
    positions = np.array([1, 2], np.int64)
    for wrong in ([2, 1], [1, 1], [-1, 2], [1, 10]):
        with pytest.raises(refused, match=r"positions\["):
            driftless.kernels.scatter(data, np.array(wrong, np.int64), data[:2])
    odd = np.frombuffer(bytearray(17), np.uint8)[1:].view(np.int64)
    with pytest.raises(refused, match="not aligned"):
        driftless.kernels.gather(data, odd)
    with pytest.raises(refused, match="expected I64"):
        driftless.kernels.gather(data, positions.astype(np.int32))
    with pytest.raises(refused, match="values: 3 of F32, expected 2 of F32"):
        driftless.kernels.scatter(data, positions, data[:3])
    with pytest.raises(refused, match="tensor 'new' has 20 bytes of F32, expected 40"):
        driftless.kernels.diff(data, data[:5])
    data.flags.writeable = False
    with pytest.raises(refused, match="read-only"):
        driftless.kernels.scatter(data, positions, np.zeros(2, np.float32))


def test_masked_overwrite():
    target = np.array([1, 2, 3, 4], np.uint16)
    source = np.array([9, 0x7FC0, 7, 0x7FC0], np.uint16)
    assert driftless.kernels.masked_overwrite(target, source, 0x7FC0) == 2
    assert target.tolist() == [9, 2, 7, 4]


def test_a_digest_is_a_sum_that_depends_on_places(rng):
    a, b = rng.random(1000), rng.random(77).astype(np.float32)
    both = driftless.digest([("a", a), ("b", b)])
    assert both == driftless.digest([("b", b), ("a", a)])
    assert both != driftless.digest([("a", b), ("b", a)])
    assert driftless.digest([("a", a)]) == driftless.kernels.digest("a", a)
    assert driftless.digest([]) == "0" * 32


# --- torch ---------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


TORCH = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
         "float64", "float8_e4m3fn", "float8_e5m2", "complex64"]  # fmt: skip


@pytest.mark.parametrize("name", TORCH)
def test_torch_in_and_out(torch, name):
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    ref = driftless.TensorRef(tensor)
    assert ref.data_address == tensor.data_ptr() and ref.shape == (2, 3)
    out = ref.torch()
    assert out.dtype == tensor.dtype and out.data_ptr() == tensor.data_ptr()
    assert out.shape == tensor.shape


def test_torch_parameters_and_refusals(torch):
    weight = torch.nn.Linear(3, 2).weight
    assert weight.requires_grad and driftless.TensorRef(weight).dtype == "F32"
    for wrong, why in (
        (torch.zeros(4, 6)[:, ::2], "is not contiguous"),
        (torch.zeros(3, dtype=torch.complex64).conj(), "lazy conjugate"),
        (torch.zeros(3, 3).to_sparse(), "sparse"),
    ):
        with pytest.raises(refused, match=f"tensor 'w' .*{why}"):
            driftless.TensorRef(wrong, "w")
    meta = torch.zeros(3, device="meta")
    with pytest.raises(driftless.errors.UnsupportedError, match="'w' is on meta"):
        driftless.digest([("w", meta)])


@pytest.mark.parametrize("name", ["bfloat16", "float32", "int64"])
def test_torch_takes_ours_by_dlpack(torch, name):
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    back = torch.from_dlpack(driftless.TensorRef(tensor))
    assert back.data_ptr() == tensor.data_ptr() and torch.equal(back, tensor)

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records the output of slime's own INT4 converter for some matrices of weights:

    record_int4.py SLIME_CHECKOUT INPUTS.safetensors OUT.safetensors

Runs in an environment with torch and safetensors. INPUTS has bfloat16 matrices; OUT gets them and,
for groups of 32 and 128, NAME.GROUP.packed and NAME.GROUP.scales. slime's CUDA kernel is compiled
from the checkout: by nvcc on a machine with a GPU, otherwise by g++, where each thread of a warp is
a context that stops at every shuffle. Both compute in float32 with IEEE rounding.

    record_int4.py --inputs BASE.safetensors TRACE.safetensors OUT

makes the inputs: as record_converters.py, but of whole groups.
"""

import ctypes
import math
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from record_converters import some_of, stepped
from safetensors.torch import load_file, save_file

GROUPS = (32, 128)
KERNEL = "slime/backends/megatron_utils/kernels/int4_qat/fake_int4_quant_cuda.cu"
PACKERS = (
    "slime/backends/megatron_utils/megatron_to_hf/processors/quantizer_compressed_tensors.py",
    "tools/convert_hf_to_int4_direct.py",
)

# What the kernel needs of CUDA, for one warp at a time. Every thread of a warp reaches the same
# shuffles.
ON_CPU = r"""
#include <math.h>
#include <ucontext.h>
#include <algorithm>
#include <functional>
#include <vector>
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
using std::min;
using cudaStream_t = void*;
struct Index { int x = 0; };
static Index threadIdx, blockIdx, blockDim;
struct dim3 { int x; dim3(int n) : x(n) {} };

struct Warp {
  static constexpr int kLanes = 32, kStack = 1 << 16;
  ucontext_t back, lanes[kLanes];
  std::vector<char> stacks = std::vector<char>(kLanes * kStack);
  std::function<void()> work;
  float held[2][kLanes];
  int turn[kLanes], running = 0, done = 0, first = 0;

  static Warp& only() { static Warp warp; return warp; }
  static void enter() {
    Warp& warp = only();
    warp.work();
    ++warp.done;
    swapcontext(&warp.lanes[warp.running], &warp.back);
  }
  void run(int first_thread) {
    first = first_thread;
    done = 0;
    for (int i = 0; i < kLanes; ++i) {
      turn[i] = 0;
      getcontext(&lanes[i]);
      lanes[i].uc_stack.ss_sp = stacks.data() + i * kStack;
      lanes[i].uc_stack.ss_size = kStack;
      makecontext(&lanes[i], enter, 0);
    }
    while (done < kLanes) {
      for (running = 0; running < kLanes; ++running) {
        threadIdx.x = first + running;
        swapcontext(&back, &lanes[running]);
      }
    }
  }
  float shuffle(float value, int mask) {
    const int lane = running, now = turn[lane]++ % 2;
    held[now][lane] = value;
    swapcontext(&lanes[lane], &back);
    return held[now][lane ^ mask];
  }
};
static float __shfl_xor_sync(unsigned, float value, int mask, int) {
  return Warp::only().shuffle(value, mask);
}
struct Launch {
  int blocks, threads;
  Launch(dim3 grid, dim3 block) : blocks(grid.x), threads(block.x) {}
  template <typename Kernel, typename... Arguments>
  void call(Kernel kernel, Arguments... arguments) {
    blockDim.x = threads;
    Warp::only().work = [=] { kernel(arguments...); };
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
      for (int first = 0; first < threads; first += Warp::kLanes) Warp::only().run(first);
    }
  }
};
"""
# torch's bfloat16, which rounds to nearest, ties to even.
BF16 = r"""
#include <stdint.h>
#include <string.h>
struct Bf16 {
  uint16_t bits;
  Bf16() = default;
#ifdef __CUDACC__
  __device__ explicit Bf16(float value) : bits(__bfloat16_as_ushort(__float2bfloat16(value))) {}
  __device__ operator float() const { return __uint_as_float(uint32_t(bits) << 16); }
#else
  explicit Bf16(float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    bits = value != value ? 0x7fff : (word + 0x7fff + (word >> 16 & 1)) >> 16;
  }
  operator float() const {
    const uint32_t word = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
  }
#endif
};
"""
ENTRY = r"""
extern "C" void quantize(const Bf16* x, Bf16* out, Bf16* scales, Bf16* zeros, int rows, int columns,
                         int group) {
  const int groups = columns / group;
  launch_int4_quant_kernel<Bf16>(x, out, scales, zeros, rows, columns, columns, 1, columns, 1, groups,
                                 1, groups, 1, 1, group, true, nullptr);
#ifdef __CUDACC__
  if (cudaDeviceSynchronize() != cudaSuccess) abort();
#endif
}
"""


def compiled(checkout, directory, on_gpu):
    """The kernels of the checkout as a library, without the functions of torch around them."""
    source = (Path(checkout) / KERNEL).read_text()
    source = source[: source.index("std::tuple<torch::Tensor")]
    source = re.sub(r"#include <(torch|ATen)/.*", "", source)
    library = directory / "kernels.so"
    if on_gpu:
        text = "#include <cuda_bf16.h>\n#include <stdlib.h>\n" + BF16 + source + ENTRY
        line = ["nvcc", "-arch=native", "-Xcompiler=-fPIC", "-x", "cu"]
    else:
        launch = re.compile(r"(\w+<scalar_t>)<<<(\w+), (\w+), 0, stream>>>\(")
        source, count = launch.subn(r"Launch(\2, \3).call(\1, ", source)
        assert count == 3, "the kernels are started in another way than they were"
        text = ON_CPU + BF16 + source + ENTRY
        line = ["g++", "-ffp-contract=off", "-fPIC", "-x", "c++"]
    path = directory / "kernels.source"
    path.write_text(text)
    subprocess.run([*line, "-O2", "-std=c++17", "-shared", "-o", library, path], check=True)
    return ctypes.CDLL(str(library))


class Kernels:
    """In the place of slime's extension module."""

    def __init__(self, library):
        self._library = library

    def fake_int4_quant_cuda(self, weights, block, symmetric):
        rows, columns = weights.shape
        assert symmetric and block[0] == 1 and weights.is_contiguous()
        out = torch.empty_like(weights)
        scales = weights.new_empty(rows, columns // block[1])
        zeros = torch.empty_like(scales)
        pointers = [ctypes.c_void_p(each.data_ptr()) for each in (weights, out, scales, zeros)]
        self._library.quantize(*pointers, rows, columns, block[1])
        return out, scales, zeros


def converters(checkout, directory, on_gpu):
    given = {"math": math, "fake_int4_quant_cuda": Kernels(compiled(checkout, directory, on_gpu))}
    names = ("pack_to_int32", "round_to_quantized_type_dtype", "quantize", "pack_layer")
    return [some_of(Path(checkout) / path, names, given)["pack_layer"] for path in PACKERS]


def odd_groups():
    """24 rows of six stretches of 128: NaNs, infinities, zeros, very small weights, weights half-way
    between codes, and groups whose scale is about the smallest."""
    nan, infinite, zero, tiny, ties, least = (
        (torch.randn(24, 128) * 0.02).bfloat16() for _ in range(6)
    )
    nan.view(torch.int16)[0, :6] = torch.tensor(
        [0x7FC0, -1, 0x7F81, -0x8000, 0x0001, -0x7FFF], dtype=torch.int16
    )
    nan.view(torch.int16)[1, :32] = 0x7FC0
    infinite[3, 4], infinite[5, 6], infinite[7, 40] = float("inf"), -float("inf"), float("inf")
    zero.zero_()
    zero[1, 1] = -0.0
    tiny.mul_(1e-12)
    ties.copy_(torch.randint(-14, 15, (24, 128)) / 2)
    ties[:, ::32] = 7
    least.copy_((torch.rand(24, 128) * 2 - 1) * torch.linspace(1e-5, 2e-4, 24)[:, None])
    return torch.cat([nan, infinite, zero, tiny, ties, least], dim=1).contiguous()


def edge_groups():
    """Denormals; the largest bfloat16; multiples of a scale; equal weights; one weight alone."""
    denormal, largest, exact, alike, alone = (
        (torch.randn(24, 128) * 0.02).bfloat16() for _ in range(5)
    )
    words = torch.randint(1, 128, (24, 128), dtype=torch.int16)
    denormal.view(torch.int16).copy_(words | torch.randint(0, 2, (24, 128)).short() << 15)
    largest.mul_(2.0**120)
    largest.view(torch.int16)[:, ::32] = 0x7F7F
    exact.copy_(torch.randint(-28, 29, (24, 128)) * 2.0**-9)
    exact[:, ::32] = 28 * 2.0**-9
    alike.fill_(-0.02)
    alone.zero_()
    alone[:, 5::32] = torch.linspace(-1, 1, 24)[:, None].bfloat16()
    return torch.cat([denormal, largest, exact, alike, alone], dim=1).contiguous()


def make_inputs(base, steps, out):
    torch.manual_seed(20261119)
    weights = load_file(base)
    name = next(n for n in sorted(weights) if "mlp.down_proj" in n)
    save_file(
        {
            "odd": odd_groups(),
            "random": (torch.randn(40, 384) * 0.02).bfloat16(),
            "trained": weights[name][:64, :256].contiguous(),
            "edges": edge_groups(),
            "stepped": stepped(weights, name, load_file(steps))[:66, -256:].contiguous(),
        },
        out,
    )


def main(arguments):
    if arguments[0] == "--inputs":
        return make_inputs(*arguments[1:])
    checkout, inputs, out = arguments
    on_gpu = torch.cuda.is_available() and shutil.which("nvcc") is not None
    recorded = {name: tensor for name, tensor in load_file(inputs).items() if "." not in name}
    with tempfile.TemporaryDirectory() as directory:
        live, tool = converters(checkout, Path(directory), on_gpu)
        for name in list(recorded):
            weights = recorded[name].cuda() if on_gpu else recorded[name]
            for group in GROUPS:
                packed, scales, _ = live(weights, group)
                again, scales_again, _ = tool(weights, group)
                assert torch.equal(packed, again), f"{name}: the live converter and the tool differ"
                assert torch.equal(scales.view(torch.int16), scales_again.view(torch.int16))
                recorded[f"{name}.{group}.packed"] = packed.cpu().contiguous()
                recorded[f"{name}.{group}.scales"] = scales.cpu().contiguous()
    save_file(recorded, out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

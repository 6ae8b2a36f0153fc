#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records the output of slime's and SGLang's own converters for some matrices of weights:

    record_converters.py SLIME_CHECKOUT INPUTS.safetensors OUT.safetensors

Runs in an environment with torch, triton, safetensors and SGLang. INPUTS has bfloat16 matrices; OUT
gets them and, for each converter, NAME.CONVERTER.codes and NAME.CONVERTER.scales. slime's Triton
kernel runs in Triton's interpreter. `--inputs BASE.safetensors TRACE.safetensors OUT` makes the
inputs: random weights, a piece of a trained matrix of BASE, the same after the steps of TRACE
(sSSS/NAME.indices and .values), blocks of odd values, and blocks at the limits of the dtypes.
"""

import ast
import importlib.util
import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import torch
from safetensors.torch import load_file, save_file

BLOCK = 128


def odd_blocks():
    """Six blocks of 24 rows, the last one of 88 columns."""
    blocks = [(torch.randn(24, BLOCK) * 0.02).bfloat16() for _ in range(6)]
    nan, infinite, zero, tiny, ties, closed = blocks
    nan.view(torch.int16)[0, :6] = torch.tensor(
        [0x7FC0, -1, 0x7F81, -0x8000, 0x0001, -0x7FFF], dtype=torch.int16
    )
    infinite[3, 4], infinite[5, 6] = float("inf"), -float("inf")
    zero.zero_()
    zero[1, 1] = -0.0
    tiny.mul_(1e-12)
    ties.copy_(torch.randint(-896, 897, (24, BLOCK)) / 2)
    ties[0, 0] = 448
    closed.copy_(torch.randint(0, 230, (24, BLOCK)) * 2.0**-14)
    closed[0, 0] = 230 * 2.0**-14
    return torch.cat([nan, infinite, zero, tiny, ties, closed[:, :88]], dim=1).contiguous()


def edge_blocks():
    """Five blocks of 24 rows: denormals; the largest bfloat16; the exact maximum of E4M3 times a
    power of two; the smallest weights whose block has a scale of its own by every rule, and smaller
    ones; equal weights."""
    denormal, largest, exact, least, alike = (
        (torch.randn(24, BLOCK) * 0.02).bfloat16() for _ in range(5)
    )
    words = torch.randint(1, 128, (24, BLOCK), dtype=torch.int16)
    denormal.view(torch.int16).copy_(words | torch.randint(0, 2, (24, BLOCK)).short() << 15)
    largest.mul_(2.0**120)
    largest.view(torch.int16)[0, :2] = torch.tensor([0x7F7F, -0x0081], dtype=torch.int16)
    exact.copy_(torch.randint(-448, 449, (24, BLOCK)) * 2.0**-14)
    exact[0, :2] = torch.tensor([448.0, -448.0]) * 2.0**-14
    least.copy_(torch.rand(24, BLOCK) * 1e-10)
    least[0, 0] = 1e-10
    alike.fill_(-0.02)
    return torch.cat([denormal, largest, exact, least, alike], dim=1).contiguous()


def stepped(weights, name, trace):
    """The matrix after all steps of the trace."""
    flat = weights[name].clone().view(-1)
    for key in sorted(key for key in trace if key.endswith(f"/{name}.indices")):
        flat[trace[key].long()] = trace[key.removesuffix("indices") + "values"]
    return flat.view(weights[name].shape)


def make_inputs(base, steps, out):
    torch.manual_seed(20261118)
    weights = load_file(base)
    name = next(n for n in sorted(weights) if "mlp.down_proj" in n)
    save_file(
        {
            "odd": odd_blocks(),
            "random": (torch.randn(140, 40) * 0.02).bfloat16(),
            "trained": weights[name][:BLOCK, :BLOCK].contiguous(),
            "edges": edge_blocks(),
            "stepped": stepped(weights, name, load_file(steps))[:132, -132:].contiguous(),
        },
        out,
    )


def slime_live(checkout):
    """The kernel that quantizes the weights that slime sends. Here it stores float32, which torch
    converts to codes: Triton's interpreter loses the carry when a mantissa rounds up to the next
    exponent."""
    path = Path(checkout) / "slime/backends/megatron_utils/kernels/fp8_kernel.py"
    spec = importlib.util.spec_from_file_location("slime_fp8_kernel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.torch = Float32Codes()

    def convert(weights):
        values, scales = module.blockwise_cast_to_fp8_triton(weights, [BLOCK, BLOCK])
        return values.to(torch.float8_e4m3fn), scales

    return convert


class Float32Codes:
    """torch, except that memory for codes is float32."""

    def __getattr__(self, name):
        return getattr(torch, name)

    @staticmethod
    def empty(*shape, dtype, device):
        return torch.empty(*shape, dtype=torch.float32, device=device)


def some_of(path, names, given):
    """Functions and constants of a file, without its imports."""
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    wanted = [
        node
        for node in tree.body
        if getattr(node, "name", None) in names
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).strip("()") in names)
    ]
    found = {"torch": torch, **given}
    exec(compile(ast.Module(wanted, []), str(path), "exec"), found)
    return found


def slime_tool(checkout):
    """slime's function that quantizes checkpoints."""
    names = ("ceildiv", "block_fp8", "FP8_INFO", "FP8_MAX, FP8_MIN")
    path = Path(checkout) / "tools/convert_hf_to_fp8.py"
    found = some_of(path, names, {"F": torch.nn.functional})
    return lambda weights: found["block_fp8"](weights, [BLOCK, BLOCK])


def sglang_ue8m0(_):
    """SGLang's function for DeepGEMM, which slime uses, too."""
    package = Path(importlib.util.find_spec("sglang").origin).parent
    given = {
        "List": list, "Tuple": tuple,
        "ceil_div": lambda a, b: -(-a // b),
        "ceil_align": lambda a, b: -(-a // b) * b,
    }  # fmt: skip
    names = ("quant_weight_ue8m0", "per_block_cast_to_fp8", "ceil_to_ue8m0")
    found = some_of(package / "srt/layers/quantization/fp8_utils.py", names, given)
    return lambda weights: found["quant_weight_ue8m0"](weights, [BLOCK, BLOCK])


CONVERTERS = {"slime_live": slime_live, "slime_tool": slime_tool, "sglang_ue8m0": sglang_ue8m0}


def main(arguments):
    if arguments[0] == "--inputs":
        return make_inputs(*arguments[1:])
    checkout, inputs, out = arguments
    recorded = {name: tensor for name, tensor in load_file(inputs).items() if "." not in name}
    for converter, make in CONVERTERS.items():
        convert = make(checkout)
        for name in [name for name in recorded if "." not in name]:
            codes, scales = convert(recorded[name])
            recorded[f"{name}.{converter}.codes"] = codes.contiguous()
            recorded[f"{name}.{converter}.scales"] = scales.float().contiguous()
    save_file(recorded, out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

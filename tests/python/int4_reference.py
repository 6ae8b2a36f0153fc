# SPDX-License-Identifier: Apache-2.0
"""An independent converter from bfloat16 to INT4 groups, which does what trainers do: it quantizes,
multiplies the codes by the scale rounded to bfloat16, and quantizes the products by that scale."""

import numpy as np
from quantize_reference import F32, bf16_values
from support import Tensor


def bf16_words(values):
    """Rounds to nearest, ties to even. No value may be NaN."""
    bits = values.astype("<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def as_bf16(values):
    return bf16_values(bf16_words(values))


def quantize(words, shape, group):
    """(packed codes, scales) as bytes, of a matrix of finite bfloat16 values, given as bits."""
    values = bf16_values(np.asarray(words)).reshape(shape[0], -1, group)
    largest = np.abs(values).max(axis=2, keepdims=True, initial=F32(0))
    exact = np.maximum(largest * (F32(1) / F32(7)), F32(1e-5))
    first = np.rint(values / exact)
    scale = as_bf16(exact)
    again = as_bf16(as_bf16(first * scale) / scale)
    codes = np.rint(np.clip(again, -128, 127)).astype(np.int64).reshape(shape[0], -1, 8) + 8
    packed = (codes << (4 * np.arange(8))).sum(axis=2).astype("<u4")
    return packed.tobytes(), bf16_words(exact).tobytes()


def quantize_checkpoint(group, tensors, names):
    """The tensors with those of `names` quantized."""
    made = {name: tensor for name, tensor in tensors.items() if name not in names}
    for name in names:
        tensor = tensors[name]
        rows, columns = tensor.shape
        packed, scales = quantize(tensor.words(), tensor.shape, group)
        made[name + "_packed"] = Tensor("I32", (rows, columns // 8), packed)
        made[name + "_scale"] = Tensor("BF16", (rows, columns // group), scales)
        shape = np.array([rows, columns], "<i4").tobytes()
        made[name + "_shape"] = Tensor("I32", (2,), shape)
    return made

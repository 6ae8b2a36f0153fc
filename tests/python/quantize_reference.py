# SPDX-License-Identifier: Apache-2.0
"""An independent converter from bfloat16 to FP8 blocks, by the rules of docs/operate/quantized.md:
numpy's float32 arithmetic, and a search for the nearest of E4M3's 127 magnitudes."""

import numpy as np
from support import Tensor

BLOCK = 128
NAN = 0x7F
# The magnitudes of codes 0x00 to 0x7e.
SIZES = np.array(
    [(m / 8 if e == 0 else 1 + m / 8) * 2.0 ** (max(e, 1) - 7) for e in range(16) for m in range(8)]
)[:127]
MIDDLES = (SIZES[1:] + SIZES[:-1]) / 2
F32 = np.float32


def bf16_values(words):
    return (words.astype("<u4") << 16).view("<f4")


def e4m3(values):
    """The codes of float32 values."""
    sizes = np.minimum(np.abs(values.astype(np.float64)), 448)
    code = np.searchsorted(MIDDLES, sizes, side="left")
    tied = (code < 126) & (sizes == MIDDLES[np.minimum(code, 125)])
    code = code + (tied & (code % 2 == 1))
    code = code | np.where(np.signbit(values), 0x80, 0)
    return np.where(np.isnan(values), NAN, code).astype(np.uint8)


def scale_of(rule, largest):
    least = {"linear": F32(1e-10), "linear_div": bf16_values(np.array([0x2B8D], "<u2"))[0]}
    scale = max(largest, least.get(rule, F32(1e-4))) / F32(448)
    if rule != "ue8m0" or np.isinf(scale):
        return scale
    fraction, exponent = np.frexp(scale)
    return F32(np.ldexp(1.0, int(exponent) - (fraction == 0.5)))


def quantize_block(rule, values):
    # Does not use fmax: fmax(number, signalling NaN) may be NaN, which would lose the number.
    sizes = np.abs(values)
    largest = np.max(np.where(np.isnan(sizes), F32(0), sizes), initial=F32(0))
    scale = scale_of(rule, F32(largest))
    with np.errstate(all="ignore"):
        codes = e4m3(values / scale if rule == "linear_div" else values * (F32(1) / scale))
    counted = (codes & 0x7F)[(codes & 0x7F) != NAN]
    finite = rule == "ue8m0" and np.isfinite(scale) and scale > 2.0**-22
    if finite and counted.size and counted.max() <= 0x76:
        size = codes & 0x7F
        twice = np.where(size < 8, 2 * size, size + 8)
        codes = np.where(size == NAN, codes, twice | (codes & 0x80)).astype(np.uint8)
        scale = F32(scale / 2)
    return codes, scale


def quantize(rule, words, shape):
    """(codes, scales) of a bfloat16 matrix, given as bits."""
    values = bf16_values(np.asarray(words)).reshape(shape)
    codes = np.zeros(shape, np.uint8)
    blocks = [-(-extent // BLOCK) for extent in shape]
    scales = np.zeros(blocks, "<f4")
    for i in range(blocks[0]):
        for j in range(blocks[1]):
            at = np.s_[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK]
            codes[at], scales[i, j] = quantize_block(rule, values[at])
    return codes, scales


def quantize_checkpoint(rule, tensors, names):
    """The tensors, with those in `names` quantized."""
    made = {}
    for name, tensor in tensors.items():
        if name not in names:
            made[name] = tensor
            continue
        codes, scales = quantize(rule, tensor.words(), tensor.shape)
        made[name] = Tensor("F8_E4M3", tensor.shape, codes.tobytes())
        made[name + "_scale_inv"] = Tensor("F32", scales.shape, scales.tobytes())
    return made

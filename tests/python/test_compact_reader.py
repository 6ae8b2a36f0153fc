# SPDX-License-Identifier: Apache-2.0
"""The golden frame of `compact`, read by a reader that was written from the specification alone."""

from pathlib import Path

import pytest
import xxhash

from compact_reader import read_compact_frame
from frame_reader import FrameError

FOLDER = Path(__file__).resolve().parents[1] / "golden"
GOLDEN, GOLDEN_FP8 = FOLDER / "frame_compact.bin", FOLDER / "frame_compact_fp8.bin"
NAMES, SHAPES = ["lm_head.weight", "model.embed_tokens.weight"], [[4, 5], [400, 500]]
U64, PRIME, STEP = (1 << 64) - 1, (1 << 61) - 1, 0x9E3779B97F4A7C15


def mix(x):
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & U64
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & U64
    return x ^ x >> 31


def noise(tensor, unit):
    return mix((3 * unit + tensor + 1) * STEP & U64)


def old_value(tensor, unit):
    bits = noise(tensor, unit)
    low = bits >> 8 | 4096
    return (bits & 1) << 15 | (121 - ((low & -low).bit_length() - 1)) << 7 | bits >> 1 & 127


def new_value(tensor, unit):
    bits, old = noise(tensor, unit), old_value(tensor, unit)
    if (bits >> 40) % (3 if tensor == 0 else 32) != 0:
        return old
    kind = (bits >> 48) % 16
    return {0: old ^ 0x8033, 1: old - 3, 2: old + 9, 3: old + 130}.get(kind, old + 1 if kind % 2 == 1 else old - 1)


def units_of(tensor, box):
    (rows, columns), width = box or [(0, size) for size in SHAPES[tensor]], SHAPES[tensor][1]
    return [r * width + c for r in range(rows[0], sum(rows)) for c in range(columns[0], sum(columns))]


def old_values(tensor, box):
    return [old_value(tensor, unit) for unit in units_of(tensor, box)]


def digest_of_change(tensor, changes):
    """core/digest.h: the sum over 32-bit words of block key * place key * (new - old)."""
    name = xxhash.xxh3_128_intdigest(NAMES[tensor].encode())
    lanes = [0, 0]
    for unit, before, after in changes:
        word, shift = unit // 2, 16 * (unit % 2)
        for lane, half in enumerate([name >> 64, name & U64]):
            block = mix(mix((half + (word // 1024 + 1) * STEP) & U64) ^ (lane + 1)) % PRIME
            halves = mix((lane * 1024 + word % 1024 + 1) * STEP & U64) & 0x0FFFFFFF0FFFFFFF
            place = (halves & 0xFFFFFFFF) + (halves >> 32 << 28)
            lanes[lane] = (lanes[lane] + block * place * ((after - before) << shift)) % PRIME
    return b"".join(lane.to_bytes(8, "big") for lane in lanes)


def test_every_change_is_read():
    blocks = read_compact_frame(GOLDEN.read_bytes(), old_values)
    assert [(tensor, box) for tensor, box, _, _ in blocks] == [
        (0, []),
        (1, [(100, 200), (0, 500)]),
        (1, [(300, 100), (250, 250)]),
    ]
    for tensor, box, change, changes in blocks:
        units = units_of(tensor, box)
        expected = [(k, old_value(tensor, u), new_value(tensor, u)) for k, u in enumerate(units)]
        assert changes == [each for each in expected if each[1] != each[2]]
        in_tensor = [(units[k], before, after) for k, before, after in changes]
        assert change == digest_of_change(tensor, in_tensor)


def old_code(unit):
    bits = noise(0, unit)
    low = bits >> 8 | 2048
    return (bits & 1) << 7 | (12 - ((low & -low).bit_length() - 1)) << 3 | bits >> 1 & 7


def new_code(unit):
    bits, old = noise(0, unit), old_code(unit)
    if (bits >> 40) % 200 != 0:
        return old
    kind = (bits >> 48) % 16
    return {0: old ^ 0x80, 1: old - 3, 2: old + 3}.get(kind, old + 1 if kind % 2 == 1 else old - 1)


def test_every_change_of_codes_is_read():
    codes = [old_code(unit) for unit in range(300 * 256)]
    ((tensor, box, _, changes),) = read_compact_frame(GOLDEN_FP8.read_bytes(), lambda *_: codes)
    assert (tensor, box) == (0, [])
    expected = [(unit, old, new_code(unit)) for unit, old in enumerate(codes)]
    assert changes == [each for each in expected if each[1] != each[2]]
    assert changes[-1][0] > 65536  # one full tile, and a part of another


def test_other_old_values_are_noticed():
    def other(tensor, box):
        values = old_values(tensor, box)
        values[7] ^= 0x0400
        return values

    with pytest.raises((FrameError, KeyError)):
        read_compact_frame(GOLDEN.read_bytes(), other)

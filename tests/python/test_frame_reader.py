# SPDX-License-Identifier: Apache-2.0
"""The golden frames, read by a reader that was written from the specification alone (frame_reader.py)."""

from pathlib import Path

import pytest

from frame_reader import FrameError, read_frame

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SHAPES = [[4, 5], [400, 500], [1 << 17, 1 << 16], [64]]
BF16 = 9


def pattern(start, step, tensor, size):
    return bytes((start + step * k + tensor) & 0xFF for k in range(size))


def golden(name):
    return (GOLDEN / f"frame_{name}.bin").read_bytes()


@pytest.mark.parametrize(("name", "encoding"), [("indices", 0), ("deltas", 1)])
def test_a_delta(name, encoding):
    frame = read_frame(golden(name))
    assert (frame.encoding, frame.dtype, frame.version, frame.base_version) == (encoding, BF16, 7, 6)
    assert (frame.run, frame.rank, frame.index) == ("0123456789abcdeffedcba9876543210", 2, 5)
    assert [block.positions for block in frame.blocks] == [
        [0, 1, 7, 19],
        [5, 100_000, 199_999],
        [3, 5, (1 << 33) - 1],
    ]
    values = [block.values for block in frame.blocks]
    assert values[0] == pattern(0x3C, 7, 0, 8)
    assert values[2] == pattern(0x3C, 7, 2, 4) + pattern(0x3C, 7, 2, 2)


def test_compressed_streams():
    data = golden("deltas_zstd")
    frame = read_frame(data)
    assert [block.positions for block in frame.blocks] == [[7 + 10 * k for k in range(600)]]
    assert frame.blocks[0].values == pattern(0x3C, 7, 1, 1200)
    assert len(data) < 1200  # of 2400 bytes


def test_a_full_frame():
    frame = read_frame(golden("full"))
    assert [(block.tensor, block.first_unit, len(block.positions)) for block in frame.blocks] == [
        (0, 0, 5),
        (0, 7, 3),
        (2, (1 << 33) - 3, 3),
    ]
    assert frame.blocks[1].values == pattern(0x51, 5, 0, 6)


def test_blocks():
    frame = read_frame(golden("blocks"))
    assert [block.box for block in frame.blocks] == [
        [(0, 4), (0, 2)],
        [(0, 4), (2, 3)],
        [(100, 200), (0, 500)],
        [(300, 100), (250, 250)],
    ]
    assert [block.in_tensor(SHAPES[block.tensor]) for block in frame.blocks] == [
        [0, 1, 5, 16],  # columns 0 and 1 of rows of 5
        [7, 19],
        [50_000, 149_999],
        [150_251, 150_750, 199_999],
    ]
    assert frame.blocks[3].values == pattern(0x3C, 7, 1, 6)


def test_full_blocks():
    frame = read_frame(golden("full_blocks"))
    assert [block.in_tensor(SHAPES[block.tensor]) for block in frame.blocks] == [
        [1, 5, 6, 10],
        [15, 16],
        [2, 3, 4, 7, 8, 9, 12, 13, 14, 17, 18, 19],
        [199_999],
    ]
    assert [len(block.values) for block in frame.blocks] == [8, 4, 24, 2]


@pytest.mark.parametrize("name", ["indices", "deltas_zstd", "full", "blocks"])
def test_every_flipped_bit_is_detected(name):
    data = golden(name)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        try:
            found = read_frame(bytes(damaged))
        except FrameError:
            continue
        padding = found == read_frame(data)  # a flip in padding, which this reader skips
        assert padding, at

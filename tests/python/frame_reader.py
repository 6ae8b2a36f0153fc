# SPDX-License-Identifier: Apache-2.0
"""Reads frames: a second implementation, written only from docs/formats/frame.md, that shares no
code with the first."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import xxhash
import zstandard

HEADER = struct.Struct("<8sHBBIQQQ16sQQ16sIIQQQQ")
ROW = struct.Struct("<IBBBBBBBBIQQQQ16s")
INDICES, DELTAS, DELTAS_ZSTD, FULL = 0, 1, 2, 6
UNIT_BYTES = [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8, 8, 1, 1, 1, 1, 1]
NO_SCALE = 0xFFFFFFFF


class FrameError(Exception):
    """The bytes are not a frame of this format."""


def require(condition: bool, what: str) -> None:
    if not condition:
        raise FrameError(what)


def aligned(size: int) -> int:
    return (size + 7) // 8 * 8


@dataclass
class Block:
    """A row of the table, and its decoded contents."""

    tensor: int
    box: list[tuple[int, int]]  # offset and size; empty: the whole tensor
    first_unit: int
    positions: list[int]  # in the block; in a full frame: all positions of the range
    values: bytes

    def in_tensor(self, shape: list[int]) -> list[int]:
        """The positions as units of a tensor of this shape (with elements of at least one byte)."""
        box = self.box or [(0, size) for size in shape]
        found = []
        for position in self.positions:
            rest, index = position, []
            for _, size in reversed(box):
                index.append(rest % size)
                rest //= size
            unit = 0
            for (offset, _), inside, length in zip(box, reversed(index), shape, strict=True):
                unit = unit * length + offset + inside
            found.append(unit)
        return found


@dataclass
class Frame:
    encoding: int
    dtype: int
    run: str
    version: int
    base_version: int
    layout: str
    rank: int
    index: int
    blocks: list[Block]


def read_positions(encoding: int, width: int, stream: bytes) -> list[int]:
    require(width in (2, 4, 8), "width of a position")
    numbers = struct.unpack(f"<{len(stream) // width}{ {2: 'H', 4: 'I', 8: 'Q'}[width] }", stream)
    if encoding == INDICES:
        return list(numbers)
    positions, last = [], -1
    for gap in numbers:
        last += gap + 1
        positions.append(last)
    return positions


def inflate(stored_as: int, stored: bytes, size: int) -> bytes:
    require(stored_as in (0, 1), "how a stream is stored")
    content = stored if stored_as == 0 else zstandard.ZstdDecompressor().decompress(stored, max_output_size=size)
    require(len(content) == size, "size of a stream")
    return content


def read_table(table: bytes, rows: int) -> tuple[list[tuple[tuple[Any, ...], list[tuple[int, int]]]], bytes]:
    """The rows, and the bytes after them."""
    found, at = [], 0
    for _ in range(rows):
        require(len(table) - at >= ROW.size, "the table is cut short")
        row = ROW.unpack_from(table, at)
        at += ROW.size
        require(len(table) - at >= 16 * row[3], "a box is cut short")
        box = [struct.unpack_from("<QQ", table, at + 16 * d) for d in range(row[3])]
        at += 16 * row[3]
        found.append((row, box))
    return found, table[at:]


def read_frame(data: bytes) -> Frame:
    require(len(data) >= HEADER.size, "no header")
    head = HEADER.unpack_from(data)
    magic, form, encoding, dtype, rows, frame_bytes, table_bytes, stored_positions = head[:8]
    run, version, base, layout, rank, index, positions_bytes, values_bytes, stored_values, header_hash = head[8:]
    require(magic == b"DRIFTLSF", "magic")
    require(xxhash.xxh3_64_intdigest(data[:120]) == header_hash, "hash of the header")
    require(form == 2, "format")
    values_at = HEADER.size + aligned(stored_positions)
    table_at = values_at + aligned(stored_values)
    require(frame_bytes == len(data) == table_at + table_bytes + 16, "sizes")
    table = data[table_at : table_at + table_bytes]
    require(xxhash.xxh3_128_digest(table) == data[-16:], "hash of the table")
    frame = Frame(encoding, dtype, run.hex(), version, base, layout.hex(), rank, index, [])
    at, unit = [HEADER.size, values_at], UNIT_BYTES[dtype]
    counted = [0, 0]
    found, rest = read_table(table, rows)
    require(rest == b"", "the table has more than its rows")
    for row, box in found:
        tensor, row_encoding, row_dtype, _, width, positions_as, values_as, flags, further, scale = row[:10]
        first, count, position_size, value_size, row_hash = row[10:]
        require(flags == 0 and further == 0 and scale == NO_SCALE, "what this reader does not know")
        require(row_dtype == dtype and row_encoding == (DELTAS if encoding == DELTAS_ZSTD else encoding), "row")
        positions = data[at[0] : at[0] + position_size]
        values = data[at[1] : at[1] + value_size]
        both = xxhash.xxh3_128_digest(positions) + xxhash.xxh3_128_digest(values)
        require(xxhash.xxh3_128_digest(both) == row_hash, "hash of a block")
        at = [at[0] + position_size, at[1] + value_size]
        counted = [counted[0] + count * width, counted[1] + count * unit]
        content = inflate(values_as, values, count * unit)
        if encoding == FULL:
            places = list(range(first, first + count))
        else:
            places = read_positions(row_encoding, width, inflate(positions_as, positions, count * width))
        require(all(a < b for a, b in zip(places, places[1:], strict=False)), "positions do not ascend")
        frame.blocks.append(Block(tensor, box, first, places, content))
    require(at == [HEADER.size + stored_positions, values_at + stored_values], "streams")
    require(counted == [positions_bytes, values_bytes], "sizes before compression")
    return frame

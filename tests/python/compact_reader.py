# SPDX-License-Identifier: Apache-2.0
"""Reads frames of `compact`: a second implementation, written only from docs/formats/compact.md and
frame.md."""

from __future__ import annotations

import struct
from collections.abc import Callable

from frame_reader import HEADER, aligned, read_table, require

TURN, LOW = 65536, 1 << 24
FLIP = 61
SLOPES = [62, 55, 48, 42, 37, 33, 29, 25, 22, 19, 17, 15, 13, 12, 10, 9, 8, 7, 6, 5, 5, 4, 4, 3, 3, 2, 2, 2, 2, 1, 1, 1]
STARTS = [2048 * sum(SLOPES[:segment]) for segment in range(33)]
FIELDS = {9: (2, 7), 8: (2, 10), 12: (4, 23), 4: (1, 3), 20: (1, 3), 3: (1, 2), 21: (1, 2)}  # bytes, mantissa bits

Steps = list[tuple[int, int]]  # (symbol, weight); empty: every step is one unit
Table = tuple[dict[int, int], dict[int, Steps]]  # class -> hazards; class -> steps
Change = tuple[int, int, int]  # position, old value, new value
Block = tuple[int, list[tuple[int, int]], bytes, list[Change]]  # tensor, box, digest of the change, changes


class Coder:
    def __init__(self, stream: bytes) -> None:
        self.state, self.rest = int.from_bytes(stream[:4], "big"), stream[4:]
        require(self.state >= LOW, "a stream begins with its state")

    def skip(self, scale_bits: int, start: int, weight: int) -> None:
        place = self.peek(scale_bits)
        require(start <= place < start + weight, "a symbol")
        self.state = weight * (self.state >> scale_bits) + place - start
        while self.state < LOW:
            require(len(self.rest) > 0, "a stream is cut short")
            self.state, self.rest = self.state << 8 | self.rest[0], self.rest[1:]

    def peek(self, scale_bits: int) -> int:
        return self.state & ((1 << scale_bits) - 1)

    def bits(self, count: int) -> int:
        result = 0
        while count > 0:
            some = count % 16 or 16  # the incomplete part comes first
            value = self.peek(some)
            self.skip(some, value, 1)
            result, count = result << some | value, count - some
        return result


def share_before(at: int) -> int:
    return STARTS[at // 2048] + (SLOPES[at // 2048] * (at % 2048) if at < TURN else 0)


def point_at(place: int) -> int:
    segment = max(s for s in range(33) if STARTS[s] <= place)
    return TURN if segment == 32 else 2048 * segment + (place - STARTS[segment]) // SLOPES[segment]


def read_step(coder: Coder, steps: Steps, old: int, magnitude_bits: int) -> int:
    symbol = 0
    if steps:
        places = [symbol for symbol, weight in steps for _ in range(weight)]
        symbol = places[coder.peek(8)]
        coder.skip(8, places.index(symbol), places.count(symbol))
    mask = (1 << magnitude_bits) - 1
    if symbol == FLIP:
        return (old & ~mask ^ (mask + 1)) | coder.bits(magnitude_bits)
    log = (symbol + 1) // 2
    raw = coder.bits(max(log, 1))
    distance = 1 if log == 0 else (2 | (symbol + 1) & 1) << (log - 1) | raw >> 1
    magnitude = (old & mask) + (-distance if raw & 1 else distance)
    require(0 <= magnitude <= mask, "a step leaves the type")
    return old & ~mask | magnitude


def read_tile(table: Table, mantissa_bits: int, unit: int, old: list[int], stream: bytes, count: int) -> list[Change]:
    if count == 0 and stream == b"":
        return []
    magnitude_bits = 8 * unit - 1
    classes = [(value & ((1 << magnitude_bits) - 1)) >> mantissa_bits for value in old]
    hazards = [table[0].get(c, 0) for c in classes]
    coder, at, changes = Coder(stream), 0, []
    for _ in range(count):
        turns = 0
        while (point := point_at(coder.peek(20))) == TURN:
            require(turns < sum(hazards[at:]), "a gap leaves the tile")
            coder.skip(20, STARTS[32], (1 << 20) - STARTS[32])
            turns += TURN
        begin = 0
        while at < len(old) and begin + hazards[at] <= turns + point:
            begin += hazards[at]
            at += 1
        require(at < len(old) and begin >= turns, "a gap leaves the tile, or skipped too much")
        start = share_before(begin - turns)
        coder.skip(20, start, share_before(min(begin - turns + hazards[at], TURN)) - start)
        changes.append((at, old[at], read_step(coder, table[1][classes[at]], old[at], magnitude_bits)))
        at += 1
    require(coder.state == LOW and coder.rest == b"", "a stream has more than its changes")
    return changes


def read_compact_table(data: bytes) -> tuple[Table, bytes]:
    first, classes = data[0], data[1] + 1
    hazards = dict(enumerate(struct.unpack_from(f"<{classes}H", data, 2), first))
    steps, rest = {}, data[2 + 2 * classes :]
    for c in (c for c, hazard in hazards.items() if hazard != 0):
        symbols = [(rest[1 + 2 * i], rest[2 + 2 * i] + 1) for i in range(rest[0])]
        require(not symbols or sum(weight for _, weight in symbols) == 256, "weights of a class")
        steps[c], rest = symbols, rest[1 + 2 * len(symbols) :]
    return (hazards, steps), rest


def read_index(stream: bytes, units: int, tile: int) -> tuple[bytes, list[tuple[int, int]]]:
    least_changes, change_bits, byte_bits, least_bytes = struct.unpack_from("<HBBI", stream, 16)
    bits, tiles = int.from_bytes(stream[24:], "little"), []
    for _ in range(0, units, tile):
        changes, bits = bits & ((1 << change_bits) - 1), bits >> change_bits
        size, bits = bits & ((1 << byte_bits) - 1), bits >> byte_bits
        tiles.append((least_changes + changes, least_bytes + size))
    require(bits == 0, "padding of an index")
    return stream[:16], tiles


def read_compact_frame(data: bytes, old_of: Callable[[int, list[tuple[int, int]]], list[int]]) -> list[Block]:
    """old_of(tensor, box): the old values of a block, in its order. Hashes: frame_reader.py."""
    head = HEADER.unpack_from(data)
    require(head[2] == 5 and head[3] in FIELDS, "encoding and dtype")
    (unit, mantissa_bits), at = FIELDS[head[3]], [HEADER.size, HEADER.size + aligned(head[7])]
    rows, rest = read_table(data[at[1] + aligned(head[16]) : -16], head[4])
    tile_units, flags = (65536, 3) if unit == 1 else (16384, 1)
    tables: list[Table] = []
    while rest:
        table, rest = read_compact_table(rest)
        tables.append(table)
    blocks = []
    for row, box in rows:
        (tensor, _, _, _, number), (count, index_size, tiles_size) = row[:5], row[11:14]
        require(row[7] == flags, "flags of a row")
        old = old_of(tensor, box)
        change, tiles = read_index(data[at[0] : at[0] + index_size], len(old), tile_units)
        found: list[Change] = []
        place = at[1]
        for i, (changes, size) in enumerate(tiles):
            units, stream = old[i * tile_units : (i + 1) * tile_units], data[place : place + size]
            tile = read_tile(tables[number], mantissa_bits, unit, units, stream, changes)
            found += [(i * tile_units + at_unit, before, after) for at_unit, before, after in tile]
            place += size
        at = [at[0] + index_size, at[1] + tiles_size]
        require(place == at[1] and len(found) == count, "counts of a row")
        blocks.append((tensor, box, change, found))
    return blocks

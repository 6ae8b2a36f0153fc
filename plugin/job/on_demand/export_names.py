# SPDX-License-Identifier: Apache-2.0
"""Exports names of our namespace from an object file that was compiled with -fvisibility=hidden:

    export_names.py OBJECT

Changes OBJECT (64-bit ELF, little endian) in place: the functions, types and objects that it
defines in the namespace driftless get default visibility. So the shared library of a wheel can be
linked from the same objects as every other build (shared_code.cmake).
"""

import re
import struct
import sys

OURS = re.compile(rb"_Z(N[KRO]*|T.N)9driftless")
SYMTAB, SYMBOL_BYTES = 2, 24
GLOBAL, WEAK = 1, 2
UNDEFINED, DEFAULT, HIDDEN = 0, 0, 2


def export(data):
    """Changes `data`; returns how many names are exported now."""
    assert data[:6] == b"\x7fELF\x02\x01", "not a 64-bit ELF file in little endian"
    (headers,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    if count == 0:  # more than 65279 sections: the first header's size holds their number
        (count,) = struct.unpack_from("<Q", data, headers + 32)
    sections = [struct.unpack_from("<IIQQQQII", data, headers + number * size) for number in range(count)]
    exported = 0
    for _, kind, _, _, begin, length, strings, _ in sections:
        if kind != SYMTAB:
            continue
        names = sections[strings][4]
        for at in range(begin, begin + length, SYMBOL_BYTES):
            name, info, other, section = struct.unpack_from("<IBBH", data, at)
            # Inline variables have a third binding, "unique": each library keeps its own.
            if info >> 4 not in (GLOBAL, WEAK) or other & 3 != HIDDEN or section == UNDEFINED:
                continue
            if OURS.match(data, names + name):
                data[at + 5] = other & ~3 | DEFAULT
                exported += 1
    return exported


if __name__ == "__main__":
    with open(sys.argv[1], "r+b") as file:
        content = bytearray(file.read())
        if export(content) == 0:
            sys.exit(f"{sys.argv[1]}: defines no hidden name of the namespace driftless")
        file.seek(0)
        file.write(content)

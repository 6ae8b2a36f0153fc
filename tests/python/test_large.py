# SPDX-License-Identifier: Apache-2.0
"""Tensors whose positions exceed 32 bits, in sparse files: much to read, little on disk."""

import json
import os
import shutil
import struct
import tempfile
from pathlib import Path

import pytest

from support import assert_refusal, ok, ok_json, run

pytestmark = pytest.mark.long  # reads 4 GiB, several times
UNITS = (1 << 32) + (1 << 20)
NAME = "experts.stacked.weight"


def write_sparse(directory, changes):
    """One tensor of UNITS bytes, zero except for `changes` (position -> byte), and a small one."""
    header = json.dumps({
        NAME: {"dtype": "F8_E4M3", "shape": [UNITS], "data_offsets": [0, UNITS]},
        "small": {"dtype": "BF16", "shape": [8], "data_offsets": [UNITS, UNITS + 16]},
    }).encode()  # fmt: skip
    header += b" " * (-len(header) % 8)
    directory.mkdir()
    with open(directory / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + UNITS + 16)
        for position, byte in changes.items():
            file.seek(8 + len(header) + position)
            file.write(bytes([byte]))
    if os.stat(directory / "model.safetensors").st_blocks * 512 > 1 << 24:
        pytest.skip("this file system has no sparse files")


@pytest.fixture
def large():
    work = Path(tempfile.mkdtemp(prefix="driftless-test-"))  # on a disk, not in memory
    write_sparse(work / "old", {5: 1})
    write_sparse(work / "new", {5: 2, 1 << 31: 3, (1 << 32) + 77: 4, UNITS - 1: 9, UNITS + 3: 7})
    write_sparse(work / "checkpoint", {5: 1})
    yield work
    shutil.rmtree(work, ignore_errors=True)


def test_positions_past_32_bits_travel(large):
    made = ok_json("diff", large / "old", large / "new", "--out", large / "published",
                   "--layout", "flush", "--encoding", "deltas")  # fmt: skip
    assert made["changed_units"] == 5
    assert made["payload_bytes"] < 4096
    ok("apply", large / "published", "--to", large / "checkpoint")
    assert "identical" in ok("verify", large / "checkpoint", "--like", large / "new")


def test_overwrite_refuses_past_4_gib_and_names_the_tensor(large):
    result = run("diff", large / "old", large / "new", "--out", large / "published",
                 "--encoding", "overwrite")  # fmt: skip
    assert_refusal(result, 8, NAME, "4 GiB", "xor")
    assert not (large / "published").exists()

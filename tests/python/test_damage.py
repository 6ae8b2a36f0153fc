# SPDX-License-Identifier: Apache-2.0
"""Damaged and malicious bytes: truncation, flipped bits, names and links that lead elsewhere. They
are refused in one line, with the weights unchanged; or applied exactly, if the damage has no
effect."""

import json
import os
import random
import shutil
import struct

import pytest
import zstandard

import foreign
from support import (
    INDEX,
    Tensor,
    assert_refusal,
    ok,
    read_checkpoint,
    run,
    safetensors_bytes,
    weights_and_state,
)
from test_refusals import KINDS, assert_untouched, publish_kind

ALL_KINDS = [*KINDS, "ours indices", "ours full"]


def cuts(size):
    return sorted({0, 1, 7, 8, 9, size // 3, size // 2, size - 8, size - 1} & set(range(size)))


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_truncated_files_of_a_version(pair, kind):
    path = publish_kind(pair, kind)
    target = pair.checkpoint()
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        for size in cuts(len(whole)):
            file.write_bytes(whole[:size])
            assert_untouched(pair, target, (3, 4), file.name)
        file.write_bytes(whole)
    ok("apply", pair.published, "--to", target)
    assert read_checkpoint(target) == pair.new


@pytest.mark.parametrize("kind", ["ours xor", "ours deltas", "theirs xor", "theirs deltas"])
def test_bytes_after_the_end(pair, kind):
    path = publish_kind(pair, kind)
    target = pair.checkpoint()
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        file.write_bytes(whole + b"\0\0\0\0\0\0\0\0")
        assert_untouched(pair, target, 4, file.name)
        file.write_bytes(whole)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_flipped_bits_in_a_version(pair, kind):
    """At seeded random places over all files. Our formats detect every flip. In foreign formats a
    flip may fall on unused bytes: then the result is exact."""
    path = publish_kind(pair, kind)
    target = pair.checkpoint()
    before = weights_and_state(target)
    random_places = random.Random(kind)
    files = sorted(path.iterdir())
    harmless = 0
    for number in range(150):
        file = files[number % len(files)]
        whole = file.read_bytes()
        damaged = bytearray(whole)
        bit = random_places.randrange(8 * len(whole))
        damaged[bit // 8] ^= 1 << bit % 8
        file.write_bytes(damaged)
        result = run("apply", pair.published, "--to", target)
        if result.returncode == 0 and not kind.startswith("ours"):
            harmless += 1
            assert read_checkpoint(target) == pair.new, f"bit {bit} of {file.name}"
            shutil.rmtree(target)
            pair.checkpoint()
        else:
            assert_refusal(result, (3, 4, 8))
            shutil.rmtree(target / ".weight_sync", ignore_errors=True)
            assert weights_and_state(target) == before, f"bit {bit} of {file.name}"
        file.write_bytes(whole)
    assert harmless <= 2
    ok("apply", pair.published, "--to", target)
    assert read_checkpoint(target) == pair.new


@pytest.mark.parametrize("size", (0, 7, 8, 100, -1))
def test_a_truncated_checkpoint(pair, size):
    publish_kind(pair, "ours xor")
    target = pair.checkpoint()
    file = sorted(target.glob("*.safetensors"))[1]
    file.write_bytes(file.read_bytes()[:size])
    assert_untouched(pair, target, 4, "corrupt", file.name)
    result = run("diff", target, pair.new_path, "--out", pair.work / "out")
    assert_refusal(result, 4, "corrupt", file.name)
    assert_refusal(run("verify", target, "--like", pair.old_path), 4, "corrupt", file.name)


def test_a_checkpoint_without_one_of_its_files(pair):
    publish_kind(pair, "ours xor")
    target = pair.checkpoint()
    file = sorted(target.glob("*.safetensors"))[1]
    file.unlink()
    assert_untouched(pair, target, 3, "not_found", file.name)


@pytest.mark.parametrize("text", ("", "{", "[]", '{"version":7}', '{"version":"x"}', "\0" * 30,
                                  '{"version":"000001","digest":"zz"}'))  # fmt: skip
def test_a_damaged_state(pair, text):
    publish_kind(pair, "ours xor")
    target = pair.checkpoint()
    (target / ".weight_sync").mkdir()
    (target / ".weight_sync/state.json").write_text(text)
    assert_untouched(pair, target, 4, "corrupt", "state.json")


@pytest.mark.parametrize("name", ("..", "../old/model-00001-of-00002.safetensors", "/etc/passwd",
                                  "a/b.safetensors", "x\0.safetensors", "", ".", "x" * 300,
                                  "model.safetensors\n"))  # fmt: skip
class TestFileNamesThatLeadElsewhere:
    def test_in_the_index_of_a_version(self, pair, name):
        path = publish_kind(pair, "theirs xor")
        index = json.loads((path / INDEX).read_text())
        index["weight_map"]["norm.weight"] = name
        (path / INDEX).write_text(json.dumps(index))
        assert_untouched(pair, pair.checkpoint(), 4, "corrupt", INDEX)

    def test_in_the_index_of_a_full_version(self, pair, name):
        path = foreign.write_full(pair.published, 1, pair.new)
        index = json.loads((path / INDEX).read_text())
        index["weight_map"]["norm.weight"] = name
        (path / INDEX).write_text(json.dumps(index))
        assert_untouched(pair, pair.checkpoint(), 4, "corrupt", INDEX)

    def test_in_the_index_of_a_checkpoint(self, pair, name):
        publish_kind(pair, "ours xor")
        target = pair.checkpoint()
        index = json.loads((target / INDEX).read_text())
        index["weight_map"]["norm.weight"] = name
        (target / INDEX).write_text(json.dumps(index))
        assert_untouched(pair, target, 4, "corrupt", INDEX)


@pytest.mark.parametrize("change", ({"version": "000002"}, {"base_version": "000001"},
                                    {"base_version": "-00001"}, {"version": 1},
                                    {"delta_encoding": "gzip"}, {"compression_format": "lz4"},
                                    {"checksum_format": "md5"}, {"checksum_format": None},
                                    {"version": "1" * 30}))  # fmt: skip
def test_contradictions_in_an_index(pair, change):
    path = publish_kind(pair, "theirs xor")
    index = json.loads((path / INDEX).read_text())
    index["metadata"].update(change)
    (path / INDEX).write_text(json.dumps(index))
    assert_untouched(pair, pair.checkpoint(), (4, 8), INDEX)


def test_a_tensor_twice_in_one_header(pair):
    target = pair.checkpoint()
    path = publish_kind(pair, "theirs xor")
    (file,) = path.glob("*.safetensors")
    data = file.read_bytes().replace(b'"layers.mlp.weight": {', b'"layers.q.weight":   {')
    assert data.count(b'"layers.q.weight"') == 3
    file.write_bytes(data)
    assert_untouched(pair, target, 4, "corrupt", file.name)


@pytest.mark.parametrize("length", (1 << 63, (1 << 64) - 1, 1 << 40, 100_000_001))
def test_an_absurd_header_length(pair, length):
    path = publish_kind(pair, "theirs xor")
    (file,) = path.glob("*.safetensors")
    file.write_bytes(length.to_bytes(8, "little") + file.read_bytes()[8:])
    assert_untouched(pair, pair.checkpoint(), 4, "corrupt", file.name)


@pytest.mark.parametrize("positions", ([5, 5], [9, 3], [10**6, 10**6 + 1], [0, 2**32 - 1]))
def test_positions_that_make_no_sense(pair, positions):
    """Repeated, descending, or out of range, with a correct digest of the result."""
    name = "norm.weight"
    payload = struct.pack("<I2I2B", 2, *positions, 1, 2)
    frame = zstandard.ZstdCompressor().compress(payload)
    path = foreign.version_path(pair.published, 1)
    path.mkdir(parents=True)
    file = "model-00000-of-00001.safetensors"
    digest = {name: foreign.digest("xxh3-128", pair.old[name].data)}
    (path / file).write_bytes(safetensors_bytes({name: Tensor("U8", (len(frame),), frame)}, digest))
    index = foreign.hf_delta_index(1, 0, {name: file}, "overwrite")
    (path / INDEX).write_text(json.dumps(index))
    assert_untouched(pair, pair.checkpoint(), 4, name)


def test_a_frame_that_claims_more_than_the_tensor_has(pair):
    """A bomb: 512 MB of zeros in a few bytes of zstd; the header shows it, so it is not
    inflated."""
    name = "norm.weight"
    bomb = zstandard.ZstdCompressor(level=1).compressobj(size=1 << 29)
    frame = b"".join(bomb.compress(bytes(1 << 24)) for _ in range(32)) + bomb.flush()
    path = foreign.version_path(pair.published, 1)
    path.mkdir(parents=True)
    file = "model-00000-of-00001.safetensors"
    tensors = {name: Tensor("U8", (len(frame),), frame)}
    (path / file).write_bytes(safetensors_bytes(tensors, {name: "0" * 32}))
    (path / INDEX).write_text(json.dumps(foreign.hf_delta_index(1, 0, {name: file})))
    assert_untouched(pair, pair.checkpoint(), 4, name)


# --- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ours xor", "ours deltas", "theirs xor", "theirs deltas"])
def test_a_file_of_a_version_is_a_link_out_of_it(pair, kind):
    path = publish_kind(pair, kind)
    target = pair.checkpoint()
    for file in sorted(path.iterdir()):
        moved = pair.work / f"moved {file.name}"
        file.rename(moved)
        file.symlink_to(moved)
        assert_untouched(pair, target, 2, file.name, "symbolic link", "cp -rL")
        file.unlink()
        moved.rename(file)


@pytest.mark.parametrize("kind", ["ours xor", "theirs deltas"])
def test_a_version_is_a_link_out_of_the_directory(pair, kind):
    path = publish_kind(pair, kind)
    path.rename(pair.work / path.name)
    path.symlink_to(pair.work / path.name)
    assert_untouched(pair, pair.checkpoint(), 2, path.name, "symbolic link", "cp -rL")


@pytest.mark.parametrize("shards", (1, 2))
def test_a_file_of_the_checkpoint_is_a_link(pair, shards):
    """As in a model hub's cache: patching would change the weights of other users of the file."""
    publish_kind(pair, "ours xor")
    pair.shards = shards
    target = pair.checkpoint()
    file = sorted(target.glob("*.safetensors"))[0]
    blob = pair.work / "blob"
    file.rename(blob)
    file.symlink_to(blob)
    content = blob.read_bytes()
    assert_untouched(pair, target, 2, file.name, "symbolic link", "cp -rL")
    assert blob.read_bytes() == content and file.is_symlink()


@pytest.mark.parametrize("name", (".weight_sync", INDEX))
def test_another_part_of_the_checkpoint_is_a_link_out_of_it(pair, name):
    publish_kind(pair, "ours xor")
    target = pair.checkpoint()
    (target / ".weight_sync").mkdir()
    (target / name).rename(pair.work / "elsewhere")
    (target / name).symlink_to(pair.work / "elsewhere")
    assert_untouched(pair, target, 2, name, "symbolic link")


def test_a_checkpoint_that_shares_its_files_by_hard_links(pair):
    publish_kind(pair, "ours xor")
    target = pair.checkpoint()
    file = sorted(target.glob("*.safetensors"))[1]
    os.link(file, pair.work / "twin")
    content = file.read_bytes()
    assert_untouched(pair, target, 2, file.name, "hard links", "copy")
    assert (pair.work / "twin").read_bytes() == content
    (pair.work / "twin").unlink()
    ok("apply", pair.published, "--to", target)
    assert read_checkpoint(target) == pair.new


def test_a_link_to_the_checkpoint_itself_is_followed(pair):
    """A link on the command line stands for the directory that it leads to."""
    publish_kind(pair, "ours xor")
    target = pair.checkpoint()
    (pair.work / "link").symlink_to(target)
    ok("apply", pair.published, "--to", pair.work / "link")
    assert read_checkpoint(target) == pair.new

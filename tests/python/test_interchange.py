# SPDX-License-Identifier: Apache-2.0
"""Other tools read our versions, and we apply theirs, bit for bit."""

import json
import re

import numpy as np
import pytest

import foreign
from support import (
    DELTAS,
    FLUSH_ENCODINGS,
    HF_ENCODINGS,
    INDEX,
    changed,
    copy_checkpoint,
    ok,
    ok_json,
    publish,
    random_tensor,
    read_checkpoint,
    read_safetensors,
    state_version,
    with_bits,
    write_checkpoint,
)

CHECKSUMS = ("xxh3-128", "adler32", "blake3")
SHAPES = {
    "BF16": (65, 33), "F32": (7, 5, 3), "F16": (129,), "F64": (2, 3, 5), "F8_E4M3": (1021,),
    "F8_E5M2": (3, 3), "I64": (11,), "I32": (1, 1, 17), "I16": (5,), "I8": (77,), "U16": (9,),
    "U8": (70001,), "BOOL": (2, 39),
}  # fmt: skip
# Zeros of both signs, NaNs with payloads (quiet and signalling), infinities, denormals.
SPECIALS = {
    "BF16": [0x8000, 0x0000, 0x7FC1, 0xFF81, 0x7F80, 0x0001, 0xFFFF],
    "F32": [0x80000000, 0, 0x7FC00001, 0xFF800123, 0x7F800000, 1, 0xFFFFFFFF],
    "F16": [0x8000, 0x0000, 0x7C00, 0x0001, 0xFC00],
    "F64": [1 << 63, 0, 0x7FF8000000000001, 0xFFF0000000000000, 1],
    "F8_E4M3": [0x80, 0x00, 0x7F, 0xFF, 0x01, 0x7E],
}


@pytest.fixture
def rich(rng):
    """(old, new): many dtypes, odd shapes, scalars, empty tensors, special values, one
    unchanged."""
    old = {f"t.{dtype}": random_tensor(rng, dtype, shape) for dtype, shape in SHAPES.items()}
    old["scalar.f32"] = random_tensor(rng, "F32", ())
    old["scalar.bf16"] = random_tensor(rng, "BF16", ())
    old["empty"] = random_tensor(rng, "BF16", (0,))
    old["empty.inner"] = random_tensor(rng, "F32", (3, 0, 2))
    old["unchanged"] = random_tensor(rng, "BF16", (100,))
    old["müller/weight 1"] = random_tensor(rng, "BF16", (13, 2))
    new = {n: t if n == "unchanged" else changed(rng, t) for n, t in old.items()}
    for dtype, bits in SPECIALS.items():
        old[f"t.{dtype}"] = with_bits(old[f"t.{dtype}"], *reversed(bits))
        new[f"t.{dtype}"] = with_bits(new[f"t.{dtype}"], *bits)
    # Two changes whose distance exceeds 16 bits.
    new["t.U8"] = changed(rng, old["t.U8"], positions=[2, 70000])
    return old, new


def unchanged_names(old, new):
    return {name for name in old if old[name].data == new[name].data}


@pytest.mark.parametrize("encoding", HF_ENCODINGS)
@pytest.mark.parametrize("checksum", CHECKSUMS)
def test_others_read_our_hf_delta(work, rich, encoding, checksum):
    old, new = rich
    write_checkpoint(work / "old", old)
    write_checkpoint(work / "new", new, shards=3)
    publish(work / "out", work / "old", work / "new", "hf_delta", encoding, "--checksum", checksum)
    path = work / "out/weight_v000001"
    assert foreign.read_hf_delta(path, old) == new

    index = json.loads((path / INDEX).read_text())
    metadata = index["metadata"]
    assert all(isinstance(value, str) for value in metadata.values())
    expected = foreign.hf_delta_index(1, 0, {}, encoding, checksum)["metadata"]
    assert {key: metadata[key] for key in expected} == expected
    assert all(key in expected or key.startswith("driftless") for key in metadata)
    assert set(index["weight_map"]) == set(old) - unchanged_names(old, new)
    assert {"unchanged", "empty", "empty.inner"} <= unchanged_names(old, new)


@pytest.mark.parametrize("checksum,digits", zip(CHECKSUMS, (32, 8, 64)))
def test_shards_carry_lowercase_hex_digests(pair, checksum, digits):
    publish(pair.published, pair.old_path, pair.new_path, "hf_delta", "xor", "--checksum", checksum)
    (shard,) = (pair.published / "weight_v000001").glob("*.safetensors")
    assert shard.name == "model-00000-of-00001.safetensors"
    _, digests = read_safetensors(shard)
    pattern = f"[0-9a-f]{{{digits}}}"
    assert digests and all(re.fullmatch(pattern, value) for value in digests.values())


def test_blake3_digests_are_those_of_the_blake3_package(pair):
    pytest.importorskip("blake3", reason="no blake3 package here; the C++ tests hold the vectors")
    publish(pair.published, pair.old_path, pair.new_path, "hf_delta", "xor", "--checksum", "blake3")
    (shard,) = (pair.published / "weight_v000001").glob("*.safetensors")
    _, digests = read_safetensors(shard)
    assert all(foreign.digest("blake3", pair.new[n].data) == d for n, d in digests.items())


@pytest.mark.parametrize("encoding", FLUSH_ENCODINGS)
@pytest.mark.parametrize("checksum", CHECKSUMS)
def test_others_read_our_flush_files(work, rich, encoding, checksum):
    old, new = rich
    del old["t.F8_E5M2"], new["t.F8_E5M2"]  # the reader here widens only one of the FP8 types
    write_checkpoint(work / "old", old, shards=2)
    write_checkpoint(work / "new", new)
    publish(work / "out", work / "old", work / "new", "flush", encoding, "--checksum", checksum)
    path = work / "out/weight_v000001"
    assert foreign.read_flush(path, 1, old) == new
    mentioned, widths = set(), {}
    for number, file in enumerate(sorted(path.glob("*.safetensors"))):
        assert file.name == f"rank0000_flush{number:06d}.safetensors"
        metadata, params, _, _ = foreign.read_flush_file(file)
        assert metadata["encoding"] == encoding
        mentioned |= {param["name"] for param in params}
        widths.update({param["name"]: param["pos_width"] for param in params})
    assert mentioned == set(old) - unchanged_names(old, new)
    assert widths["t.U8"] == 4
    assert widths["t.BF16"] == (4 if encoding == "indices" else 2)


def test_a_small_buffer_makes_several_flush_files(work, rng):
    old = {f"t{i}": random_tensor(rng, "BF16", (300, 200)) for i in range(4)}
    new = {name: changed(rng, tensor, 0.3) for name, tensor in old.items()}
    write_checkpoint(work / "old", old)
    write_checkpoint(work / "new", new)
    publish(work / "out", work / "old", work / "new", "flush", "deltas", "--buffer-bytes", "65536")
    path = work / "out/weight_v000001"
    assert len(list(path.glob("*.safetensors"))) > 2
    assert foreign.read_flush(path, 1, old) == new
    ok("apply", work / "out", "--to", work / "old")
    assert read_checkpoint(work / "old") == new


@pytest.mark.parametrize("layout,encoding", DELTAS)
def test_nothing_changed_is_still_a_version(pair, layout, encoding):
    report = publish(pair.published, pair.old_path, pair.old_path, layout, encoding)
    assert report["version"] == 1 and report["changed_units"] == 0
    path = pair.published / "weight_v000001"
    if layout == "hf_delta":
        assert json.loads((path / INDEX).read_text())["weight_map"] == {}
        assert foreign.read_hf_delta(path, pair.old) == pair.old
    else:
        assert foreign.read_flush(path, 1, pair.old) == pair.old
    target = pair.checkpoint()
    ok("apply", pair.published, "--to", target)
    assert read_checkpoint(target) == pair.old and state_version(target) == 1


@pytest.mark.parametrize("layout,encoding", [*DELTAS, ("hf_delta", "full")])
def test_we_apply_our_own_versions(work, rich, layout, encoding):
    old, new = rich
    write_checkpoint(work / "old", old, shards=2)
    write_checkpoint(work / "new", new)
    publish(work / "out", work / "old", work / "new", layout, encoding)
    target = copy_checkpoint(work / "old", work / "target")
    ok("apply", work / "out", "--to", target, "--verify", "full")
    assert read_checkpoint(target) == new
    assert read_checkpoint(work / "old") == old


def test_others_read_our_full_version(pair):
    publish(pair.published, pair.old_path, pair.new_path, "hf_delta", "full")
    path = pair.published / "weight_v000001"
    index = json.loads((path / INDEX).read_text())
    assert "delta_encoding" not in index["metadata"]
    assert foreign.read_full(path) == pair.new


@pytest.mark.parametrize("encoding", HF_ENCODINGS)
@pytest.mark.parametrize("checksum", ("xxh3-128", "adler32"))
@pytest.mark.parametrize("shards", (1, 3))
def test_we_apply_their_hf_delta(work, rich, encoding, checksum, shards):
    old, new = rich
    foreign.write_hf_delta(work / "theirs", 1, old, new, encoding, checksum, shards)
    target = write_checkpoint(work / "target", old, shards=2)
    report = ok_json("apply", work / "theirs", "--to", target)
    assert read_checkpoint(target) == new
    assert report["applied"][0]["changed_tensors"] == len(old) - len(unchanged_names(old, new))
    state = json.loads((target / ".weight_sync/state.json").read_text())
    assert state["version"] == "000001"


@pytest.mark.parametrize("encoding", FLUSH_ENCODINGS)
@pytest.mark.parametrize("ranks", (1, 2))
def test_we_apply_their_flush_files(work, rich, encoding, ranks):
    old, new = rich
    del old["t.F8_E5M2"], new["t.F8_E5M2"]
    path = foreign.write_flush(work / "theirs", 1, old, new, encoding, ranks)
    params = [p for f in path.iterdir() for p in foreign.read_flush_file(f)[1]]
    if encoding != "indices":
        assert {p["pos_width"] for p in params} == {2, 4}, "the fallback must be among them"
    target = write_checkpoint(work / "target", old, shards=2)
    ok("apply", work / "theirs", "--to", target)
    assert read_checkpoint(target) == new and state_version(target) == 1


@pytest.mark.parametrize("shards", (1, 2))
def test_we_apply_their_full_version(pair, shards):
    path = foreign.write_full(pair.published, 5, pair.new, shards)
    if shards == 1:  # with an index: without one the version is not complete
        index = {"metadata": {}, "weight_map": dict.fromkeys(pair.new, "model.safetensors")}
        (path / INDEX).write_text(json.dumps(index))
    target = pair.checkpoint()
    ok("apply", pair.published, "--to", target)
    assert read_checkpoint(target) == pair.new and state_version(target) == 5


def test_a_chain_of_theirs_of_both_layouts(pair):
    third = pair.step(pair.new)
    foreign.write_hf_delta(pair.published, 1, pair.old, pair.new, "xor", shards=2)
    foreign.write_flush(pair.published, 2, pair.new, third, "deltas_zstd")
    foreign.write_hf_delta(pair.published, 3, third, pair.old, "overwrite", "adler32")
    target = pair.checkpoint()
    report = ok_json("apply", pair.published, "--to", target)
    assert [v["version"] for v in report["applied"]] == [1, 2, 3]
    assert read_checkpoint(target) == pair.old and state_version(target) == 3


def test_their_empty_version(pair):
    path = foreign.version_path(pair.published, 1)
    path.mkdir(parents=True)
    (path / INDEX).write_text(json.dumps(foreign.hf_delta_index(1, 0, {})))
    target = pair.checkpoint()
    ok("apply", pair.published, "--to", target)
    assert read_checkpoint(target) == pair.old and state_version(target) == 1


def test_a_checkpoint_that_another_tool_patched_continues_with_our_versions(pair):
    """Their state has only the version's number; the weights prove the rest."""
    third = pair.step(pair.new)
    write_checkpoint(pair.work / "third", third)
    publish(pair.published, pair.old_path, pair.new_path)
    publish(pair.published, pair.new_path, pair.work / "third")
    target = pair.checkpoint(tensors=pair.new)
    (target / ".weight_sync").mkdir()
    (target / ".weight_sync/state.json").write_text('{"version":"000001"}')
    ok("apply", pair.published, "--to", target)
    assert read_checkpoint(target) == third and state_version(target) == 2


def test_the_largest_gap_of_16_bits_and_the_next(work, rng):
    """65535 unchanged elements between two changes fit into uint16, 65536 do not."""
    for number, gap in enumerate((65535, 65536), 1):
        old = {"t": random_tensor(rng, "U8", (140000,))}
        new = {"t": changed(rng, old["t"], positions=[0, gap + 1])}
        write_checkpoint(work / f"old{number}", old)
        write_checkpoint(work / f"new{number}", new)
        out = work / f"out{number}"
        publish(out, work / f"old{number}", work / f"new{number}", "flush", "deltas")
        path = out / "weight_v000001"
        _, (param,), _, _ = foreign.read_flush_file(path / "rank0000_flush000000.safetensors")
        assert param["pos_width"] == (2 if gap == 65535 else 4)
        assert foreign.read_flush(path, 1, old) == new
        ok("apply", out, "--to", work / f"old{number}")
        assert np.array_equal(read_checkpoint(work / f"old{number}")["t"].words(), new["t"].words())

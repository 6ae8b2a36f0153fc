# SPDX-License-Identifier: Apache-2.0
"""Reads and writes the formats of other tools as those tools do: hf_delta directories and flush
files. Written only from the descriptions of the formats; shares nothing with the C++ code."""

import json
import math
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import xxhash
import zstandard

from support import (
    INDEX,
    Tensor,
    parse_safetensors,
    read_checkpoint,
    read_safetensors,
    safetensors_bytes,
    split,
    write_checkpoint,
)

try:
    import blake3
except ImportError:
    blake3 = None

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def version_path(directory, version):
    return Path(directory) / f"weight_v{version:06d}"


def digest(kind, data):
    if kind == "xxh3-128":
        return xxhash.xxh3_128_hexdigest(data)
    if kind == "adler32":
        return f"{zlib.adler32(data):08x}"
    return blake3.blake3(data).hexdigest() if blake3 else None


# --- hf_delta ------------------------------------------------------------------------------------


def unzstd(data):
    """One frame with its content size, no dictionary, a window of at most 2^27, nothing after
    it."""
    frame = zstandard.get_frame_parameters(data)
    assert frame.dict_id == 0
    assert frame.content_size not in (-1, zstandard.CONTENTSIZE_UNKNOWN)
    assert frame.window_size <= 1 << 27
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
    content = decompressor.decompress(data)
    assert decompressor.unused_data == b"" and len(content) == frame.content_size
    return content


def patched(encoding, old, payload):
    old = np.frombuffer(old, np.uint8)
    if encoding == "xor":
        assert len(payload) == len(old)
        return (old ^ np.frombuffer(payload, np.uint8)).tobytes()
    (count,) = struct.unpack_from("<I", payload)
    assert len(payload) == 4 + 5 * count
    positions = np.frombuffer(payload, "<u4", count, 4)
    assert np.all(np.diff(positions.astype(np.int64)) > 0)
    new = old.copy()
    new[positions] = np.frombuffer(payload, np.uint8, count, 4 + 4 * count)
    return new.tobytes()


def read_hf_delta(path, tensors):
    """The tensors after this version, as an engine's reader makes them from the ones before."""
    path = Path(path)
    index = json.loads((path / INDEX).read_text())
    metadata = index["metadata"]
    result = dict(tensors)
    seen = set()
    for file in sorted(path.glob("*.safetensors")):
        entries, digests = read_safetensors(file)
        assert set(entries) == set(digests), "the metadata is {tensor: digest}, nothing else"
        for name, entry in entries.items():
            assert index["weight_map"][name] == file.name and name not in seen
            assert entry.dtype == "U8" and entry.shape == (len(entry.data),)
            old = tensors[name]
            new = patched(metadata["delta_encoding"], old.data, unzstd(entry.data))
            expected = digest(metadata["checksum_format"], new)
            assert expected in (None, digests[name])
            result[name] = Tensor(old.dtype, old.shape, new)
            seen.add(name)
    assert seen == set(index["weight_map"])
    return result


def payload_of(encoding, old, new):
    old, new = np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8)
    if encoding == "xor":
        return (old ^ new).tobytes()
    positions = np.flatnonzero(old != new).astype("<u4")
    return struct.pack("<I", len(positions)) + positions.tobytes() + new[positions].tobytes()


def hf_delta_entries(old, new, encoding="xor", checksum="xxh3-128"):
    """({name: compressed payload}, {name: digest}) of the tensors that differ."""
    compressor = zstandard.ZstdCompressor(level=1)
    entries, digests = {}, {}
    for name, tensor in new.items():
        if tensor.data != old[name].data:
            frame = compressor.compress(payload_of(encoding, old[name].data, tensor.data))
            entries[name] = Tensor("U8", (len(frame),), frame)
            digests[name] = digest(checksum, tensor.data)
    return entries, digests


def hf_delta_index(version, base, weight_map, encoding="xor", checksum="xxh3-128"):
    metadata = {
        "version": f"{version:06d}",
        "base_version": f"{base:06d}",
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": checksum,
    }
    return {"metadata": metadata, "weight_map": weight_map}


def write_hf_delta(directory, version, old, new, encoding="xor", checksum="xxh3-128", shards=1):
    """Writes a version as other trainers do: shards, then the index, no manifest."""
    path = version_path(directory, version)
    path.mkdir(parents=True)
    entries, digests = hf_delta_entries(old, new, encoding, checksum)
    weight_map = {}
    for number, part in enumerate(split(entries, shards)):
        name = f"model-{number:05d}-of-{shards:05d}.safetensors"
        data = safetensors_bytes(part, {tensor: digests[tensor] for tensor in part})
        (path / name).write_bytes(data)
        weight_map.update(dict.fromkeys(part, name))
    index = hf_delta_index(version, version - 1, weight_map, encoding, checksum)
    (path / INDEX).write_text(json.dumps(index))
    return path


def write_full(directory, version, tensors, shards=2):
    """A full version: a checkpoint with its index, without delta_encoding."""
    return write_checkpoint(version_path(directory, version), tensors, shards)


def write_full_without_index(directory, version, tensors, shards=2):
    """The number of files is in their names, or there is one file."""
    path = version_path(directory, version)
    path.mkdir(parents=True)
    for number, part in enumerate(split(tensors, shards)):
        name = f"model-{number + 1:05d}-of-{shards:05d}" if shards > 1 else "model"
        data = safetensors_bytes(part, {"format": "pt"})
        (path / f"{name}.safetensors").write_bytes(data)
    return path


def is_delta(path):
    index = path / INDEX
    return index.exists() and "delta_encoding" in json.loads(index.read_text())["metadata"]


def pull(local, base, source, target):
    """Does what an engine does when it pulls a version into its local checkpoint: starts from the
    newest full version that is not newer, or from the base, and applies delta by delta. A full
    version is copied with all of its files; files that it lacks are removed."""
    local = Path(local)
    state = local / ".weight_sync/state.json"
    applied = int(json.loads(state.read_text())["version"]) if state.exists() else None
    start = target
    while start > (applied or 0):
        assert version_path(source, start).is_dir(), f"version {start} is missing"
        if not is_delta(version_path(source, start)):
            break
        start -= 1
    if applied is None or start > applied:
        origin = Path(base) if start == 0 else version_path(source, start)
        local.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in origin.iterdir() if path.is_file()}
        for path in local.iterdir():
            if path.is_file() and path.name not in names:
                path.unlink()
        for name in names:
            shutil.copy2(origin / name, local / name)
    else:
        start = applied
    tensors = read_checkpoint(local)
    files = {name: file for file in local.glob("*.safetensors") for name in read_safetensors(file)[0]}
    for version in range(start + 1, target + 1):
        path = version_path(source, version)
        assert int(json.loads((path / INDEX).read_text())["metadata"]["base_version"]) == version - 1
        tensors = read_hf_delta(path, tensors)
    for file in set(files.values()):
        own = {name: tensors[name] for name in files if files[name] == file}
        file.write_bytes(safetensors_bytes(own, read_safetensors(file)[1]))
    state.parent.mkdir(exist_ok=True)
    state.write_text(json.dumps({"version": f"{target:06d}"}))
    return tensors


def read_full(path):
    return read_checkpoint(path)


# --- TRL ------------------------------------------------------------------------------------------


def write_trl_anchor(directory, step, tensors):
    path = Path(directory) / f"anchors/step_{step:06d}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"format": "sparse_weight_patch", "version": "1", "sparse": "False"}
    path.write_bytes(safetensors_bytes(tensors, metadata | {"model_version": str(step)}))
    return path


def write_trl_delta(directory, step, old, new, spelling=("indices", "values"), encoding=None):
    """Uses the spelling of TRL's blog post; `encoding` raw or gap_delta came with a later
    format."""
    tensors, changed, total = {}, [], 0
    for name, tensor in new.items():
        at = np.flatnonzero(old[name].words() != tensor.words())
        if len(at) == 0:
            continue
        kind, positions = "I32", at.astype("<i4")
        if encoding == "gap_delta":
            gaps = np.diff(at, prepend=-1) - 1
            kind = "U16" if gaps.max() <= 0xFFFF else "U32"
            positions = gaps.astype("<u2" if kind == "U16" else "<u4")
        picked = tensor.words()[at].tobytes()
        tensors[f"{name}.{spelling[0]}"] = Tensor(kind, (len(at),), positions.tobytes())
        tensors[f"{name}.{spelling[1]}"] = Tensor(tensor.dtype, (len(at),), picked)
        changed.append(name)
        total += len(at)
    metadata = {
        "format": "sparse_weight_patch", "version": "1", "sparse": "True",
        "model_version": str(step), "num_changed_params": str(len(changed)),
        "total_changed_elements": str(total),
    }  # fmt: skip
    metadata |= {"encoding": encoding} if encoding else {"changed_params": json.dumps(changed)}
    path = Path(directory) / f"deltas/step_{step:06d}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(safetensors_bytes(tensors, metadata))
    return path


def apply_trl(path, tensors):
    """The tensors after this step, as TRL's worker makes them from the ones before."""
    entries, metadata = read_safetensors(path)
    assert (metadata["format"], metadata["version"]) == ("sparse_weight_patch", "1")
    assert int(metadata["model_version"]) == int(path.stem.removeprefix("step_"))
    sparse = {"True": True, "False": False}[metadata["sparse"]]
    assert sparse == (path.parent.name == "deltas")
    if not sparse:
        assert int(metadata["num_changed_params"]) == len(entries)
        return dict(entries)
    gaps = metadata.get("encoding") == "gap_delta"
    suffixes = (".idx", ".val") if gaps else (".indices", ".values")
    names = [key.removesuffix(suffixes[1]) for key in entries if key.endswith(suffixes[1])]
    if not gaps:
        assert sorted(json.loads(metadata["changed_params"])) == sorted(names)
    result, changed, total = dict(tensors), 0, 0
    for name in names:
        stored, values = entries[name + suffixes[0]], entries[name + suffixes[1]]
        kinds = {"I32": "<i4", "U16": "<u2", "U32": "<u4"}
        at = np.frombuffer(stored.data, kinds[stored.dtype]).astype(np.int64)
        assert stored.dtype != "I32" if gaps else stored.dtype == "I32"
        at = np.cumsum(at + 1) - 1 if gaps else at
        old = result[name]
        assert values.dtype == old.dtype and np.all(np.diff(at) > 0)
        words = old.words().copy()
        words[at] = values.words()
        result[name] = Tensor(old.dtype, old.shape, words.tobytes())
        changed, total = changed + len(at), total + len(words)
    assert len(entries) == 2 * len(names) == 2 * int(metadata["num_changed_params"])
    assert (int(metadata["total_changed_elements"]), int(metadata["total_elements"])) == (changed, total)
    assert abs(float(metadata["sparsity"]) - (1 - changed / max(total, 1))) < 1e-9
    return result


def follow_trl(directory, step, held=None):
    """The tensors of a step, made from those `held` of the step before, or from the newest
    anchor."""
    directory = Path(directory)
    if held is not None:
        return apply_trl(directory / f"deltas/step_{step:06d}.safetensors", held)
    anchors = [int(p.stem.removeprefix("step_")) for p in directory.glob("anchors/step_*.safetensors")]
    begin = max(anchor for anchor in anchors if anchor <= step)
    held = apply_trl(directory / f"anchors/step_{begin:06d}.safetensors", None)
    for number in range(begin + 1, step + 1):
        held = follow_trl(directory, number, held)
    return held


# --- flush files ---------------------------------------------------------------------------------

TORCH = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16",
    "BF16": "bfloat16", "I32": "int32", "U32": "uint32", "F32": "float32", "F64": "float64",
    "I64": "int64", "U64": "uint64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
INTEGERS = {"BOOL": "u1", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "I32": "<i4",
            "U32": "<u4", "I64": "<i8", "U64": "<u8"}  # fmt: skip


def e4m3_to_double_bits(byte):
    exponent, mantissa = byte >> 3 & 15, byte & 7
    if byte & 127 == 127:  # the only NaN: mantissa 111
        bits = 0x7FFE << 48
    elif exponent == 0:
        bits = struct.unpack("<Q", struct.pack("<d", math.ldexp(mantissa, -9)))[0]
    else:
        bits = struct.unpack("<Q", struct.pack("<d", math.ldexp(8 + mantissa, exponent - 10)))[0]
    return bits | (byte & 128) << 56


def widened(dtype, data):
    """Each value exactly, as float64 (integers as int64), viewed as uint64."""
    if dtype in INTEGERS:
        return np.frombuffer(data, INTEGERS[dtype]).astype("<i8").view("<u8")
    if dtype == "BF16":
        single = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    elif dtype == "F16":
        single = np.frombuffer(data, "<f2").astype("<f4")
    elif dtype == "F8_E4M3":
        return np.array([e4m3_to_double_bits(b) for b in data], "<u8")
    else:
        single = np.frombuffer(data, {"F32": "<f4", "F64": "<f8"}[dtype])
    return single.astype("<f8").view("<u8")


def flush_checksum(dtype, positions, values):
    p = np.bitwise_xor.reduce(np.frombuffer(positions, np.uint8), initial=0)
    v = np.bitwise_xor.reduce(widened(dtype, values), initial=np.uint64(0))
    return str(int(p) ^ int(v) << 1)


def encode_positions(encoding, positions):
    """(bytes, width)."""
    if encoding == "indices":
        return positions.astype("<i4").tobytes(), 4
    gaps = np.diff(positions, prepend=-1) - 1
    width = 2 if gaps.max(initial=0) <= 0xFFFF else 4
    return gaps.astype(f"<u{width}").tobytes(), width


def decode_positions(encoding, data, width):
    if encoding == "indices":
        return np.frombuffer(data, f"<i{width}").astype(np.int64)
    return np.cumsum(np.frombuffer(data, f"<u{width}").astype(np.int64) + 1) - 1


def as_float32(dtype, data):
    """The values widened as by torch's concatenation."""
    if dtype != "BF16":
        return data
    return (np.frombuffer(data, "<u2").astype("<u4") << 16).tobytes()


def flush_bytes(version, old, new, encoding):
    """One flush file: tensors of one dtype, or of BF16 and F32 with all values as F32."""
    positions, values, params, dtype = b"", b"", [], None
    mixed = len({tensor.dtype for tensor in new.values()}) > 1
    for name, tensor in new.items():
        own = tensor.dtype
        dtype = "F32" if mixed else own
        at = np.flatnonzero(old[name].words() != tensor.words())
        packed, width = encode_positions(encoding, at)
        picked = tensor.words()[at].tobytes()
        picked = as_float32(own, picked) if mixed else picked
        size = 4 if mixed else tensor.words().itemsize
        params.append({
            "name": name, "dtype": TORCH[own], "shape": list(tensor.shape),
            "pos_start": len(positions), "pos_end": len(positions) + len(packed),
            "pos_width": width,
            "val_start": len(values) // size, "val_end": len(values) // size + len(at),
        })  # fmt: skip
        positions += packed
        values += picked
    tensors = {
        "__positions__": Tensor("U8", (len(positions),), positions),
        "__values__": Tensor(dtype, (params[-1]["val_end"],), values),
    }
    metadata = {
        "encoding": encoding,
        "params": json.dumps(params),
        "current_version": str(version),
        "checksum": flush_checksum(dtype, positions, values),
    }
    data = safetensors_bytes(tensors, metadata)
    return zstandard.ZstdCompressor(level=1).compress(data) if encoding == "deltas_zstd" else data


def write_flush(directory, version, old, new, encoding="deltas", ranks=1, mixed=False):
    """Writes a version as other trainers do: one file per dtype, distributed over ranks; or one
    file."""
    path = version_path(directory, version)
    path.mkdir(parents=True)
    differing = {n: t for n, t in new.items() if t.data != old[n].data}
    if mixed:
        name = "rank0000_flush000000.safetensors"
        (path / name).write_bytes(flush_bytes(version, old, differing, encoding))
        return path
    dtypes = sorted({t.dtype for t in differing.values()})
    for number, dtype in enumerate(dtypes):
        part = {n: t for n, t in differing.items() if t.dtype == dtype}
        name = f"rank{number % ranks:04d}_flush{number // ranks:06d}.safetensors"
        (path / name).write_bytes(flush_bytes(version, old, part, encoding))
    return path


def read_flush_file(path):
    """(metadata, params, positions, values), after comparing the checksum."""
    data = Path(path).read_bytes()
    compressed = data[:4] == ZSTD_MAGIC
    tensors, metadata = parse_safetensors(unzstd(data) if compressed else data)
    assert set(tensors) == {"__positions__", "__values__"}
    assert compressed == (metadata["encoding"] == "deltas_zstd")
    positions, values = tensors["__positions__"], tensors["__values__"]
    assert positions.dtype == "U8"
    expected = flush_checksum(values.dtype, positions.data, values.data)
    assert metadata["checksum"] == expected
    return metadata, json.loads(metadata["params"]), positions, values


def read_flush(path, version, tensors):
    """The tensors after this version, as an engine of that generation makes them."""
    result = dict(tensors)
    for file in sorted(Path(path).glob("*.safetensors")):
        metadata, params, positions, values = read_flush_file(file)
        assert int(metadata["current_version"]) == version
        for param in params:
            old = result[param["name"]]
            assert param["dtype"] == TORCH[old.dtype] and tuple(param["shape"]) == old.shape
            assert values.dtype == old.dtype, "a bucket never mixes dtypes"
            blob = positions.data[param["pos_start"] : param["pos_end"]]
            at = decode_positions(metadata["encoding"], blob, param["pos_width"])
            words = old.words().copy()
            words[at] = values.words()[param["val_start"] : param["val_end"]]
            result[param["name"]] = Tensor(old.dtype, old.shape, words.tobytes())
    return result

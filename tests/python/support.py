# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests: running the command, and a simple reader and writer of safetensors files and
Hugging Face checkpoints. Shares nothing with the C++ code."""

import json
import os
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parents[2]
COMMAND = os.environ.get("DRIFTLESS_COMMAND", str(REPOSITORY / "build/bin/driftless"))

INDEX = "model.safetensors.index.json"
HF_ENCODINGS = ("xor", "overwrite")
FLUSH_ENCODINGS = ("indices", "deltas", "deltas_zstd")
# Every (layout, encoding) of deltas.
DELTAS = [("hf_delta", e) for e in HF_ENCODINGS] + [("flush", e) for e in FLUSH_ENCODINGS]
DELTAS.append(("frames", "compact"))

BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip


# --- the command ---------------------------------------------------------------------------------


def run(*arguments, **options):
    """Runs `driftless`; returns the result of subprocess.run(), with text output."""
    options.setdefault("timeout", 300)
    line = [COMMAND, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, **options)


def ok(*arguments, **options):
    """Runs `driftless`, which must succeed without writing to stderr; returns its stdout."""
    result = run(*arguments, **options)
    assert result.returncode == 0, f"{arguments}: {result.returncode}: {result.stderr}"
    assert result.stderr == ""
    return result.stdout


def ok_json(*arguments, **options):
    return json.loads(ok(*arguments, "--json", **options))


def assert_refusal(result, code, *words):
    """Asserts one line on stderr with every word in it, and the documented exit code (or one of
    several)."""
    codes = code if isinstance(code, tuple) else (code,)
    assert result.returncode in codes, f"exit {result.returncode}: {result.stderr}{result.stdout}"
    assert result.stderr.startswith("driftless: ")
    assert result.stderr.count("\n") == 1 and result.stderr.endswith("\n"), result.stderr
    for word in words:
        assert word in result.stderr, f"no {word!r} in {result.stderr}"


# --- tensors -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tensor:
    dtype: str
    shape: tuple
    data: bytes

    def words(self):
        """The bits, as one unsigned integer per element."""
        return np.frombuffer(self.data, dtype=f"<u{BYTES[self.dtype]}")


def random_tensor(rng, dtype, shape):
    count = int(np.prod(shape, dtype=np.int64))
    if dtype == "BF16":  # like weights: around 0.02
        values = (rng.standard_normal(count) * 0.02).astype("<f4").view("<u4") >> 16
        return Tensor(dtype, tuple(shape), values.astype("<u2").tobytes())
    data = rng.integers(0, 256, count * BYTES[dtype], dtype=np.uint8)
    return Tensor(dtype, tuple(shape), (data & 1 if dtype == "BOOL" else data).tobytes())


def changed(rng, tensor, fraction=0.02, positions=None):
    """The tensor with other bits at random positions (at least one), or at the given ones."""
    words = tensor.words().copy()
    if len(words) == 0:
        return tensor
    if positions is None:
        count = max(1, int(len(words) * fraction))
        positions = rng.choice(len(words), count, replace=False)
    high = 2 if tensor.dtype == "BOOL" else 256
    flips = rng.integers(1, high, len(positions)).astype(words.dtype)
    words[positions] ^= flips
    return Tensor(tensor.dtype, tensor.shape, words.tobytes())


def with_bits(tensor, *bits):
    """The tensor with these bit patterns at its beginning."""
    words = tensor.words().copy()
    words[: len(bits)] = bits
    return Tensor(tensor.dtype, tensor.shape, words.tobytes())


# --- safetensors ---------------------------------------------------------------------------------


def safetensors_bytes(tensors, metadata=None):
    header, offset = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, tensor in tensors.items():
        end = offset + len(tensor.data)
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(t.data for t in tensors.values())


def parse_safetensors(data):
    """(tensors, metadata), after checking the rules of the format."""
    (length,) = struct.unpack_from("<Q", data)
    assert length <= 100_000_000 and length % 8 == 0 and 8 + length <= len(data)
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    assert all(isinstance(v, str) for v in metadata.values())
    body, end, tensors = data[8 + length :], 0, {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        assert set(entry) == {"dtype", "shape", "data_offsets"}
        begin, stop = entry["data_offsets"]
        count = int(np.prod(entry["shape"], dtype=np.int64))
        assert begin == end and stop - begin == count * BYTES[entry["dtype"]]
        tensors[name] = Tensor(entry["dtype"], tuple(entry["shape"]), body[begin:stop])
        end = stop
    assert end == len(body), "bytes that belong to no tensor"
    return tensors, metadata


def read_safetensors(path):
    return parse_safetensors(Path(path).read_bytes())


# --- checkpoints ---------------------------------------------------------------------------------


def split(tensors, parts):
    """Distributes tensors one by one, so that neighbours are in different files."""
    names = list(tensors)
    return [{n: tensors[n] for n in names[part::parts]} for part in range(parts)]


def write_checkpoint(path, tensors, shards=1):
    path = Path(path)
    path.mkdir(parents=True)
    (path / "config.json").write_text('{"model_type": "test"}\n')
    if shards == 1:
        (path / "model.safetensors").write_bytes(safetensors_bytes(tensors, {"format": "pt"}))
        return path
    weight_map = {}
    for number, part in enumerate(split(tensors, shards), 1):
        name = f"model-{number:05d}-of-{shards:05d}.safetensors"
        (path / name).write_bytes(safetensors_bytes(part, {"format": "pt"}))
        weight_map.update(dict.fromkeys(part, name))
    total = sum(len(t.data) for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (path / INDEX).write_text(json.dumps(index, indent=2))
    return path


def read_checkpoint(path):
    path = Path(path)
    if not (path / INDEX).exists():
        (file,) = path.glob("*.safetensors")
        return read_safetensors(file)[0]
    weight_map = json.loads((path / INDEX).read_text())["weight_map"]
    tensors = {}
    for file in sorted(set(weight_map.values())):
        part, _ = read_safetensors(path / file)
        assert all(weight_map[name] == file for name in part)
        tensors.update(part)
    assert set(tensors) == set(weight_map)
    return tensors


def copy_checkpoint(source, target):
    """A copy, with its .weight_sync if there is one."""
    shutil.copytree(source, target, symlinks=True)
    return Path(target)


def files_of(path):
    """Every file under `path`, as {relative name: bytes}: for comparing before and after."""
    path = Path(path)
    return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}


def weights_and_state(path):
    """All that a refused apply must leave unchanged. The lock file does not count."""
    files = files_of(path)
    files.pop(".weight_sync/lock", None)
    return files


def state_version(path):
    state = Path(path) / ".weight_sync/state.json"
    return int(json.loads(state.read_text())["version"]) if state.exists() else 0


def write_state(path, version):
    """Writes the state as other tools do: only a version."""
    directory = Path(path) / ".weight_sync"
    directory.mkdir(exist_ok=True)
    (directory / "state.json").write_text(json.dumps({"version": f"{version:06d}"}))


def publish(out, old, new, layout="hf_delta", encoding=None, *options):
    arguments = ["diff", old, new, "--out", out, "--layout", layout, *options]
    return ok_json(*arguments, *(["--encoding", encoding] if encoding else []))

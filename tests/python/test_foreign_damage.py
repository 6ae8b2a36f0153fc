# SPDX-License-Identifier: Apache-2.0
"""Foreign directories that are written slowly, replaced, rolled back, mixed or malicious: a rollout
either holds a version that one of the writers published, or reports why not."""

import json
import os
import shutil
import struct
import time

import numpy as np
import pytest

import foreign
import jobs
from foreign_jobs import Trainer, follow, following, patching
from jobs import ended, finish, wait_for
from support import INDEX, Tensor, assert_refusal, read_checkpoint, safetensors_bytes


@pytest.fixture(autouse=True)
def no_processes_left():
    yield
    jobs.stop_started()


def write_slowly(path, data, seconds, pieces=40):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb", buffering=0) as file:
        for number in range(pieces):
            file.write(data[len(data) * number // pieces : len(data) * (number + 1) // pieces])
            time.sleep(seconds / pieces)


@pytest.mark.parametrize("layout", ["full", "trl anchor"])
def test_a_file_that_grows_for_long_is_waited_for(work, rng, layout):
    """Longer than for a damaged file: large models are not written within seconds."""
    trainer = Trainer(work, rng)
    job = following(work, trainer)
    rollout = follow(job, trainer, 1, work / "a")
    _, _, new = trainer.step()
    name = {"full": "weight_v000001/model.safetensors", "trl anchor": "anchors/step_000001.safetensors"}
    write_slowly(trainer.dir / name[layout], safetensors_bytes(new, {"format": "pt"}), 14)
    assert ended(rollout)["version"] == 1
    assert read_checkpoint(work / "a/rollout_00") == new


def test_a_rollback_that_keeps_the_directory_is_noticed(work, rng):
    """The trainer went back to version 2, and writes version 3 again, over the old one."""
    trainer = Trainer(work, rng)
    job = following(work, trainer)
    rollout = follow(job, trainer, 9, work / "a", "--verbose")
    for _ in range(4):
        version, old, new = trainer.step()
        foreign.write_hf_delta(trainer.dir, version, old, new)
    lines = iter(rollout.stdout.readline, "")
    assert any(json.loads(line)["version"] == 4 for line in lines)
    trainer.history = trainer.history[:3]
    version, old, new = trainer.step()
    aside = foreign.write_hf_delta(work / "aside", version, old, new)
    for file in aside.iterdir():
        (foreign.version_path(trainer.dir, 3) / file.name).write_bytes(file.read_bytes())
    assert_refusal(finish(rollout), 4, "wrong_run", "weight_v000003")


def test_a_delta_of_another_run_is_refused(work, rng):
    """Two trainers with one base write into one directory."""
    trainer = Trainer(work, rng)
    job, local = patching(work, trainer)
    version, old, new = trainer.step()
    foreign.write_hf_delta(trainer.dir, version, old, new)
    other = Trainer(work / "other", rng)
    other.history = [old]
    _, _, theirs = other.step()
    other.step()
    foreign.write_hf_delta(trainer.dir, 2, theirs, other.history[2])
    result = finish(job.start_rollout("--target-version", 2, "--timeout", "240s"))
    assert result.returncode != 0 and "mismatch" in result.stderr, result.stderr
    assert read_checkpoint(local) in (old, new)


def test_a_delta_without_its_index_is_not_taken(work, rng):
    trainer = Trainer(work, rng)
    job, local = patching(work, trainer)
    version, old, new = trainer.step()
    path = foreign.write_hf_delta(trainer.dir, version, old, new)
    index = (path / INDEX).read_bytes()
    (path / INDEX).unlink()
    result = finish(job.start_rollout("--target-version", 1, "--timeout", "3s"))
    assert result.returncode != 0 and read_checkpoint(local) == old, result.stderr
    (path / INDEX).write_bytes(index)
    assert ended(job.start_rollout("--target-version", 1, "--timeout", "240s"))["version"] == 1


def raw_safetensors(header, body):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def malformed_files(tensors):
    """Checkpoints of one file, each with a claim that a reader must not trust."""
    header, body = {}, b""
    for name, tensor in tensors.items():
        header[name] = entry(tensor.dtype, list(tensor.shape), len(body), len(body) + len(tensor.data))
        body += tensor.data
    first, second = list(tensors)[:2]
    one, two = header[first], header[second]

    def but(**entries):
        return raw_safetensors(header | entries, body)

    size = one["data_offsets"][1]
    yield "no bytes", b""
    yield "header of 2^63", struct.pack("<Q", 1 << 63) + b"{}"
    yield "header past the end", struct.pack("<Q", 1 << 20) + b"{}"
    yield "overlap", but(**{second: two | {"data_offsets": [0, two["data_offsets"][1]]}})
    yield "backwards", but(**{first: one | {"data_offsets": [size, 0]}})
    yield "past the end", but(**{first: one | {"data_offsets": [0, 1 << 62]}})
    yield "another dtype", but(**{first: one | {"dtype": "F16"}})
    yield "unknown dtype", but(**{first: one | {"dtype": "BF17"}})
    yield "shape of 2^70", but(**{first: one | {"shape": [1 << 35, 1 << 35]}})
    yield "negative shape", but(**{first: one | {"shape": [-1, size]}})
    yield "name twice", raw_safetensors(
        json.dumps(header)[:-1].encode() + b"," + json.dumps({first: one})[1:].encode(), body
    )
    yield "nested", raw_safetensors(b"[" * 100_000, body)
    yield "a hole", raw_safetensors(header, body + b"1234")


NAMES = [name for name, _ in malformed_files(dict.fromkeys("ab", foreign.Tensor("BF16", (2,), b"1234")))]


@pytest.mark.parametrize("layout", ["full", "trl anchor"])
@pytest.mark.parametrize("kind", NAMES)
def test_malformed_checkpoints_change_nothing(work, rng, kind, layout):
    trainer = Trainer(work, rng)
    job, local = patching(work, trainer)
    _, old, new = trainer.step()
    name = {"full": "weight_v000001/model.safetensors", "trl anchor": "anchors/step_000001.safetensors"}
    path = trainer.dir / name[layout]
    path.parent.mkdir(parents=True)
    path.write_bytes(dict(malformed_files(new))[kind])
    result = finish(job.start_rollout("--target-version", 1, "--timeout", "2s"))
    assert result.returncode in (4, 6, 8) and result.stderr.count("\n") <= 3, result.stderr
    assert read_checkpoint(local) == old


def link_directory(trainer, path):
    shutil.move(path, trainer.dir.parent / "elsewhere")
    path.symlink_to(trainer.dir.parent / "elsewhere")


def link_loop(trainer, path):
    shutil.rmtree(path)
    path.symlink_to(path)


def fifo(trainer, path):
    file = sorted(path.glob("*.safetensors"))[0]
    file.unlink()
    os.mkfifo(file)


def link_index(trainer, path):
    (path / INDEX).unlink()
    (path / INDEX).symlink_to("/dev/zero")


@pytest.mark.parametrize("damage", [link_directory, link_loop, fifo, link_index])
def test_links_and_pipes_are_not_followed(work, rng, damage):
    trainer = Trainer(work, rng)
    job, local = patching(work, trainer)
    version, old, new = trainer.step()
    path = foreign.write_hf_delta(trainer.dir, version, old, new)
    damage(trainer, path)
    began = time.monotonic()
    result = finish(job.start_rollout("--target-version", 1, "--timeout", "2s"))
    assert time.monotonic() - began < 60
    if damage is link_directory and result.returncode == 0:
        assert read_checkpoint(local) == new  # the place of a directory is its owner's choice
    else:
        assert result.returncode != 0 and read_checkpoint(local) == old, result.stderr


def test_a_delta_of_trl_under_another_number_is_refused(work, rng):
    trainer = Trainer(work, rng)
    job = following(work, trainer)
    for _ in range(2):
        version, old, new = trainer.step()
        path = foreign.write_trl_delta(trainer.dir, version, old, new)
    shutil.copy(path, trainer.dir / "deltas/step_000001.safetensors")
    result = finish(follow(job, trainer, 1, work / "a"))
    assert result.returncode == 4 and "model_version" in result.stderr, result.stderr
    wait_for(lambda: not (work / "a").exists(), "nothing was saved", 1)


def test_a_delta_of_trl_that_has_a_tensor_whole_and_by_positions_is_refused(work, rng):
    trainer = Trainer(work, rng)
    job = following(work, trainer)
    version, _, new = trainer.step()
    norm = new["norm.weight"]
    at = Tensor("I32", norm.shape, np.arange(norm.shape[0], dtype="<i4")[::-1].tobytes())
    path = trainer.dir / f"deltas/step_{version:06d}.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(safetensors_bytes({"norm.weight": norm, "norm.weight.idx": at}, {}))
    result = finish(follow(job, trainer, version, work / "a"))
    assert result.returncode == 4, result.stderr
    assert "waiting for an anchor" in result.stderr  # it first waits for an anchor that replaces it
    assert "'norm.weight.idx' is there twice" in result.stderr.splitlines()[-1]
    assert not (work / "a").exists()

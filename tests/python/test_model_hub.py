# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in a model hub's cache: read through their links, never written to."""

import shutil

import pytest

import jobs
from jobs import Files, ended, finish, make_run
from model_hub import add_to_cache
from support import assert_refusal, files_of, ok, ok_json, publish, read_checkpoint, run


@pytest.fixture(autouse=True)
def no_processes_left():
    yield
    jobs.stop_started()


@pytest.fixture
def cached(pair):
    """The pair's checkpoints as two models of a cache."""
    cache = pair.work / "cache"
    old = add_to_cache(cache, "org/old", pair.old_path)
    return cache, old, add_to_cache(cache, "org/new", pair.new_path, under="sub/folder")


def test_links_of_a_snapshot_to_its_blobs_are_followed_by_readers(pair, cached):
    _, old, new = cached
    publish(pair.published, old, new)
    target = pair.checkpoint()
    ok("apply", pair.published, "--to", target)
    assert read_checkpoint(target) == pair.new
    assert ok_json("verify", new, "--like", target)["identical"]
    ok("verify", new, "--manifest", pair.published / "weight_v000001")
    rows = ok_json("inspect", old)["rows"]
    assert {row["file"] for row in rows} == {p.name for p in old.glob("*.safetensors")}
    (pair.work / "current").symlink_to(old)
    assert ok_json("inspect", pair.work / "current")["kind"] == "checkpoint"


def elsewhere(cache, old):
    (cache / "weights").write_bytes(b"")
    return cache / "weights"


def another_repository(cache, old):
    return next((cache / "models--org--new/blobs").iterdir())


def beside_the_blobs(cache, old):
    return cache / "models--org--old/refs/main"


def deeper_than_the_blobs(cache, old):
    deep = cache / "models--org--old/blobs/deep"
    deep.mkdir()
    shutil.copy(old.resolve() / "config.json", deep / "file")
    return deep / "file"


def blobs_that_are_a_link(cache, old):
    blobs = cache / "models--org--old/blobs"
    blobs.rename(cache / "moved")
    blobs.symlink_to(cache / "moved")
    return None


def another_name(cache, old):
    (cache / "models--org--old").rename(cache / "org--old")
    (cache / "models--org--old").symlink_to("org--old")
    return None


@pytest.mark.parametrize(
    "leads_to",
    [elsewhere, another_repository, beside_the_blobs, deeper_than_the_blobs, blobs_that_are_a_link,
     another_name],
)  # fmt: skip
def test_other_links_are_refused(pair, cached, leads_to):
    cache, old, _ = cached
    file = sorted(old.glob("*.safetensors"))[0]
    target = leads_to(cache, old)
    if target is not None:
        file.unlink()
        file.symlink_to(target)
    for line in (
        ["inspect", old],
        ["verify", old, "--like", old],
        ["diff", old, old, "--out", pair.published],
    ):
        assert_refusal(run(*line), 2, "symbolic link", "leads out of", "cp -rL")
    assert not pair.published.exists()


def test_a_link_to_something_else_than_a_file_is_refused(pair, cached):
    cache, old, _ = cached
    file = sorted(old.glob("*.safetensors"))[0]
    blob = file.resolve()
    blob.unlink()
    assert_refusal(run("inspect", old), 3, file.name)
    blob.mkdir()
    assert_refusal(run("inspect", old), 2, "not a regular file")


def test_nothing_is_written_into_a_snapshot(pair, cached):
    cache, old, _ = cached
    publish(pair.published, pair.old_path, pair.new_path)
    before = {p: (p.lstat(), p.read_bytes() if p.is_file() else None) for p in cache.rglob("*")}
    assert_refusal(
        run("apply", pair.published, "--to", old), 2, "symbolic links", f"cp -rL {old} DIR"
    )
    settings = {"receiver.target": "checkpoint", "receiver.checkpoint_dir": old}
    job = Files(pair.work, **settings)
    assert_refusal(finish(job.start_rollout("--timeout", "20s")), 2, f"cp -rL {old} DIR")
    after = {p: (p.lstat(), p.read_bytes() if p.is_file() else None) for p in cache.rglob("*")}
    assert {p: (s.st_mtime_ns, s.st_ino, data) for p, (s, data) in before.items()} == {
        p: (s.st_mtime_ns, s.st_ino, data) for p, (s, data) in after.items()
    }
    copy = pair.work / "copy"
    shutil.copytree(old, copy)  # cp -rL
    ok("apply", pair.published, "--to", copy)
    assert read_checkpoint(copy) == pair.new


def test_a_run_starts_from_a_snapshot_on_both_sides(work, rng):
    history = make_run(work / "run", rng, 3)
    base = work / "run/step_000000"
    snapshot = add_to_cache(work / "cache", "org/base", base)
    shutil.rmtree(base)
    base.symlink_to(snapshot)
    blobs = files_of(work / "cache/models--org--base/blobs")
    job = Files(work, **{"anchors.first": "false"})
    assert ended(job.start_trainer("--replay", work / "run"))["event"] == "summary"
    rollout = job.start_rollout("--base", snapshot, "--save", work / "save", "--timeout", "240s")
    assert ended(rollout)["version"] == 3
    assert read_checkpoint(work / "save/rollout_00") == history[3]
    job.set(**{"receiver.target": "checkpoint", "receiver.checkpoint_dir": work / "patched"})
    assert ended(job.start_rollout("--base", snapshot, "--timeout", "240s"))["version"] == 3
    assert read_checkpoint(work / "patched") == history[3]
    assert files_of(work / "cache/models--org--base/blobs") == blobs

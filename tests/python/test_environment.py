# SPDX-License-Identifier: Apache-2.0
"""An apply on a difficult machine: other processes, read-only and full disks, limits. No version is
half applied, and the same command finishes once the cause is gone."""

import contextlib
import fcntl
import os
import resource
import signal
import subprocess
import threading
import time

import pytest

from support import (
    COMMAND,
    assert_refusal,
    changed,
    copy_checkpoint,
    files_of,
    ok,
    ok_json,
    publish,
    random_tensor,
    read_checkpoint,
    run,
    state_version,
    weights_and_state,
    write_checkpoint,
)

NOBODY = 65534


@pytest.fixture
def published(pair):
    publish(pair.published, pair.old_path, pair.new_path)
    return pair


# --- several processes at once --------------------------------------------------------------------


@contextlib.contextmanager
def lock_held(checkpoint):
    """Holds flock on .weight_sync/lock, as other tools do."""
    directory = checkpoint / ".weight_sync"
    directory.mkdir(exist_ok=True)
    with open(directory / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def test_a_locked_checkpoint_is_refused_at_once(published):
    target = published.checkpoint()
    with lock_held(target):
        before = weights_and_state(target)
        result = run("apply", published.published, "--to", target, "--wait", "0")
        assert_refusal(result, 6, "busy", "lock")
        assert weights_and_state(target) == before
    ok("apply", published.published, "--to", target, "--wait", "0")
    assert read_checkpoint(target) == published.new


def test_the_wait_for_a_locked_checkpoint_ends(published):
    target = published.checkpoint()
    with lock_held(target):
        begin = time.monotonic()
        result = run("apply", published.published, "--to", target, "--wait", "0.5")
        assert 0.4 < time.monotonic() - begin < 60
        assert_refusal(result, 6)


def test_an_apply_waits_for_the_lock(published):
    target = published.checkpoint()
    with lock_held(target) as lock:
        timer = threading.Timer(0.5, fcntl.flock, (lock, fcntl.LOCK_UN))
        timer.start()
        begin = time.monotonic()
        ok("apply", published.published, "--to", target, "--wait", "60")
        assert time.monotonic() - begin >= 0.4
        timer.join()
    assert read_checkpoint(target) == published.new


def test_four_appliers_at_once(published):
    target = published.checkpoint()
    line = [COMMAND, "apply", published.published, "--to", target]
    processes = [subprocess.Popen(line, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [process.wait(300) for process in processes] == [0] * 4
    assert read_checkpoint(target) == published.new and state_version(target) == 1


def test_four_publishers_at_once(pair):
    """The first to come get the version numbers. A publisher that gets no number is refused."""
    line = [COMMAND, "diff", pair.old_path, pair.new_path, "--out", pair.published]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [subprocess.Popen(line, **quiet) for _ in range(4)]
    codes = [process.wait(300) for process in processes]
    assert codes.count(0) == 1 and set(codes) <= {0, 4, 6, 7}
    target = pair.checkpoint()
    ok("apply", pair.published, "--to", target)
    assert read_checkpoint(target) == pair.new and state_version(target) == 1


# --- permissions ----------------------------------------------------------------------------------


@pytest.fixture
def as_user(published):
    """Options that run the command as a user other than root; none if the tests do not run as
    root."""
    if os.geteuid() != 0:
        return {}
    os.chmod(published.work, 0o755)
    options = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/"}
    try:
        subprocess.run([COMMAND, "--version"], check=True, capture_output=True, **options)
    except (OSError, subprocess.SubprocessError) as problem:
        pytest.skip(f"the command cannot be run as another user than root: {problem}")
    return options


def give(path, owner):
    for at in (path, *path.rglob("*")):
        os.chown(at, owner, owner)


def test_a_checkpoint_whose_files_are_read_only(published, as_user):
    target = published.checkpoint()
    if as_user:
        give(target, NOBODY)
    for file in target.glob("*.safetensors"):
        file.chmod(0o444)
    before = weights_and_state(target)
    result = run("apply", published.published, "--to", target, **as_user)
    assert_refusal(result, 5, "io", "Permission denied")
    assert weights_and_state(target) == before


def test_a_checkpoint_directory_that_is_read_only(published, as_user):
    target = published.checkpoint()
    target.chmod(0o555)
    before = weights_and_state(target)
    result = run("apply", published.published, "--to", target, **as_user)
    target.chmod(0o755)
    assert_refusal(result, 5, "io", "Permission denied")
    assert weights_and_state(target) == before


def test_versions_are_read_from_a_read_only_directory(published, as_user):
    target = published.checkpoint()
    if as_user:
        give(target, NOBODY)
    for path in (published.published, *published.published.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    ok("apply", published.published, "--to", target, **as_user)
    ok("inspect", published.published, **as_user)
    for path in (published.published, *published.published.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert read_checkpoint(target) == published.new


def test_publishing_into_a_read_only_directory(published, as_user):
    published.published.chmod(0o555)
    before = files_of(published.published)
    arguments = ("diff", published.new_path, published.old_path, "--out", published.published)
    result = run(*arguments, **as_user)
    published.published.chmod(0o755)
    assert_refusal(result, 5, "io", "Permission denied")
    assert files_of(published.published) == before


# --- full disks -----------------------------------------------------------------------------------


@pytest.fixture
def small_disk(work):
    """A file system of 4 MB."""
    path = work / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except OSError as problem:
        pytest.skip(f"no mount command: {problem}")
    if done.returncode != 0:
        pytest.skip(f"mounting a small file system is not permitted: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def fill(path, leave_bytes=0):
    """Fills the file system except for `leave_bytes`."""
    free = os.statvfs(path).f_bavail * os.statvfs(path).f_bsize
    (path / "ballast").write_bytes(bytes(max(0, free - leave_bytes)))


@pytest.mark.parametrize("layout,encoding", [("hf_delta", "xor"), ("flush", "deltas_zstd")])
def test_apply_on_a_full_disk(pair, small_disk, layout, encoding):
    publish(pair.published, pair.old_path, pair.new_path, layout, encoding)
    target = copy_checkpoint(pair.old_path, small_disk / "checkpoint")
    before = weights_and_state(target)
    fill(small_disk)
    result = run("apply", pair.published, "--to", target)
    assert_refusal(result, 5, "no_space", "No space left")
    assert weights_and_state(target) == before
    (small_disk / "ballast").unlink()
    ok("apply", pair.published, "--to", target)
    assert read_checkpoint(target) == pair.new


@pytest.mark.parametrize("layout,encoding", [("hf_delta", "xor"), ("flush", "deltas_zstd")])
@pytest.mark.parametrize("leave_bytes", (0, 8192, 16384))
def test_publish_on_a_full_disk(pair, small_disk, layout, encoding, leave_bytes):
    out = small_disk / "published"
    out.mkdir()
    fill(small_disk, leave_bytes)
    line = ("diff", pair.old_path, pair.new_path, "--out", out, "--layout", layout)
    result = run(*line, "--encoding", encoding)
    if result.returncode == 0:  # there was enough room: then the version is complete
        assert leave_bytes > 0
    else:
        assert_refusal(result, 5, "no_space", "No space left")
        assert not list(out.glob("*weight_v*"))
        (small_disk / "ballast").unlink()
        ok(*line, "--encoding", encoding)
    target = pair.checkpoint()
    ok("apply", out, "--to", target)
    assert read_checkpoint(target) == pair.new


def limited(size_bytes):
    """For preexec_fn: limits the size of files; a larger write fails instead of killing the
    process."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))

    return limit


@pytest.mark.parametrize("limit", (0, 100, 300))
def test_the_journal_cannot_be_written(published, limit):
    target = published.checkpoint()
    before = weights_and_state(target)
    line = ("apply", published.published, "--to", target)
    result = run(*line, preexec_fn=limited(limit))
    assert_refusal(result, 5, "io", "journal")
    assert weights_and_state(target) == before
    ok(*line)
    assert read_checkpoint(target) == published.new


def test_the_weights_cannot_be_written(work, rng):
    """The journal fits under the limit, the end of the checkpoint does not: the version is decided,
    and the same command finishes it."""
    old = {f"t{i}": random_tensor(rng, "BF16", (512, 512)) for i in range(4)}
    new = {name: changed(rng, tensor, 0.005) for name, tensor in old.items()}
    target = write_checkpoint(work / "old", old)
    write_checkpoint(work / "new", new)
    publish(work / "out", target, work / "new")
    line = ("apply", work / "out", "--to", target)
    result = run(*line, preexec_fn=limited(1 << 20))
    assert_refusal(result, 5, "io", "repeat the command")
    assert state_version(target) == 0 and (target / ".weight_sync/journal").exists()
    assert_refusal(run("verify", target, "--like", work / "new"), 6, "apply")
    assert_refusal(run("diff", target, work / "new", "--out", work / "out2"), 6, "apply")
    report = ok_json(*line)
    assert report["recovered"] and report["version"] == 1
    assert read_checkpoint(target) == new
    assert not (target / ".weight_sync/journal").exists()


def test_the_rests_of_a_killed_apply_are_removed(published):
    """An incomplete journal, and the content of a compressed flush file."""
    target = published.checkpoint()
    sync = target / ".weight_sync"
    sync.mkdir()
    (sync / "journal.tmp").write_bytes(b"DRIFTLSJ half of it")
    (sync / (".driftless-spool-" + "0123456789abcdef" * 2)).write_bytes(bytes(1000))
    ok("apply", published.published, "--to", target)
    assert read_checkpoint(target) == published.new
    assert sorted(path.name for path in sync.iterdir()) == ["lock", "state.json"]


def test_a_damaged_journal(work, rng):
    """The weights are unknown then. The command reports that, and writes nothing more."""
    old = {f"t{i}": random_tensor(rng, "BF16", (512, 512)) for i in range(4)}
    new = {name: changed(rng, tensor, 0.005) for name, tensor in old.items()}
    target = write_checkpoint(work / "old", old)
    write_checkpoint(work / "new", new)
    publish(work / "out", target, work / "new")
    line = ("apply", work / "out", "--to", target)
    assert run(*line, preexec_fn=limited(1 << 20)).returncode == 5
    journal = target / ".weight_sync/journal"
    whole = journal.read_bytes()
    for place in (0, 10, 200, len(whole) // 2, len(whole) - 60, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[place] ^= 4
        journal.write_bytes(damaged)
        before = files_of(target)
        assert_refusal(run(*line), 4, "journal")
        assert files_of(target) == before, f"flipped at {place}"
    for size in (0, 7, 8, 60, len(whole) // 2, len(whole) - 1):
        journal.write_bytes(whole[:size])
        before = files_of(target)
        assert_refusal(run(*line), 4, "journal")
        assert files_of(target) == before, f"cut to {size}"
    journal.write_bytes(whole)
    ok(*line)
    assert read_checkpoint(target) == new

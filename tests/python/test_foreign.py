# SPDX-License-Identifier: Apache-2.0
"""Directories that slime and miles write, followed by our rollouts and agents; and our directories,
pulled as their engines do. foreign.py imitates both, written only from the formats'
descriptions."""

import json
import os
import shutil
import signal
import time
import uuid

import pytest

import binding
import foreign
import jobs
from foreign_jobs import STEPS, Trainer, follow, following, patching
from jobs import Files, ended, finish, make_run, wait_for
from support import (
    INDEX,
    Tensor,
    assert_refusal,
    changed,
    copy_checkpoint,
    parse_safetensors,
    read_checkpoint,
    run,
    safetensors_bytes,
    write_checkpoint,
)

driftless = binding.driftless()


@pytest.fixture(autouse=True)
def no_processes_left():
    yield
    jobs.stop_started()


WRITERS = {
    "xor": lambda d, v, old, new: foreign.write_hf_delta(d, v, old, new, "xor", shards=2),
    "overwrite": lambda d, v, old, new: foreign.write_hf_delta(d, v, old, new, "overwrite"),
    "adler32": lambda d, v, old, new: foreign.write_hf_delta(d, v, old, new, checksum="adler32"),
    "full": lambda d, v, old, new: foreign.write_full(d, v, new),
    "full without index": lambda d, v, old, new: foreign.write_full_without_index(d, v, new),
    "one file": lambda d, v, old, new: foreign.write_full_without_index(d, v, new, shards=1),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_rollout_follows_ten_versions(work, rng, writer):
    trainer = Trainer(work, rng)
    job = following(work, trainer)
    rollout = follow(job, trainer, STEPS, work / "a")
    for number in range(STEPS):
        version, old, new = trainer.step(same=number == 4)
        WRITERS[writer](trainer.dir, version, old, new)
    assert ended(rollout)["version"] == STEPS
    assert read_checkpoint(work / "a/rollout_00") == trainer.history[STEPS]
    assert not [p for p in trainer.dir.iterdir() if not p.name.startswith("weight_v")], "read only"
    # A rollout that starts late, with all versions visible.
    assert ended(follow(job, trainer, STEPS, work / "b"))["commits"] >= 1
    assert read_checkpoint(work / "b/rollout_00") == trainer.history[STEPS]


@pytest.mark.parametrize("encoding", ["indices", "deltas", "deltas_zstd"])
def test_flush_files_are_taken_once_the_next_version_is_there(work, rng, encoding):
    trainer = Trainer(work, rng)
    job = following(work, trainer)
    for number in range(STEPS):
        version, old, new = trainer.step()
        foreign.write_flush(trainer.dir, version, old, new, encoding, 2, mixed=number % 2 == 0)
    assert ended(follow(job, trainer, STEPS - 1, work / "a"))["version"] == STEPS - 1
    assert read_checkpoint(work / "a/rollout_00") == trainer.history[STEPS - 1]
    last = follow(job, trainer, STEPS, work / "b")
    with pytest.raises(AssertionError, match="did not end"):
        finish(last, 2)
    (foreign.version_path(trainer.dir, STEPS) / "DONE").touch()
    assert ended(follow(job, trainer, STEPS, work / "b"))["version"] == STEPS
    assert read_checkpoint(work / "b/rollout_00") == trainer.history[STEPS]


def test_versions_that_appear_file_by_file_are_waited_for(work, rng):
    trainer = Trainer(work, rng)
    job = following(work, trainer)
    version, old, new = trainer.step()
    whole = foreign.write_hf_delta(work / "aside", version, old, new, shards=2)
    rollout = follow(job, trainer, 1, work / "a")
    path = foreign.version_path(trainer.dir, 1)
    path.mkdir(parents=True)
    for name in (*sorted(p.name for p in whole.glob("*.safetensors")), INDEX):
        with pytest.raises(AssertionError, match="waited"):
            wait_for(lambda: rollout.poll() is not None, "nothing", 0.3)
        data = (whole / name).read_bytes()
        (path / f"{name}.tmp").write_bytes(data)
        (path / name).write_bytes(data[: len(data) // 2])  # visible half-written
        os.replace(path / f"{name}.tmp", path / name)
    assert ended(rollout)["version"] == 1
    assert read_checkpoint(work / "a/rollout_00") == new


def test_a_patched_checkpoint_is_continued(work, rng):
    trainer = Trainer(work, rng)
    job, local = patching(work, trainer)
    for until in (3, 7, STEPS):
        while len(trainer.history) <= until:
            version, old, new = trainer.step()
            foreign.write_hf_delta(trainer.dir, version, old, new)
        line = ["--target-version", until, "--timeout", "240s"]
        assert ended(job.start_rollout(*line))["version"] == until
        assert read_checkpoint(local) == trainer.history[until]


def test_a_full_version_bridges_what_was_removed(work, rng):
    trainer = Trainer(work, rng)
    job = following(work, trainer)
    for _ in range(STEPS):
        version, old, new = trainer.step()
        write = foreign.write_full if version == 6 else foreign.write_hf_delta
        arguments = (new,) if version == 6 else (old, new)
        write(trainer.dir, version, *arguments)
    for gone in range(1, 6):
        shutil.rmtree(foreign.version_path(trainer.dir, gone))
    assert ended(follow(job, trainer, STEPS, work / "a"))["version"] == STEPS
    assert read_checkpoint(work / "a/rollout_00") == trainer.history[STEPS]
    shutil.rmtree(foreign.version_path(trainer.dir, 6))
    result = finish(follow(job, trainer, STEPS, work / "b"))
    assert result.returncode == 4 and "wrong_base" in result.stderr, result.stderr
    assert "version 1 is not there, and no full version is" in result.stderr


def test_a_trainer_that_begins_anew_is_noticed(work, rng):
    """The directory is emptied and numbers start again: another run, without any mark of it."""
    trainer = Trainer(work, rng)
    job = following(work, trainer)
    rollout = follow(job, trainer, STEPS, work / "a", "--verbose")
    for _ in range(3):
        version, old, new = trainer.step()
        foreign.write_hf_delta(trainer.dir, version, old, new)
    lines = iter(rollout.stdout.readline, "")
    assert any(json.loads(line)["version"] == 3 for line in lines)
    # a backup of a file is no other run
    for file in foreign.version_path(trainer.dir, 3).iterdir():
        os.link(file, work / file.name)
    with pytest.raises(AssertionError, match="waited"):
        wait_for(lambda: rollout.poll() is not None, "nothing", 0.3)
    shutil.rmtree(trainer.dir)
    trainer.history = trainer.history[:1]
    version, old, new = trainer.step()
    foreign.write_hf_delta(trainer.dir, version, old, new)
    assert_refusal(finish(rollout), 4, "wrong_run", "begun anew", str(trainer.base))
    # A restarted rollout follows the new run; a checkpoint of the old one is refused.
    assert ended(follow(job, trainer, 1, work / "b"))["version"] == 1
    assert read_checkpoint(work / "b/rollout_00") == new


def write_other_flush(directory, version, old, new):
    """Written by another rank: all file names differ."""
    path = foreign.write_flush(directory, version, old, new)
    for file in sorted(path.iterdir()):
        file.rename(path / file.name.replace("rank0000", "rank0001"))


@pytest.mark.parametrize(
    "first, second",
    [
        (foreign.write_hf_delta, foreign.write_flush),
        (foreign.write_flush, write_other_flush),
        (foreign.write_hf_delta, foreign.write_trl_delta),
    ],
    ids=["flush for hf_delta", "other ranks", "steps for hf_delta"],
)
def test_a_trainer_that_begins_anew_under_other_names_is_noticed(work, rng, first, second):
    """None of its files has the path of a file of the followed run."""
    trainer = Trainer(work, rng)
    rollout = follow(following(work, trainer), trainer, 6, work / "a", "--verbose")
    for _ in range(4):
        first(trainer.dir, *trainer.step())
    lines = iter(rollout.stdout.readline, "")
    assert any(json.loads(line)["version"] == 3 for line in lines)
    shutil.rmtree(trainer.dir)
    trainer.history = trainer.history[:1]
    for _ in range(7):
        second(trainer.dir, *trainer.step())
    assert finish(rollout).returncode != 0
    assert not (work / "a/rollout_00").exists()


@pytest.mark.parametrize("write", [foreign.write_flush, foreign.write_trl_delta, foreign.write_hf_delta])
def test_a_delta_after_a_missing_version_is_not_taken(work, rng, write):
    """It cannot be known whether it builds on the followed run: the trainer may have started anew,
    and removed its first versions since."""
    trainer = Trainer(work, rng)
    for _ in range(4):
        write(trainer.dir, *trainer.step())
    text = f"road: {{ kind: shared_fs, shared_fs: {{ dir: {trainer.dir}, foreign_base: {trainer.base} }} }}\n"
    config = driftless.Config.parse(text + "deadlines: { fetch: 15s }\n")
    with driftless.Job(config, "rollout", launched=False) as job:
        target = driftless.OwnedTarget(trainer.base)
        receiver = driftless.Receiver(job, target)
        while receiver.version < 3:
            assert receiver.stage(60)
            receiver.commit()
        at = receiver.version
        shutil.rmtree(trainer.dir)
        held, trainer.history = trainer.history[at], trainer.history[:1]
        for _ in range(at + 3):
            write(trainer.dir, *trainer.step())
        for version in range(1, at + 1):
            gone = foreign.version_path(trainer.dir, version)
            shutil.rmtree(gone, ignore_errors=True)
            (trainer.dir / f"deltas/step_{version:06d}.safetensors").unlink(missing_ok=True)
        with pytest.raises(driftless.errors.WrongBaseError, match="it is unknown whether"):
            receiver.stage(60)
        assert receiver.version == at
        assert all(target.tensor(name).tobytes() == each.data for name, each in held.items())


def test_a_file_that_joins_a_version_after_it_was_taken_is_noticed(work, rng):
    """Two ranks; one rank's file becomes visible after the next version."""
    trainer = Trainer(work, rng)
    rollout = follow(following(work, trainer), trainer, 4, work / "a", "--verbose")
    for number in range(1, 4):
        path = foreign.write_flush(trainer.dir, *trainer.step(), "deltas", 2)
        if number == 2:
            late = path / "rank0001_flush000000.safetensors"
            data = late.read_bytes()
            late.unlink()
    lines = iter(rollout.stdout.readline, "")
    assert any(json.loads(line)["version"] == 2 for line in lines)
    late.write_bytes(data)
    for _ in range(2):
        foreign.write_flush(trainer.dir, *trainer.step(), "deltas", 2)
    assert_refusal(finish(rollout), 4, "wrong_run", "weight_v000002")


def test_a_version_without_a_file_is_named_once_the_next_one_is_there(work, rng):
    """It cannot be known whether it changes nothing, or its files are lost."""
    trainer = Trainer(work, rng)
    for number in range(1, 5):
        path = foreign.write_flush(trainer.dir, *trainer.step())
        for file in path.iterdir() if number == 2 else ():
            file.unlink()
    rollout = follow(following(work, trainer), trainer, 3, work / "a", "--verbose")
    result = finish(rollout)
    assert result.returncode == 4 and "the next version is there already" in result.stderr


@pytest.mark.parametrize("same", [True, False])
def test_an_anchor_of_the_step_that_was_followed_is_compared(work, rng, same):
    """A resumed TRL trainer starts with an anchor, for a step that was followed as a delta."""
    trainer = Trainer(work, rng)
    rollout = follow(following(work, trainer), trainer, 6, work / "a", "--verbose")
    for write in (foreign.write_trl_anchor, *[foreign.write_trl_delta] * 3):
        version, old, new = trainer.step()
        write(trainer.dir, version, *([new] if write is foreign.write_trl_anchor else [old, new]))
    lines = iter(rollout.stdout.readline, "")
    assert any(json.loads(line)["version"] == 4 for line in lines)
    if not same:
        trainer.history = trainer.history[:4]
        trainer.step()
    foreign.write_trl_anchor(trainer.dir, 4, trainer.history[4])
    for _ in range(2):
        foreign.write_trl_delta(trainer.dir, *trainer.step())
    if same:
        assert ended(rollout)["version"] == 6
        assert read_checkpoint(work / "a/rollout_00") == trainer.history[6]
    else:
        assert_refusal(finish(rollout), 4, "wrong_run", "went back to an earlier step")


@pytest.mark.parametrize("write", [foreign.write_flush, foreign.write_hf_delta])
def test_apply_identifies_a_version_without_a_manifest_by_its_files(work, rng, write):
    """The number alone may belong to another run: of the same trainer, started anew, or of ours."""
    trainer = Trainer(work, rng)
    for _ in range(3):
        write(trainer.dir, *trainer.step())
    local = copy_checkpoint(trainer.base, work / "copy")
    run("apply", trainer.dir, "--to", local, "--to-version", 2).check_returncode()
    run("apply", trainer.dir, "--to", local).check_returncode()
    assert read_checkpoint(local) == trainer.history[3]
    held = trainer.history[3]
    shutil.rmtree(trainer.dir)
    trainer.history = trainer.history[:1]
    for _ in range(5):
        write(trainer.dir, *trainer.step())
    for text in ("begun anew", "begun anew", "the version itself is gone"):
        if text != "begun anew":
            shutil.rmtree(foreign.version_path(trainer.dir, 3))
        assert_refusal(run("apply", trainer.dir, "--to", local), 4, "wrong_base", text)
        assert read_checkpoint(local) == held


@pytest.mark.parametrize("anew", [False, True])
def test_apply_proves_a_checkpoint_that_another_tool_patched(work, rng, anew):
    """The tool keeps only the number. The versions so far have a checksum of every tensor that they
    changed; those of the next version are of other tensors."""
    trainer = Trainer(work, rng)
    for _ in range(3):
        foreign.write_hf_delta(trainer.dir, *trainer.step())
    local = write_checkpoint(work / "copy", trainer.history[3])
    (local / ".weight_sync").mkdir()
    (local / ".weight_sync/state.json").write_text('{"version": "000003"}')
    held = trainer.history[3]
    if anew:
        shutil.rmtree(trainer.dir)
        trainer.history = trainer.history[:1]
        for _ in range(3):
            foreign.write_hf_delta(trainer.dir, *trainer.step())
    version, old, new = trainer.step()
    name = min(n for n in new if new[n].data != old[n].data)
    trainer.history[version] = old | {name: new[name]}  # one tensor changes
    foreign.write_hf_delta(trainer.dir, version, old, trainer.history[version])
    result = run("apply", trainer.dir, "--to", local)
    if anew:
        assert_refusal(result, 4, "mismatch", "the state says version 3")
        assert read_checkpoint(local) == held
    else:
        assert result.returncode == 0, result.stderr
        assert read_checkpoint(local) == trainer.history[version]


def test_apply_refuses_versions_without_a_manifest_on_a_run_of_ours(work, rng):
    trainer = Trainer(work, rng)
    _, _, new = trainer.step()
    after = write_checkpoint(work / "after", new)
    run("diff", trainer.base, after, "--out", work / "ours").check_returncode()
    local = copy_checkpoint(trainer.base, work / "copy")
    run("apply", work / "ours", "--to", local).check_returncode()
    trainer.history = trainer.history[:1]
    for _ in range(2):
        foreign.write_flush(trainer.dir, *trainer.step())
    assert_refusal(run("apply", trainer.dir, "--to", local), 4, "wrong_run", "has no manifest")
    assert read_checkpoint(local) == new


def test_a_checkpoint_of_an_older_run_is_refused(work, rng):
    trainer = Trainer(work, rng)
    job, local = patching(work, trainer)
    version, old, new = trainer.step()
    foreign.write_hf_delta(trainer.dir, version, old, new)
    line = ["--target-version", 1, "--timeout", "240s"]
    assert ended(job.start_rollout(*line))["version"] == 1
    shutil.rmtree(trainer.dir)
    trainer.history = trainer.history[:1]
    for _ in range(2):
        version, old, new = trainer.step()
        foreign.write_hf_delta(trainer.dir, version, old, new)
    before = read_checkpoint(local)
    result = finish(job.start_rollout("--target-version", 2, "--timeout", "240s"))
    assert result.returncode != 0 and "wrong_base" in result.stderr, result.stderr
    assert read_checkpoint(local) == before


@pytest.mark.parametrize("layout", ["hf_delta", "trl"])
@pytest.mark.parametrize("there", [2, 3, 6])
def test_a_checkpoint_at_the_same_number_of_an_older_run_is_refused(work, rng, layout, there):
    """Both runs start from one base, so only the digest distinguishes their versions 3. The new run
    has `there` versions."""
    trainer = Trainer(work, rng)
    job, local = patching(work, trainer)
    write = foreign.write_hf_delta if layout == "hf_delta" else foreign.write_trl_delta
    line = ["--target-version", 3, "--timeout", "240s"]
    for _ in range(3):
        write(trainer.dir, *trainer.step())
    assert ended(job.start_rollout(*line))["version"] == 3
    before = read_checkpoint(local)
    assert ended(job.start_rollout(*line))["version"] == 3  # it holds that version, and continues
    shutil.rmtree(trainer.dir)
    trainer.history = trainer.history[:1]
    for _ in range(there):
        write(trainer.dir, *trainer.step())
    result = finish(job.start_rollout(*line))
    assert_refusal(result, 4, "wrong_base", "an earlier run's", str(trainer.base))
    assert read_checkpoint(local) == before
    shutil.rmtree(local)
    copy_checkpoint(trainer.base, local)
    assert ended(job.start_rollout("--target-version", there, "--timeout", "240s"))["version"] == there
    assert read_checkpoint(local) == trainer.history[there]


def test_an_agents_checkpoint_of_an_older_run_is_refused(work, rng):
    trainer = Trainer(work, rng)
    local = copy_checkpoint(trainer.base, work / "local")
    settings = {"agent.hand_over": "checkpoint", "agent.checkpoint_dir": local}
    job = following(work, trainer, **settings)
    agent = [jobs.COMMAND, "agent", "--config", job.config, "--once", *job.settings]
    for _ in range(3):
        foreign.write_hf_delta(trainer.dir, *trainer.step())
    result = finish(jobs.start(list(map(str, agent))))
    assert result.returncode == 0, result.stderr
    before = read_checkpoint(local)
    assert before == trainer.history[3]
    shutil.rmtree(trainer.dir)
    trainer.history = trainer.history[:1]
    for _ in range(3):
        foreign.write_hf_delta(trainer.dir, *trainer.step())
    result = finish(jobs.start(list(map(str, agent))))
    assert_refusal(result, 4, "wrong_base", "an earlier run's", str(trainer.base))
    assert read_checkpoint(local) == before


def test_another_base_is_named_by_its_tensor(work, rng):
    trainer = Trainer(work, rng)
    job = following(work, trainer)
    version, old, new = trainer.step()
    wrong = {name: changed(rng, tensor) for name, tensor in old.items()}
    foreign.write_hf_delta(trainer.dir, version, wrong, {n: changed(rng, t) for n, t in wrong.items()})
    result = finish(follow(job, trainer, 1, work / "a"))
    assert result.returncode != 0 and "mismatch" in result.stderr, result.stderr
    assert "does not hold version 0, or the delta is damaged" in result.stderr
    assert not (work / "a").exists()


def truncate(path):
    shard = sorted(path.glob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-7])


def unknown_tensor(path):
    index = json.loads((path / INDEX).read_text())
    file = next(iter(index["weight_map"].values()))
    index["weight_map"]["no.such.tensor"] = file
    (path / INDEX).write_text(json.dumps(index))


def outside(path):
    shard = sorted(path.glob("*.safetensors"))[0]
    shutil.move(shard, path.parent.parent / "elsewhere.safetensors")
    shard.symlink_to(path.parent.parent / "elsewhere.safetensors")


def another_number(path):
    index = json.loads((path / INDEX).read_text())
    index["metadata"]["version"] = "000009"
    (path / INDEX).write_text(json.dumps(index))


def twice(path):
    shard = sorted(path.glob("*.safetensors"))[0]
    shutil.copy(shard, path / "model-00009-of-00002.safetensors")


def nonsense(path):
    (path / INDEX).write_text("{" * 100_000)


HOSTILE = [truncate, unknown_tensor, outside, another_number, twice, nonsense]


@pytest.mark.parametrize("damage", HOSTILE, ids=lambda damage: damage.__name__)
def test_damaged_and_malicious_versions_change_nothing(work, rng, damage):
    trainer = Trainer(work, rng)
    job, local = patching(work, trainer)
    version, old, new = trainer.step()
    damage(foreign.write_hf_delta(trainer.dir, version, old, new, shards=2))
    result = finish(job.start_rollout("--target-version", 1, "--timeout", "14s"))
    assert result.returncode != 0 and result.stderr.count("\n") <= 3, result.stderr
    assert read_checkpoint(local) == old
    # After a repair the next version is taken.
    shutil.rmtree(foreign.version_path(trainer.dir, 1))
    foreign.write_hf_delta(trainer.dir, version, old, new)
    assert ended(job.start_rollout("--target-version", 1, "--timeout", "240s"))["version"] == 1
    assert read_checkpoint(local) == new


def test_a_version_of_ours_among_theirs_is_refused(work, rng):
    trainer = Trainer(work, rng)
    write_checkpoint(work / "new", trainer.step()[2])
    run("diff", trainer.base, work / "new", "--out", trainer.dir, "--layout", "hf_delta")
    job = following(work, trainer)
    result = finish(follow(job, trainer, 1, work / "a"))
    assert result.returncode != 0 and "road.shared_fs.foreign_base" in result.stderr, result.stderr


def test_a_trainer_does_not_publish_into_a_foreign_directory(work, rng):
    trainer = Trainer(work, rng)
    make_run(work / "run", rng, 1)
    result = finish(following(work, trainer).start_trainer("--replay", work / "run"))
    assert_refusal(result, 2, "road.shared_fs.foreign_base", "a trainer has no place there")
    (work / "c.yaml").write_text("road: { kind: mpi_rma, shared_fs: { foreign_base: /x } }\n")
    assert_refusal(run("config", "check", work / "c.yaml"), 2, "road.shared_fs.foreign_base", "shared_fs")


def test_an_agent_patches_a_checkpoint_from_their_directory(work, rng):
    trainer = Trainer(work, rng)
    local = copy_checkpoint(trainer.base, work / "local")
    hand_over = {"agent.hand_over": "checkpoint", "agent.checkpoint_dir": local}
    job = following(work, trainer, **hand_over)
    line = ["agent", "--config", job.config, "--threads", 1, *job.settings, "--json"]
    agent = jobs.start([jobs.COMMAND, *map(str, line)])
    for _ in range(5):
        version, old, new = trainer.step()
        foreign.write_hf_delta(trainer.dir, version, old, new)
    wait_for(lambda: jobs.support.state_version(local) == 5, "version 5")
    assert read_checkpoint(local) == trainer.history[5]
    agent.send_signal(signal.SIGTERM)
    finish(agent)


def test_workers_follow_their_directory_through_an_agent(work, rng):
    """One copy of the weights per host; the workers read frames from shared memory."""
    trainer = Trainer(work, rng)
    name = f"test-{uuid.uuid4().hex[:12]}"
    job = following(work, trainer, **{"road.host_shm.name": name, "agent.workers": 2})
    settings = job.settings
    line = ["agent", "--config", job.config, "--threads", 1, *settings, "--json"]
    agent = jobs.start([jobs.COMMAND, *map(str, line)])
    workers = []
    for number in range(2):
        more = {"road.kind": "host_shm", "road.layout": "auto", "encoding": "auto"}
        more |= {"road.shared_fs.foreign_base": "", "receiver.id": f"worker{number}"}
        job.settings = [*settings]
        job.set(**more)
        workers.append(follow(job, trainer, STEPS, work / f"w{number}"))
    for _ in range(STEPS):
        version, old, new = trainer.step()
        WRITERS["xor" if version % 2 else "full"](trainer.dir, version, old, new)
    for number, worker in enumerate(workers):
        assert ended(worker)["version"] == STEPS
        assert read_checkpoint(work / f"w{number}/rollout_00") == trainer.history[STEPS]
    agent.send_signal(signal.SIGTERM)
    finish(agent)


def test_a_value_that_never_was_bf16_is_refused(work, rng):
    """In a flush file of several dtypes, whose values torch has widened."""
    trainer = Trainer(work, rng)
    version, old, new = trainer.step()
    path = foreign.write_flush(trainer.dir, version, old, new, mixed=True)
    (path / "DONE").touch()
    file = path / "rank0000_flush000000.safetensors"
    tensors, metadata = parse_safetensors(file.read_bytes())
    values = bytearray(tensors["__values__"].data)
    values[1] ^= 1  # a widened BF16 value
    tensors["__values__"] = Tensor("F32", tensors["__values__"].shape, bytes(values))
    metadata["checksum"] = foreign.flush_checksum("F32", tensors["__positions__"].data, bytes(values))
    file.write_bytes(safetensors_bytes(tensors, metadata))
    local = copy_checkpoint(trainer.base, work / "local")
    refused = run("apply", trainer.dir, "--to", local)
    assert_refusal(refused, 4, "no BF16 that was widened")
    assert read_checkpoint(local) == old


# --- our directories, pulled by their tools -------------------------------------------------------

ASSETS = {"config.json": "{}", "tokenizer.json": "{}", "merges.txt": "a b\n"}


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("asked", [True, False], ids=["assets_dir", "no key"])
def test_their_hosts_follow_us_early_and_late(work, rng, encoding, asked):
    """Every third version is full, and has the other files that an engine's directory needs; older
    versions are removed; a late host takes the newest full version and the deltas after it."""
    history = make_run(work / "run", rng, STEPS)
    base = work / "run/step_000000"
    for name, text in ASSETS.items():
        (base / name).write_text(text)
    (base / "pytorch_model.bin").write_text("no weights of ours")
    settings = {"encoding": encoding, "anchors.every": 3, "keep_versions": 2, "anchors.first": "false"}
    for step in range(1, STEPS + 1):  # the replay's newer files
        (work / f"run/step_{step:06d}/config.json").write_text(ASSETS["config.json"])
    job = Files(work, "hf_delta", **settings, **({"road.assets_dir": base} if asked else {}))
    early = work / "early"
    for version in range(1, STEPS + 1):
        trainer = job.start_trainer("--replay", work / "run", "--steps", version)
        assert finish(trainer).returncode == 0
        assert foreign.is_delta(job.version_dir(version)) == (version % 3 != 0)
        assert foreign.pull(early, base, job.dir, version) == history[version]
        late = work / f"late{version}"
        assert foreign.pull(late, base, job.dir, version) == history[version]
        for directory in (early, late):
            assert read_checkpoint(directory) == history[version]
            assert {n: (directory / n).read_text() for n in ASSETS} == ASSETS
    assert not job.version_dir(1).exists() and job.version_dir(9).exists()
    assert not list(job.dir.glob("anchor_v*"))
    # Our own late rollout does the same.
    rollout = job.start_rollout("--save", work / "ours", "--timeout", "240s")
    assert ended(rollout)["version"] == STEPS
    assert read_checkpoint(work / "ours/rollout_00") == history[STEPS]


def test_a_whole_version_carries_no_file_that_a_link_leads_out_to(work, rng):
    """It reports each such link; missing files, and links to no file, delay nothing."""
    history = make_run(work / "run", rng, 1)
    (work / "secret").write_text("secret")
    for step in (0, 1):
        path = work / f"run/step_{step:06d}"
        (path / "notes.txt").symlink_to(work / "secret")
        (path / "gone.txt").symlink_to(work / "nothing")
        (path / "folder").mkdir()
        (path / "config.json").unlink()
        os.mkfifo(path / "config.json")
    job = Files(work, "hf_delta", mode="full")
    result = finish(job.start_trainer("--replay", work / "run"))
    assert result.returncode == 0, result.stderr
    names = {path.name for path in job.version_dir(1).iterdir()}
    assert not names & {"notes.txt", "gone.txt", "folder", "config.json"}
    notes = str(jobs.events(result)["version"][0]["notes"])
    assert "notes.txt: a symbolic link that leads out of" in notes and "gone.txt" in notes
    assert read_checkpoint(job.version_dir(1)) == history[1]


def test_a_command_runs_on_every_rank_before_the_version_is_visible(work, rng):
    jobs.need_mpirun()
    make_run(work / "run", rng, 2)
    seen = work / "seen"
    seen.mkdir()
    command = (
        f'ls "$DRIFTLESS_DIR" > "{seen}/$(basename "$DRIFTLESS_VERSION_DIR").$$"; '
        f'ls "$DRIFTLESS_VERSION_DIR" >> "{seen}/$(basename "$DRIFTLESS_VERSION_DIR").$$"'
    )
    job = Files(work, "hf_delta", **{"road.shared_fs.before_visible": command})
    result = job.run(trainer=["--replay", work / "run"], rollout=["--base", work / "run/step_000000"])
    assert result.returncode == 0, result.stderr
    for version in (1, 2):
        texts = [p.read_text() for p in seen.iterdir() if f"weight_v{version:06d}" in p.name]
        assert len(texts) == 2, "both trainer ranks"
        assert all(f"\nweight_v{version:06d}" not in f"\n{text}" for text in texts)
        assert all("-of-00002.safetensors" in text for text in texts)


def test_a_failing_command_keeps_the_version_hidden(work, rng):
    make_run(work / "run", rng, 1)
    job = Files(work, "hf_delta", **{"road.shared_fs.before_visible": "echo not today >&2; exit 3"})
    result = finish(job.start_trainer("--replay", work / "run"))
    assert result.returncode != 0 and "not today" in result.stderr, result.stderr
    assert not job.version_dir(1).exists()


def test_a_command_that_hangs_on_one_rank_keeps_the_version_hidden(work, rng):
    jobs.need_mpirun()
    history = make_run(work / "run", rng, 2)
    hang = f'[ "$OMPI_COMM_WORLD_RANK" != 1 ] || [ -e {work}/once ] || {{ touch {work}/once; sleep 600; }}'
    job = Files(work, "hf_delta", **{"road.shared_fs.before_visible": hang, "road.shared_fs.hook_timeout": "2s"})
    line = {"trainer": ["--replay", work / "run"], "rollout": ["--base", work / "run/step_000000"]}
    began = time.monotonic()
    result = job.run(**line)
    assert result.returncode != 0 and "before_visible" in result.stderr, result.stderr
    assert time.monotonic() - began < 200
    assert not job.version_dir(1).exists()
    assert not list(job.dir.glob(".weight_v*")), "no file of it remains"
    result = job.run(**line)
    assert result.returncode == 0, result.stderr
    assert read_checkpoint(job.save / "rollout_00") == history[2]

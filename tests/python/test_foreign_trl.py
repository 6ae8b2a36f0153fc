# SPDX-License-Identifier: Apache-2.0
"""TRL's anchors and deltas, followed by our rollouts, and written by our trainers. foreign.py reads
and writes as TRL does."""

import shutil

import numpy as np
import pytest

import foreign
import jobs
from foreign_jobs import STEPS, Trainer, follow, following
from jobs import Files, ended, finish, make_run
from support import (
    Tensor,
    assert_refusal,
    changed,
    parse_safetensors,
    random_tensor,
    read_checkpoint,
    run,
    safetensors_bytes,
    write_checkpoint,
)


@pytest.fixture(autouse=True)
def no_processes_left():
    yield
    jobs.stop_started()


TRL = {
    "indices": (("indices", "values"), None),
    "raw": (("idx", "val"), "raw"),
    "gaps": (("idx", "val"), "gap_delta"),
}


@pytest.mark.parametrize("spelling", TRL)
def test_trl_is_followed_by_deltas_and_anchors(work, rng, spelling):
    """Every fourth step is an anchor; a late rollout without the first deltas starts from one."""
    trainer = Trainer(work, rng)
    # Two changes whose distance exceeds 16 bits.
    trainer.history[0]["layers.wide.weight"] = random_tensor(rng, "BF16", (70_001,))
    shutil.rmtree(trainer.base)
    write_checkpoint(trainer.base, trainer.history[0], 2)
    job = following(work, trainer)
    foreign.write_trl_anchor(trainer.dir, 0, trainer.history[0])
    rollout = follow(job, trainer, STEPS, work / "a")
    for number in range(STEPS):
        version, old, new = trainer.step(same=number == 4)
        new["layers.wide.weight"] = changed(rng, old["layers.wide.weight"], positions=[2, 70_000])
        foreign.write_trl_delta(trainer.dir, version, old, new, *TRL[spelling])
        if version % 4 == 0:  # frozen tensors are not sent
            anchor = {n: t for n, t in new.items() if "frozen" not in n}
            foreign.write_trl_anchor(trainer.dir, version, anchor)
    assert ended(rollout)["version"] == STEPS
    assert read_checkpoint(work / "a/rollout_00") == trainer.history[STEPS]
    for gone in range(1, 7):
        (trainer.dir / f"deltas/step_{gone:06d}.safetensors").unlink()
    assert ended(follow(job, trainer, STEPS, work / "b"))["version"] == STEPS
    assert read_checkpoint(work / "b/rollout_00") == trainer.history[STEPS]


def replaced(path, change):
    tensors, metadata = parse_safetensors(path.read_bytes())
    change(tensors, metadata)
    path.write_bytes(safetensors_bytes(tensors, metadata))


def backwards(tensors, metadata):
    entry = tensors["embed.weight.indices"]
    data = np.frombuffer(entry.data, "<i4")[::-1].tobytes()
    tensors["embed.weight.indices"] = Tensor("I32", entry.shape, data)


def beyond(tensors, metadata):
    entry = tensors["embed.weight.indices"]
    data = np.frombuffer(entry.data, "<i4").copy()
    data[-1] = 1 << 30
    tensors["embed.weight.indices"] = Tensor("I32", entry.shape, data.tobytes())


def negative(tensors, metadata):
    entry = tensors["embed.weight.indices"]
    data = np.frombuffer(entry.data, "<i4").copy()
    data[0] = -1
    tensors["embed.weight.indices"] = Tensor("I32", entry.shape, data.tobytes())


def half(tensors, metadata):
    del tensors["embed.weight.values"]


def miscounted(tensors, metadata):
    metadata["total_changed_elements"] = "1"


def unknown_tensor(tensors, metadata):
    tensors["no.such.indices"] = tensors["embed.weight.indices"]


def other_coding(tensors, metadata):
    metadata["encoding"] = "morse"


TRL_DAMAGE = [backwards, beyond, negative, half, miscounted, unknown_tensor, other_coding]


@pytest.mark.parametrize("damage", TRL_DAMAGE, ids=lambda damage: damage.__name__)
def test_damaged_deltas_of_trl_are_refused(work, rng, damage):
    trainer = Trainer(work, rng)
    job = following(work, trainer)
    version, old, new = trainer.step()
    replaced(foreign.write_trl_delta(trainer.dir, version, old, new), damage)
    result = finish(follow(job, trainer, 1, work / "a"))
    assert result.returncode in (4, 8) and "step_000001.safetensors" in result.stderr, result.stderr
    assert not (work / "a").exists()


# --- our directories, followed by TRL's workers ---------------------------------------------------


def writing(work, encoding, **settings):
    every = {"road.layout": "trl", "encoding": encoding, "anchors.every": 4, "keep_versions": 3}
    return Files(work, "flush", **every | settings)


@pytest.mark.parametrize("encoding", ["indices", "deltas"])
def test_their_workers_follow_us_early_and_late(work, rng, encoding):
    """Each version has a trainer process of its own; one worker follows from the first version,
    others start from the newest anchor. Our own rollouts follow the same directory."""
    history = make_run(work / "run", rng, STEPS, rows=4096)
    job = writing(work, encoding)
    held = None
    for version in range(1, STEPS + 1):
        trainer = job.start_trainer("--replay", work / "run", "--steps", version)
        assert finish(trainer).returncode == 0
        held = foreign.follow_trl(job.dir, version, held)
        assert held == history[version]
        assert foreign.follow_trl(job.dir, version) == history[version]
    steps = [sorted(p.name[5:11] for p in (job.dir / kind).iterdir()) for kind in ("anchors", "deltas")]
    assert steps[0] == ["000008"] and "000001" not in steps[1], "deltas are removed with their versions"
    assert ended(job.start_rollout("--save", work / "a", "--timeout", "240s"))["version"] == STEPS
    assert read_checkpoint(work / "a/rollout_00") == history[STEPS]


def test_their_workers_begin_without_a_setting(work, rng):
    """With an anchor at the start, and at every tenth step."""
    history = make_run(work / "run", rng, 11)
    job = Files(work)
    job.config = work / "trl.yaml"
    job.config.write_text("road: { kind: shared_fs, layout: trl }\n")
    assert finish(job.start_trainer("--replay", work / "run", "--steps", 3)).returncode == 0
    assert foreign.follow_trl(job.dir, 0) == history[0]
    assert foreign.follow_trl(job.dir, 3) == history[3]
    assert finish(job.start_trainer("--replay", work / "run")).returncode == 0
    assert foreign.follow_trl(job.dir, 11) == history[11]
    anchors = sorted(p.name[5:11] for p in (job.dir / "anchors").iterdir())
    assert anchors == ["000000", "000010"]


def test_ranks_of_a_trainer_make_one_file(work, rng):
    jobs.need_mpirun()
    history = make_run(work / "run", rng, 3)
    job = writing(work, "auto", **{"anchors.every": 2})
    result = job.run(trainer=["--replay", work / "run"], rollout=["--base", work / "run/step_000000"])
    assert result.returncode == 0, result.stderr
    assert foreign.follow_trl(job.dir, 3) == history[3]


@pytest.mark.parametrize("mode", ["delta", "full"])
def test_a_version_that_a_dead_trainer_left_hidden_is_published_again(work, rng, mode):
    history = make_run(work / "run", rng, 3)
    job = writing(work, "deltas", mode=mode)
    assert finish(job.start_trainer("--replay", work / "run", "--steps", 2)).returncode == 0
    last = job.dir / f"{'deltas' if mode == 'delta' else 'anchors'}/step_000002.safetensors"
    last.rename(last.parent / ".step_000002.safetensors.tmp")
    assert finish(job.start_trainer("--replay", work / "run")).returncode == 0
    assert foreign.apply_trl(last, history[1]) == history[2]
    assert not list(job.dir.glob("*/.step*"))
    assert foreign.follow_trl(job.dir, 3) == history[3]


def test_the_after_publish_hook_sees_the_step(work, rng):
    make_run(work / "run", rng, 1)
    command = f'ls "$DRIFTLESS_DIR/deltas" "$DRIFTLESS_VERSION_DIR" >> {work}/seen'
    job = writing(work, "deltas", **{"road.shared_fs.after_publish": command})
    assert finish(job.start_trainer("--replay", work / "run")).returncode == 0
    seen = (work / "seen").read_text()
    assert "step_000001.safetensors" in seen and "manifest.json" in seen


def copied(job, work, base):
    """A copy of the steps alone, as in a bucket; followed with the digests that we add."""
    for kind in ("anchors", "deltas"):
        shutil.copytree(job.dir / kind, work / "copy" / kind)
    settings = {"road.shared_fs.dir": work / "copy", "road.shared_fs.foreign_base": base, "deadlines.fetch": "3s"}
    return Files(work, "hf_delta", **settings)


def test_our_steps_are_proven_by_the_digests_that_we_add(work, rng):
    history = make_run(work / "run", rng, 3)
    base = work / "run/step_000000"
    job = writing(work, "deltas", **{"anchors.first": "false"})
    assert finish(job.start_trainer("--replay", work / "run")).returncode == 0
    ours = copied(job, work, base)
    line = ["--base", base, "--target-version", 3, "--timeout", "240s"]
    assert ended(ours.start_rollout(*line, "--save", work / "a"))["version"] == 3
    assert read_checkpoint(work / "a/rollout_00") == history[3]
    # A changed value, which TRL's format itself does not reveal.
    path = work / "copy/deltas/step_000002.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused = finish(ours.start_rollout(*line))
    assert refused.returncode == 4 and "it is damaged" in refused.stderr, refused.stderr
    path.write_bytes(whole)
    # Another base with the same names.
    write_checkpoint(work / "other", {n: changed(rng, t) for n, t in history[0].items()})
    ours.set(**{"road.shared_fs.foreign_base": work / "other"})
    refused = finish(ours.start_rollout("--base", work / "other", *line[2:]))
    assert refused.returncode == 4 and "was made for weights of" in refused.stderr, refused.stderr


def test_steps_of_another_run_are_not_taken_for_ours(work, rng):
    history = make_run(work / "run", rng, 1)
    job = writing(work, "deltas")
    theirs = foreign.write_trl_delta(job.dir, 1, history[0], history[1])
    data = theirs.read_bytes()
    result = finish(job.start_trainer("--replay", work / "run"))
    assert result.returncode != 0 and "another run's step" in result.stderr, result.stderr
    assert theirs.read_bytes() == data and not job.version_dir(1).exists()


def test_settings_that_trl_cannot_represent_are_refused(work, rng):
    make_run(work / "run", rng, 1)
    job = writing(work, "deltas_zstd")
    assert_refusal(finish(job.start_trainer("--replay", work / "run")), 2, "road.layout: trl")
    (work / "c.yaml").write_text("road: { kind: mpi_rma, layout: trl }\n")
    assert_refusal(run("config", "check", work / "c.yaml"), 2, "road.layout: trl", "shared_fs")

# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that differ in tensors and files beside the run's weights: the copy of a tied tensor,
which save_pretrained() drops, and files of configuration and tokenizer."""

import json

import pytest

from jobs import Files, finish
from support import (
    assert_refusal,
    changed,
    ok,
    publish,
    random_tensor,
    read_checkpoint,
    run,
    write_checkpoint,
)


def noted(*arguments):
    """A successful command's JSON; its notes must be on standard error, too."""
    result = run(*arguments, "--json")
    assert result.returncode == 0 and "driftless: note: " in result.stderr, result.stderr
    return json.loads(result.stdout)


EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def tied_model(rng):
    return {
        EMBEDDING: random_tensor(rng, "BF16", (64, 16)),
        "model.norm.weight": random_tensor(rng, "F32", (16,)),
    }


def stored(path, tensors, copy, tied=True):
    """A checkpoint of these tensors, with or without the copy of the embedding."""
    with_copy = tensors | {HEAD: tensors[EMBEDDING]} if copy else tensors
    write_checkpoint(path, with_copy, 2)
    config = {} if tied is None else {"tie_word_embeddings": tied}
    (path / "config.json").write_text(json.dumps(config))
    return path


def steps(rng, number):
    history = [tied_model(rng)]
    for _ in range(number):
        history.append({name: changed(rng, tensor, 0.1) for name, tensor in history[-1].items()})
    return history


@pytest.mark.parametrize("tied", [True, None], ids=["said", "not said"])
@pytest.mark.parametrize("layout", ["hf_delta", "flush", "frames"])
@pytest.mark.parametrize("old_has_it", [True, False])
def test_a_copy_on_one_side_is_left_out_of_the_version(work, rng, old_has_it, layout, tied):
    history = steps(rng, 1)
    old = stored(work / "old", history[0], old_has_it, tied)
    new = stored(work / "new", history[1], not old_has_it, tied)
    found = noted("diff", old, new, "--out", work / "out", "--layout", layout)
    assert found["changed_tensors"] == 2 and any(HEAD in note for note in found["notes"])
    # A receiver without the copy, and one with it: the copy is written with the tensor.
    without = stored(work / "without", history[0], False)
    ok("apply", work / "out", "--to", without, "--verify", "full")
    assert read_checkpoint(without) == history[1]
    beside = stored(work / "beside", history[0], True)
    ok("apply", work / "out", "--to", beside, "--verify", "full")
    assert read_checkpoint(beside) == history[1] | {HEAD: history[1][EMBEDDING]}
    ok("verify", beside)


def test_a_run_continues_with_checkpoints_that_dropped_the_copy(work, rng):
    history = steps(rng, 3)
    paths = [stored(work / f"step{n}", tensors, n == 0) for n, tensors in enumerate(history)]
    noted("diff", *paths[:2], "--out", work / "out")
    for old, new in zip(paths[1:], paths[2:], strict=False):
        publish(work / "out", old, new)
    target = stored(work / "target", history[0], True)
    ok("apply", work / "out", "--to", target, "--to-version", 1)
    ok("apply", work / "out", "--to", target)
    assert read_checkpoint(target) == history[3] | {HEAD: history[3][EMBEDDING]}
    # A run whose versions have the copy needs it on both sides.
    publish(
        work / "with", stored(work / "a", history[0], True), stored(work / "b", history[1], True)
    )
    result = run("diff", work / "b", paths[2], "--out", work / "with")
    assert_refusal(result, 4, "wrong_layout", "a tied tensor's copy")


@pytest.mark.parametrize("old_has_it", [True, False])
def test_a_tensor_on_one_side_that_is_not_a_copy_is_an_error(work, rng, old_has_it):
    history = steps(rng, 1)
    old = stored(work / "old", history[0], False)
    new = stored(work / "new", history[1], False)
    side = 0 if old_has_it else 1
    other = history[side] | {HEAD: changed(rng, history[side][EMBEDDING])}
    stored(work / "odd", other, False)
    line = (work / "odd", new) if old_has_it else (old, work / "odd")
    assert_refusal(run("diff", *line, "--out", work / "out"), 4, "wrong_layout", HEAD, "has other bits")
    untied = stored(work / "untied", history[side], True, tied=False)
    line = (untied, new) if old_has_it else (old, untied)
    assert_refusal(run("diff", *line, "--out", work / "out"), 4, "wrong_layout", HEAD)
    assert not (work / "out").exists()


def test_a_receiver_whose_copy_would_become_stale_refuses_the_version(work, rng):
    history = steps(rng, 1)
    stored(work / "old", history[0], True), stored(work / "new", history[1], False)
    noted("diff", work / "old", work / "new", "--out", work / "out")
    target = stored(work / "target", history[0], True, tied=False)
    assert_refusal(run("apply", work / "out", "--to", target), 4, "wrong_layout", HEAD)
    assert read_checkpoint(target) == history[0] | {HEAD: history[0][EMBEDDING]}
    # without tie_word_embeddings the bits decide
    silent = stored(work / "silent", history[0], True, tied=None)
    ok("apply", work / "out", "--to", silent)
    assert read_checkpoint(silent) == history[1] | {HEAD: history[1][EMBEDDING]}


def test_a_rollouts_copy_follows_its_tensor_without_a_setting(work, rng):
    history = steps(rng, 2)
    for number, tensors in enumerate(history):
        stored(work / f"run/step_{number:06d}", tensors, False, None)
    target = stored(work / "target", history[0], True, None)
    job = Files(work, **{"receiver.target": "checkpoint", "receiver.checkpoint_dir": target})
    rollout = job.start_rollout()
    result = run(*job.trainer("--replay", work / "run", "--rollouts", 1))
    assert result.returncode == 0, result.stderr
    assert finish(rollout).returncode == 0
    assert read_checkpoint(target) == history[2] | {HEAD: history[2][EMBEDDING]}


def followed(work, target, base, *arguments, **settings):
    """Replays work/run into a rollout with this kind of target; returns what it saves."""
    job = Files(work, **{"receiver.target": target}, **settings)
    if target == "checkpoint":
        job.set(**{"receiver.checkpoint_dir": work / "local"})
    rollout = job.start_rollout("--base", base, "--save", work / "save", "--timeout", "240s")
    result = run(*job.trainer("--replay", work / "run", "--rollouts", 1, *arguments))
    assert result.returncode == 0, result.stderr
    ending = finish(rollout)
    assert ending.returncode == 0, ending.stderr
    return work / "save/rollout_00", result.stdout


@pytest.mark.parametrize("target", ["memory", "checkpoint"])
@pytest.mark.parametrize("stores", [(1, 0, 0), (0, 1, 1), (1, 1, 0)])
def test_steps_to_replay_may_drop_or_add_the_copy(work, rng, stores, target):
    history = steps(rng, 2)
    for number, (tensors, copy) in enumerate(zip(history, stores, strict=True)):
        stored(work / f"run/step_{number:06d}", tensors, bool(copy))
    saved, output = followed(work, target, work / "run/step_000000")
    assert (HEAD in output) == bool(stores[0])
    copy = {HEAD: history[2][EMBEDDING]} if stores[0] else {}
    assert read_checkpoint(saved) == history[2] | copy


def test_a_step_to_replay_whose_head_is_no_copy_is_refused(work, rng):
    history = steps(rng, 2)
    stored(work / "run/step_000000", history[0], False)
    stored(work / "run/step_000001", history[1], False)
    stored(work / "run/step_000002", history[2] | {HEAD: history[1][EMBEDDING]}, False)
    result = run(*Files(work).trainer("--replay", work / "run"))
    assert_refusal(result, 4, "wrong_layout", HEAD, "has other bits")


@pytest.mark.parametrize("target", ["memory", "checkpoint"])
def test_a_rollout_saves_all_tensors(work, rng, target):
    """Including those of its base that the run does not publish."""
    history = steps(rng, 2)
    for number, tensors in enumerate(history):
        stored(work / f"run/step_{number:06d}", tensors, False)
    beside = {
        "visual.patch_embed.weight": random_tensor(rng, "BF16", (8, 3, 2, 5, 7)),
        "model.a_first": random_tensor(rng, "F32", (16,)),
        "visual.none": random_tensor(rng, "BF16", (0, 4)),
    }
    base = stored(work / "base", history[0] | beside, True)
    (base / "tokenizer.json").write_text("{}")
    saved, _ = followed(work, target, base)
    assert read_checkpoint(saved) == history[2] | beside | {HEAD: history[2][EMBEDDING]}
    for name in ("config.json", "tokenizer.json"):
        assert (saved / name).read_bytes() == (base / name).read_bytes()
    ok("verify", saved, "--like", saved)


def test_verify_accepts_a_copy_on_one_side(work, rng):
    (tensors,) = steps(rng, 0)
    one, other = stored(work / "one", tensors, True), stored(work / "other", tensors, False)
    for line in ((one, "--like", other), (other, "--like", one)):
        result = run("verify", *line)
        assert result.returncode == 0 and HEAD in result.stderr, result.stderr
    odd = stored(work / "odd", tensors | {HEAD: changed(rng, tensors[EMBEDDING])}, False)
    result = run("verify", odd, "--like", other)
    assert result.returncode == 1 and HEAD in result.stdout, result.stdout


def test_other_files_beside_the_same_weights_are_noted(pair):
    """The weights decide the exit code."""
    twin = write_checkpoint(pair.work / "twin", pair.old, 1)
    assert "note" not in run("verify", twin, "--like", pair.old_path).stderr
    (twin / "config.json").write_text("{}")
    (twin / "tokenizer.json").write_text("{}")
    (pair.old_path / "merges.txt").write_text("")
    result = run("verify", twin, "--like", pair.old_path)
    assert result.returncode == 0 and "identical" in result.stdout
    for words in ("different content: config.json", f"only in {twin}: tokenizer.json",
                  f"only in {pair.old_path}: merges.txt"):  # fmt: skip
        assert words in result.stderr, result.stderr
    found = noted("verify", twin, "--like", pair.old_path)
    assert found["other_files"] == ["config.json", "merges.txt", "tokenizer.json"]


def test_apply_notes_files_of_a_whole_version_that_it_leaves(pair):
    (pair.new_path / "tokenizer.json").write_text("new")
    (pair.new_path / "config.json").write_text('{"model_type": "new"}')
    publish(pair.published, pair.old_path, pair.new_path, "hf_delta", "full")
    version = pair.published / "weight_v000001"
    assert (version / "tokenizer.json").read_text() == "new", "a whole checkpoint"
    target = pair.checkpoint()
    result = run("apply", pair.published, "--to", target)
    assert result.returncode == 0 and "config.json, tokenizer.json" in result.stderr, result.stderr
    assert not (target / "tokenizer.json").exists()
    again = pair.checkpoint("again")
    found = noted("apply", pair.published, "--to", again)
    assert found["other_files"] == ["config.json", "tokenizer.json"]
    for name in found["other_files"]:
        (target / name).write_bytes((version / name).read_bytes())
    assert run("verify", target, "--like", version).stderr == ""

# SPDX-License-Identifier: Apache-2.0
"""Cases in which readers of this format are known to report success with wrong weights, and other
bad input: all are refused with the documented exit code and one line that says what to do; weights
and state stay unchanged, byte for byte."""

import json
import shutil

import pytest

import foreign
from support import (
    FLUSH_ENCODINGS,
    INDEX,
    Tensor,
    assert_refusal,
    changed,
    ok,
    publish,
    read_checkpoint,
    run,
    safetensors_bytes,
    state_version,
    weights_and_state,
    write_checkpoint,
    write_state,
)

KINDS = ["ours xor", "ours overwrite", "ours deltas_zstd", "theirs xor", "theirs overwrite",
         "theirs deltas"]  # fmt: skip
HF_KINDS = [kind for kind in KINDS if "deltas" not in kind]


def publish_kind(pair, kind, version=1, old=None, new=None, directory=None):
    """Publishes old -> new in one of KINDS; returns the version directory."""
    whose, encoding = kind.split()
    old, new = old or pair.old, new or pair.new
    directory = directory or pair.published
    layout = "flush" if encoding in FLUSH_ENCODINGS else "hf_delta"
    if whose == "theirs":
        write = foreign.write_flush if layout == "flush" else foreign.write_hf_delta
        return write(directory, version, old, new, encoding)
    paths = [pair.work / f"{name}-{version}-{directory.name}" for name in ("from", "to")]
    for path, tensors in zip(paths, (old, new)):
        write_checkpoint(path, tensors)
    publish(directory, *paths, layout, encoding, "--version", str(version))
    return foreign.version_path(directory, version)


def assert_untouched(pair, target, code, *words, options=()):
    before = weights_and_state(target)
    result = run("apply", pair.published, "--to", target, *options)
    assert_refusal(result, code, *words)
    assert weights_and_state(target) == before


# --- known ways to end with wrong weights ---------------------------------------------------------


@pytest.mark.parametrize("kind", ["ours xor", "ours overwrite", "ours deltas"])
def test_a_directory_left_by_an_older_run(pair, kind):
    other = pair.work / "older run"
    publish_kind(pair, "ours xor", 1, directory=other)
    target = pair.checkpoint()
    ok("apply", other, "--to", target)
    publish_kind(pair, kind, 1)
    assert_untouched(pair, target, 4, "wrong_run", "restore the base checkpoint")
    publish_kind(pair, kind, 2, pair.new, pair.step(pair.new))
    assert_untouched(pair, target, 4, "wrong_run", "restore the base checkpoint")


@pytest.mark.parametrize("kind", KINDS[:-1])
@pytest.mark.parametrize("newest", (1, 2))
def test_a_directory_left_by_an_older_run_of_another_tool(pair, kind, newest):
    """The state has version 1 without a run; the weights are another run's version 1."""
    target = pair.checkpoint(tensors=pair.step(pair.old))
    write_state(target, 1)
    publish_kind(pair, kind, 1)
    if newest == 2:
        publish_kind(pair, kind, 2, pair.new, pair.step(pair.new))
    assert_untouched(pair, target, 4, "mismatch", "restore")


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_weights_of_another_run_without_any_state(pair, kind):
    target = pair.checkpoint(tensors=pair.step(pair.old))
    publish_kind(pair, kind)
    if kind == "theirs overwrite":  # overwrite may replace all weights, which are then proven
        result = run("apply", pair.published, "--to", target)
        assert result.returncode == 4 or read_checkpoint(target) == pair.new
        return
    assert_untouched(pair, target, 4, "mismatch", "restore")


@pytest.mark.parametrize("kind", HF_KINDS)
def test_visible_before_its_index(pair, kind):
    path = publish_kind(pair, kind)
    (path / INDEX).unlink()
    assert_untouched(pair, pair.checkpoint(), 3, "incomplete", INDEX, "wait")


@pytest.mark.parametrize("name", ("DONE", "manifest.json"))
@pytest.mark.parametrize("kind", ["ours xor", "ours deltas"])
def test_visible_before_its_manifest_or_marker(pair, kind, name):
    path = publish_kind(pair, kind)
    (path / name).unlink()
    assert_untouched(pair, pair.checkpoint(), 3, "incomplete", name, "wait")


@pytest.mark.parametrize("kind", ["ours xor", "ours deltas"])
def test_only_payload_and_index_of_ours_are_visible(pair, kind):
    """Our version without DONE and manifest must not count as another tool's."""
    path = publish_kind(pair, kind)
    (path / "DONE").unlink()
    (path / "manifest.json").unlink()
    assert_untouched(pair, pair.checkpoint(), 3, "incomplete", "wait")


def test_an_empty_version_directory(pair):
    foreign.version_path(pair.published, 1).mkdir(parents=True)
    assert_untouched(pair, pair.checkpoint(), 3, "incomplete", "wait")


@pytest.mark.parametrize("kind", KINDS[:3])
def test_our_only_shard_is_not_yet_visible(pair, kind):
    path = publish_kind(pair, kind)
    sorted(path.glob("*.safetensors"))[0].unlink()
    assert_untouched(pair, pair.checkpoint(), 3, "incomplete", "wait")


@pytest.mark.parametrize("encoding", ("xor", "overwrite"))
@pytest.mark.parametrize("missing", (0, 1, 2))
def test_one_of_their_shards_is_not_yet_visible(pair, encoding, missing):
    path = foreign.write_hf_delta(pair.published, 1, pair.old, pair.new, encoding, shards=3)
    (path / f"model-{missing:05d}-of-00003.safetensors").unlink()
    assert_untouched(pair, pair.checkpoint(), 3, "incomplete", "wait")


def test_their_shard_is_missing_and_the_index_is_silent_about_it(pair):
    """The names of the other shards have the total number."""
    path = foreign.write_hf_delta(pair.published, 1, pair.old, pair.new, shards=3)
    gone = "model-00001-of-00003.safetensors"
    (path / gone).unlink()
    index = json.loads((path / INDEX).read_text())
    index["weight_map"] = {n: f for n, f in index["weight_map"].items() if f != gone}
    (path / INDEX).write_text(json.dumps(index))
    assert_untouched(pair, pair.checkpoint(), 3, "incomplete", "wait")


def test_a_gap_in_the_numbers_of_their_flush_files(pair):
    path = foreign.write_flush(pair.published, 1, pair.old, pair.new)
    assert (path / "rank0000_flush000001.safetensors").exists()
    (path / "rank0000_flush000000.safetensors").unlink()
    assert_untouched(pair, pair.checkpoint(), 3, "incomplete", "rank0000_flush000000", "wait")


@pytest.mark.parametrize("kind", ["ours xor", "ours overwrite", "ours deltas", "theirs xor"])
def test_another_tool_crashed_in_the_middle_of_an_apply(pair, kind):
    """Half of the tensors are new, the state is old."""
    publish_kind(pair, kind)
    half = {n: (pair.new if i % 2 else pair.old)[n] for i, n in enumerate(pair.old)}
    assert_untouched(pair, pair.checkpoint(tensors=half), 4, "mismatch", "restore")


@pytest.mark.parametrize("kind", ["ours xor", "ours overwrite", "ours deltas"])
def test_a_damaged_tensor_that_no_delta_touches(pair, kind):
    """A plain apply costs O(changed) and cannot detect it. --verify full and verify do."""
    publish_kind(pair, kind)
    name = "layers.untouched.weight"
    damaged = {**pair.old, name: changed(pair.rng, pair.old[name], positions=[3])}
    target = pair.checkpoint(tensors=damaged)
    assert_untouched(pair, target, 4, "mismatch", "restore", options=("--verify", "full"))

    ok("apply", pair.published, "--to", target)
    assert read_checkpoint(target) == {**pair.new, name: damaged[name]}
    assert run("verify", target).returncode == 1
    assert run("verify", target, "--manifest", pair.published / "weight_v000001").returncode == 1
    result = run("verify", target, "--like", pair.new_path)
    assert result.returncode == 1 and f"'{name}' at position 3:" in result.stdout
    # Also if no version is left to apply, and if there is one more.
    assert_untouched(pair, target, 4, "mismatch", "restore", options=("--verify", "full"))
    publish_kind(pair, kind, 2, pair.new, pair.step(pair.new))
    assert_untouched(pair, target, 4, "mismatch", "restore", options=("--verify", "full"))


def test_a_damaged_tensor_under_their_versions(pair):
    """They have no digest: the weights that --verify full read are the reference for later
    damage."""
    foreign.write_hf_delta(pair.published, 1, pair.old, pair.new)
    target = pair.checkpoint()
    assert run("apply", pair.published, "--to", target, "--verify", "full").returncode == 0
    foreign.write_hf_delta(pair.published, 2, pair.new, pair.step(pair.new))
    name = "layers.untouched.weight"
    damaged = {**pair.new, name: changed(pair.rng, pair.new[name], positions=[3])}
    write_checkpoint(pair.work / "damaged", damaged, pair.shards)
    shutil.copytree(pair.work / "damaged", target, dirs_exist_ok=True)
    assert run("verify", target).returncode == 1
    assert_untouched(pair, target, 4, "mismatch", "restore", options=("--verify", "full"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_below_the_applied_version(pair, kind):
    publish_kind(pair, kind, 1)
    publish_kind(pair, kind, 2, pair.new, pair.step(pair.new))
    target = pair.checkpoint()
    ok("apply", pair.published, "--to", target)
    options = ("--to-version", "1")
    assert_untouched(pair, target, 4, "wrong_base", "restore", options=options)
    shutil.rmtree(foreign.version_path(pair.published, 2))
    assert_untouched(pair, target, 4, "wrong_base", "restore")


@pytest.mark.parametrize("encoding", ("xor", "overwrite"))
def test_a_tensor_published_by_two_ranks(pair, encoding):
    path = foreign.write_hf_delta(pair.published, 1, pair.old, pair.new, encoding, shards=2)
    one, two = sorted(path.glob("*.safetensors"))
    entries, digests = foreign.hf_delta_entries(pair.old, pair.new, encoding)
    two.write_bytes(safetensors_bytes(entries, digests))
    assert_untouched(pair, pair.checkpoint(), 4, "corrupt", one.name, "two ranks")


def test_a_tensor_published_by_two_ranks_as_flush_files(pair):
    path = foreign.write_flush(pair.published, 1, pair.old, pair.new)
    for file in list(path.iterdir()):
        shutil.copy(file, path / file.name.replace("rank0000", "rank0001"))
    assert_untouched(pair, pair.checkpoint(), 4, "corrupt", "rank0000", "one rank")


@pytest.mark.parametrize("kind", ["ours xor", "ours deltas"])
def test_a_file_more_than_our_manifest_names(pair, kind):
    path = publish_kind(pair, kind)
    (file,) = list(path.glob("*.safetensors"))[:1]
    name = file.name.replace("00000-of", "00001-of").replace("rank0000", "rank0001")
    shutil.copy(file, path / name)
    assert_untouched(pair, pair.checkpoint(), 4, "corrupt", name, "manifest")


# --- chain and layout ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_gap_in_the_chain(pair, kind):
    steps = [pair.old, pair.new, pair.step(pair.new), pair.old]
    for version in (1, 2, 3):
        publish_kind(pair, kind, version, steps[version - 1], steps[version])
    shutil.rmtree(foreign.version_path(pair.published, 2))
    target = pair.checkpoint()
    assert_untouched(pair, target, 4, "wrong_base", "version 2", "publish it")
    ok("apply", pair.published, "--to", target, "--to-version", "1")
    assert_untouched(pair, target, 4, "wrong_base", "version 2", "publish it")


def test_a_version_that_builds_on_one_below_the_checkpoint(pair):
    publish(pair.published, pair.old_path, pair.new_path)
    target = pair.checkpoint()
    ok("apply", pair.published, "--to", target)
    options = ("--version", "2", "--base", "0")
    publish(pair.published, pair.old_path, pair.new_path, "hf_delta", "xor", *options)
    assert_untouched(pair, target, 4, "wrong_base", "restore")


def test_no_such_version(pair):
    publish_kind(pair, "ours xor")
    target = pair.checkpoint()
    assert_untouched(pair, target, 3, "not_found", "version 7", options=("--to-version", "7"))
    assert_refusal(run("apply", pair.work / "nowhere", "--to", target), 3, "not_found")
    (pair.work / "empty").mkdir()
    assert_refusal(run("apply", pair.work / "empty", "--to", target), 3, "not_found", "weight_v")


def other_layouts(pair):
    q = pair.old["layers.q.weight"]
    mlp = pair.old["layers.mlp.weight"]
    missing = {n: t for n, t in pair.old.items() if n != "layers.q.weight"}
    return {
        "dtype": {**pair.old, "layers.q.weight": Tensor("F16", q.shape, q.data)},
        "shape": {**pair.old, "layers.q.weight": Tensor(q.dtype, (48, 32), q.data)},
        "size": {**pair.old, "layers.q.weight": Tensor(q.dtype, (31, 48), q.data[: -48 * 2])},
        "missing": missing,
        "extra": {**pair.old, "extra": mlp},
        "renamed": {**missing, "layers.p.weight": q},
    }


@pytest.mark.parametrize("difference", ("dtype", "shape", "size", "missing", "extra", "renamed"))
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_another_layout(pair, kind, difference):
    tensors = other_layouts(pair)[difference]
    target = pair.checkpoint(tensors=tensors)
    publish_kind(pair, kind)
    if kind.startswith("ours"):
        assert_untouched(pair, target, 4, "wrong_layout", "use the checkpoint")
    elif difference == "extra" or (kind != "theirs deltas" and difference in ("dtype", "shape")):
        # Their versions do not contradict, and the bytes are proven.
        ok("apply", pair.published, "--to", target)
        data = {name: tensor.data for name, tensor in read_checkpoint(target).items()}
        assert all(data[name] == tensor.data for name, tensor in pair.new.items())
    else:
        assert_untouched(pair, target, 4)


@pytest.mark.parametrize("difference", ("dtype", "shape", "missing", "extra"))
def test_a_diff_between_two_layouts(pair, difference):
    other = write_checkpoint(pair.work / "other", other_layouts(pair)[difference])
    result = run("diff", pair.old_path, other, "--out", pair.published)
    assert_refusal(result, 4, "wrong_layout")
    assert not list(pair.work.glob("published/weight_v*"))


def test_a_full_version_of_another_layout(pair):
    for version, (difference, tensors) in enumerate(other_layouts(pair).items(), 1):
        foreign.write_full(pair.published, version, tensors)
        target = pair.checkpoint(f"to {difference}")
        assert_untouched(pair, target, 4, "wrong_layout")


def test_the_checkpoint_was_replaced_under_its_state(pair):
    publish_kind(pair, "ours xor")
    target = pair.checkpoint()
    ok("apply", pair.published, "--to", target)
    other = pair.checkpoint("other", other_layouts(pair)["renamed"])
    shutil.copytree(target / ".weight_sync", other / ".weight_sync")
    assert_untouched(pair, other, 4, "wrong_layout", "restore")
    assert state_version(other) == 1

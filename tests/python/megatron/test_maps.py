# SPDX-License-Identifier: Apache-2.0
"""Maps and flags, without torch, in this interpreter if the module was built for it."""

import argparse
import json
import subprocess
import sys

import numpy as np
import pytest
import binding
import tiny_config
from megatron_jobs import PACKAGE

binding.driftless()  # skips if there is none

from driftless import megatron  # noqa: E402
from driftless.megatron import blocks  # noqa: E402
from driftless.megatron import plan as planning  # noqa: E402
from driftless.megatron import regions  # noqa: E402

LAYOUTS = [
    planning.Parallel(),
    planning.Parallel(tp=2, pp=2),
    planning.Parallel(tp=4, pp=2, vpp=2),  # more tensor-parallel ranks than query groups
    planning.Parallel(tp=2, ep=2, etp=1, spec="local"),
    planning.Parallel(tp=2, ep=4, etp=2, pp=4),
]


@pytest.mark.parametrize("family", tiny_config.FAMILIES)
@pytest.mark.parametrize("parallel", LAYOUTS, ids=str)
def test_every_element_has_one_place_and_no_shard_is_read_outside(family, parallel):
    config = tiny_config.hf_config({"family": family})
    for plan in planning.plan_model(config, parallel):
        for item in plan.items:
            size = int(np.prod(item.local_shape))
            used = [np.zeros(size, int) for _ in item.places]
            for tensor in item.tensors:
                filled = np.zeros(int(np.prod(tensor.shape)), int)
                for region in tensor.regions:
                    np.add.at(filled, positions(region, region.dst_offset, region.dst_strides), 1)
                    where = positions(region, region.src_offset, region.src_strides)
                    np.add.at(used[region.piece], where, 1)
                assert (filled == 1).all(), tensor.name
            for shard in used:
                assert shard.max() <= 1
                assert item.split == "vocab" or shard.min() == 1, item.names


@pytest.mark.parametrize("family", tiny_config.FAMILIES)
@pytest.mark.parametrize("parallel", LAYOUTS, ids=str)
@pytest.mark.parametrize("ranks", [1, 3])
def test_flat_ranges_become_blocks_that_have_every_element_once(family, parallel, ranks):
    """Each of `ranks` data-parallel ranks owns a range; its blocks land where the regions put
    them."""
    config = tiny_config.hf_config({"family": family})
    for plan in planning.plan_model(config, parallel):
        for item in plan.items:
            size = int(np.prod(item.local_shape))
            found = {t.name: np.full(t.shape, -1) for t in item.tensors}
            for piece in range(len(item.places)):
                for rank in range(ranks):
                    begin, end = (size * n // ranks for n in (rank, rank + 1))
                    for block in blocks.blocks_of(item, piece, begin, end):
                        assert begin <= block.begin < block.end <= end
                        place = tuple(map(slice, block.offset, np.add(block.offset, block.sizes)))
                        there = found[block.tensor.name][place]
                        assert there.shape == block.sizes and (there == -1).all()
                        values = piece * size + np.arange(block.begin, block.end)
                        there[...] = values.reshape(block.sizes)
            for tensor in item.tensors:
                wanted = np.zeros(int(np.prod(tensor.shape)), int)
                for region in tensor.regions:
                    src = positions(region, region.src_offset, region.src_strides)
                    dst = positions(region, region.dst_offset, region.dst_strides)
                    wanted[dst] = region.piece * size + src
                assert (found[tensor.name] == wanted.reshape(tensor.shape)).all(), tensor.name


def test_a_flat_range_of_a_matrix_is_at_most_three_blocks():
    config = tiny_config.hf_config({})
    (plan,) = planning.plan_model(config, planning.Parallel())
    item = next(i for i in plan.items if i.tensors[0].name.endswith("down_proj.weight"))
    found = [(b.offset, b.sizes, b.begin) for b in blocks.blocks_of(item, 0, 100, 96 * 4 + 7)]
    assert found == [((1, 4), (1, 92), 100), ((2, 0), (2, 96), 192), ((4, 0), (1, 7), 384)]


def positions(region, offset, strides):
    grid = np.indices(region.shape).reshape(len(region.shape), -1)
    return offset + sum(axis * stride for axis, stride in zip(grid, strides, strict=True))


def test_query_groups_are_taken_apart_as_they_were_put_together():
    heads, groups, dim, hidden = 6, 3, 2, 5
    rng = np.random.default_rng(1)
    q, k, v = (rng.integers(0, 99, (n * dim, hidden)) for n in (heads, groups, groups))
    rows = []
    for g in range(groups):
        rows += [
            q[g * 2 * dim : (g + 1) * 2 * dim],
            k[g * dim : (g + 1) * dim],
            v[g * dim : (g + 1) * dim],
        ]
    fused = np.concatenate(rows)
    for shards in (1, 2, 3, 4):
        parts = np.split(fused, shards)
        cut = regions.qkv(heads, groups, dim, (hidden,), shards, "test")
        assert cut.local_shape == parts[0].shape
        for wanted, shape, pieces in zip((q, k, v), cut.shapes, cut.regions, strict=True):
            out = np.zeros(int(np.prod(shape)), int)
            for region in pieces:
                src = parts[region.piece].ravel()[
                    positions(region, region.src_offset, region.src_strides)
                ]
                out[positions(region, region.dst_offset, region.dst_strides)] = src
            assert (out.reshape(shape) == wanted).all()


def test_rows_past_the_vocabulary_belong_to_no_tensor():
    cut = regions.vocab((5, 3), 4, padded=8)  # the last shard is all padding, the third half
    assert [r.count for r in cut.regions[0]] == [6, 6, 3]


@pytest.mark.parametrize(
    "change, parallel, words",
    [
        ({"model_type": "gpt2"}, {}, ["gpt2", "adding_a_model"]),
        ({"hidden_size": None}, {}, ["hidden_size", "qwen3"]),
        ({}, {"pp": 3}, ["4 layers", "3 stages"]),
        ({}, {"tp": 5}, ["5 ranks", "linear_qkv"]),
        ({"model_type": "qwen3_moe", **tiny_config.MOE}, {"ep": 3}, ["4 experts", "3 ranks"]),
    ],
)
def test_a_refusal_gives_the_reason(change, parallel, words):
    config = {k: v for k, v in (tiny_config.hf_config({}) | change).items() if v is not None}
    with pytest.raises(megatron.MapError) as raised:
        planning.plan_model(config, planning.Parallel(**parallel))
    for word in words:
        assert word in str(raised.value)


def test_layers_of_multi_token_prediction_follow_the_last():
    config = tiny_config.hf_config({"family": "glm4_moe"}) | {"num_nextn_predict_layers": 1}
    plans = planning.plan_model(config, planning.Parallel(pp=2))
    last = {t.name: t.shape for t in plans[-1].tensors()}
    assert last["model.layers.4.eh_proj.weight"] == (64, 128)
    assert last["model.layers.4.shared_head.norm.weight"] == (64,)
    assert "model.layers.4.mlp.experts.3.down_proj.weight" in last
    assert (0, "embedding.word_embeddings.weight") in plans[-1].dropped


def map_command(*arguments):
    line = [sys.executable, "-m", "driftless", "map", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, env={"PYTHONPATH": str(PACKAGE)})


def test_the_command_prints_a_map_and_refuses_what_is_wrong(work):
    path = work / "config.json"
    path.write_text(json.dumps(tiny_config.hf_config({"moe": True})))
    result = map_command(path, "--tp", 2, "--pp", 2, "--ep", 2, "--etp", 1)
    assert result.returncode == 0, result.stderr
    assert (
        "decoder.layers.0.mlp.experts.linear_fc1.weight1  64x64 gate_up of 1 ep 1" in result.stdout
    )
    assert "model.layers.3.mlp.experts.3.up_proj.weight  32x64" in result.stdout
    assert map_command(work).stdout == map_command(path).stdout
    for code, word, *arguments in (
        (3, "No such file", work / "none"),
        (2, "at least 1", path, "--tp", 0),
        (2, "3 stages", path, "--pp", 3),
    ):
        refused = map_command(*arguments)
        assert refused.returncode == code and word in refused.stderr
        assert refused.stderr.startswith("driftless: ") and refused.stderr.count("\n") == 1


# --- flags ---------------------------------------------------------------------------------------


def options(*flags, parser=None):
    parser = megatron.add_arguments(parser or argparse.ArgumentParser())
    return megatron.options_from(parser.parse_args(flags))


def settings(*flags):
    return megatron.load_config(options(*flags)).settings()


DISK = ("--update-weight-mode", "delta", "--update-weight-transport", "disk")


def test_off_by_default():
    assert options() is None
    assert options("--update-weights-interval", "3") is None


def test_flags_are_settings():
    found = settings(
        *DISK,
        "--update-weight-delta-dir",
        "/d",
        "--update-weight-encoding",
        "deltas",
        "--update-weight-buffer-size",
        "1048576",
    )
    assert (found["road.kind"], found["road.shared_fs.dir"]) == ("shared_fs", "/d")
    assert (found["mode"], found["encoding"], found["buffer_size"]) == ("delta", "deltas", "1MiB")
    found = settings(
        *DISK,
        "--update-weight-disk-dir",
        "/d",
        "--update-weight-delta-encoding",
        "xor",
        "--update-weight-delta-checksum",
        "adler32",
        "--update-weight-local-checkpoint-dir",
        "/local/{rank}",
    )
    assert (found["road.layout"], found["encoding"], found["checksum"]) == (
        "hf_delta",
        "xor",
        "adler32",
    )
    assert found["receiver.checkpoint_dir"] == "/local/{rank}"
    found = settings("--update-weight-mode", "full", "--update-weight-transport", "mpi_rma")
    assert (found["mode"], found["road.kind"], found["anchors.first"]) == (
        "full",
        "mpi_rma",
        "true",
    )


P2P = ("--update-weight-mode", "delta", "--use-p2p-weight-update")


def test_peer_to_peer_is_one_flag():
    found = settings(
        *P2P,
        *("--update-weight-token-file", "/t", "--update-weight-hub-address", "10.0.0.1:1"),
        *("--update-weight-disk-dir", "/d"),
    )
    assert (found["road.kind"], found["snapshot"]) == ("peer", "none")
    assert (found["hub.token_file"], found["hub.address"]) == ("/t", "10.0.0.1:1")
    assert (found["road.peer.fallback"], found["road.shared_fs.dir"]) == ("shared_fs", "/d")
    assert found["road.layout"] == "frames"


@pytest.mark.parametrize(
    "word, flags",
    [
        ("no effect without", ("--use-p2p-weight-update",)),
        ("needs --update-weight-token-file", P2P),
        ("selects transport peer, not disk", (*P2P, "--update-weight-transport", "disk")),
        ("without a snapshot", (*P2P, "--update-weight-token-file", "/t", "--update-weight-snapshot", "host")),
        ("is for --use-p2p", ("--update-weight-mode", "delta", "--update-weight-token-file", "/t")),
    ],
)
def test_flags_that_contradict_peer_to_peer_are_refused(word, flags):
    with pytest.raises(megatron.MapError) as raised:
        options(*flags)
    assert word in str(raised.value)


def test_flags_win_over_the_file_and_the_file_over_nothing(work):
    (work / "c.yaml").write_text(
        "mode: full\nbuffer_size: 2MiB\nroad: { kind: shared_fs, shared_fs: { dir: /a } }\n"
    )
    found = settings("--update-weight-config", str(work / "c.yaml"))
    assert (found["mode"], found["road.shared_fs.dir"], found["buffer_size"]) == ("full", "/a", "2MiB")
    found = settings(
        "--update-weight-config", str(work / "c.yaml"), *DISK, "--update-weight-disk-dir", "/b"
    )
    assert (found["mode"], found["road.shared_fs.dir"], found["buffer_size"]) == ("delta", "/b", "2MiB")


@pytest.mark.parametrize(
    "flags, words",
    [
        (
            (*DISK, "--update-weight-disk-dir", "/d", "--colocate"),
            ["--colocate", "delta", "handle"],
        ),
        (DISK, ["--update-weight-disk-dir"]),
        (("--update-weight-disk-dir", "/d"), ["no effect", "--update-weight-mode"]),
        (("--update-weight-strict",), ["--update-weight-strict", "no effect"]),
        (("--update-weight-delta-read-workers", "2"), ["read-workers", "no effect"]),
        (("--custom-delta-pre-push-path", "os.path.join"), ["pre-push-path", "no effect"]),
        (
            ("--update-weight-mode", "delta", "--custom-delta-pre-read-path", "os.path.join"),
            ["--custom-delta-pre-read-path", "transport disk"],
        ),
        (
            (*DISK, "--update-weight-disk-dir", "/d", "--update-weights-interval", "0"),
            ["at least 1"],
        ),
        (
            (
                *DISK,
                "--update-weight-disk-dir",
                "/d",
                "--update-weight-encoding",
                "deltas",
                "--update-weight-delta-encoding",
                "xor",
            ),
            ["exclude each other"],
        ),
        (
            (*DISK, "--update-weight-disk-dir", "/d", "--custom-delta-pre-push-path", "no.such.f"),
            ["--custom-delta-pre-push-path", "no.such.f"],
        ),
        (
            (
                "--update-weight-mode",
                "delta",
                "--update-weight-transport",
                "mpi_rma",
                "--update-weight-disk-dir",
                "/d",
            ),
            ["transport disk", "mpi_rma"],
        ),
    ],
)
def test_flags_that_cannot_be_together_are_refused_when_they_are_parsed(flags, words):
    parser = megatron.add_arguments(argparse.ArgumentParser())
    with pytest.raises(megatron.MapError) as raised:
        parser.parse_args(flags)
    for word in words:
        assert word in str(raised.value)


def test_colocate_with_full_is_allowed_and_a_script_may_have_the_flag_already():
    parser = argparse.ArgumentParser()
    parser.add_argument("--colocate", action="store_true")
    assert options("--update-weight-mode", "full", "--colocate", parser=parser) is not None


def test_hooks_are_found_by_path(work):
    (work / "mine.py").write_text("def push(args, directory, engines):\n    return 7\n")
    found = options(
        *DISK,
        "--update-weight-disk-dir",
        "/d",
        "--custom-delta-pre-push-path",
        f"{work}/mine.py:push",
        "--custom-delta-pre-read-path",
        "os.path.join",
    )
    assert found.pre_push(None, "", []) == 7
    assert found.pre_read("a", "b") == "a/b"


@pytest.mark.parametrize("engine", ["", "sglang-", "vllm-"])
def test_launch_lines_of_slime_mean_the_same(work, engine):
    found = settings(
        *DISK,
        "--update-weight-disk-dir",
        "/d",
        "--update-weight-delta-encoding",
        "xor",
        f"--{engine}update-weight-delta-chunk-bytes",
        str(2 << 30),
        f"--{engine}update-weight-delta-read-workers",
        "7",
        "--update-weight-delta-keep-files",
        "--update-weight-hf-checkpoint",
        "/models/m",
    )
    assert (found["receiver.chunk_size"], found["receiver.read_workers"]) == ("2GiB", "7")
    assert found["notify.cleanup"] == "false" and found["road.assets_dir"] == "/models/m"


def test_colocate_is_judged_by_the_mode_that_holds(work):
    (work / "full.yaml").write_text("mode: full\nroad: { kind: shared_fs, shared_fs: { dir: /a } }\n")
    (work / "delta.yaml").write_text("mode: delta\nroad: { kind: shared_fs, shared_fs: { dir: /a } }\n")
    assert settings("--update-weight-config", f"{work}/full.yaml", "--colocate")["mode"] == "full"
    for flags in (
        ("--update-weight-config", f"{work}/delta.yaml"),
        ("--update-weight-config", f"{work}/full.yaml", "--update-weight-mode", "delta"),
    ):
        with pytest.raises(megatron.MapError, match="--colocate"):
            settings(*flags, "--colocate")
    found = options("--custom-update-weight-post-write-path", "os.path.join", *DISK,
                    "--update-weight-disk-dir", "/d",
                    "--sglang-custom-pull-weights-pre-read-hook", "os.path.join")  # fmt: skip
    assert found.pre_push is found.pre_read is not None


def parsed(*flags):
    return megatron.add_arguments(argparse.ArgumentParser()).parse_args(flags)


@pytest.mark.parametrize(
    "flag, value, key",
    [
        ("--update-weight-delta-chunk-bytes", "65536", "receiver.chunk_size"),
        ("--vllm-update-weight-delta-read-workers", "2", "receiver.read_workers"),
        ("--custom-delta-pre-read-path", "os.path.join", "road.shared_fs.before_read"),
        ("--update-weight-local-checkpoint-dir", "/host/model", "receiver.checkpoint_dir"),
    ],
)
def test_a_flag_that_acts_on_rollouts_is_refused_by_a_trainer_with_the_key_to_set(
    work, flag, value, key
):
    args = parsed(*DISK, "--update-weight-disk-dir", f"{work}/road", flag, value)
    assert megatron.options_from(args) is not None  # a rollout accepts it
    with pytest.raises(megatron.MapError, match=f"acts on rollouts.*set {key}"):
        megatron.check_arguments(args)


def test_with_notified_engines_a_trainer_accepts_the_local_checkpoint_flag(work):
    (work / "c.yaml").write_text(
        f"road: {{ kind: shared_fs, shared_fs: {{ dir: {work}/road }}, layout: hf_delta }}\n"
        "engines: [{ url: 'http://127.0.0.1:1', action: pull_weights }]\n"
    )
    megatron.check_arguments(
        parsed("--update-weight-config", f"{work}/c.yaml",
               "--update-weight-local-checkpoint-dir", "/host/model")  # fmt: skip
    )


def test_a_trainers_missing_settings_are_reported_before_a_model_is_built(work):
    (work / "file").touch()
    (work / "model").mkdir()
    on = (*DISK, "--update-weight-disk-dir")
    for words, *flags in (
        ("not mounted", *on, f"{work}/none/road"),
        ("write to", *on, f"{work}/file"),
        ("model.config.json", *on, f"{work}/road", "--update-weight-hf-checkpoint", f"{work}/model"),
        ("no such directory", *on, f"{work}/road", "--update-weight-hf-checkpoint", f"{work}/none"),
        ("by MPI.*disk", "--update-weight-mode", "delta", "--update-weight-transport", "mpi_rma"),
        ("flush have whole", *on, f"{work}/road", "--update-weight-snapshot", "none"),
    ):
        args = parsed(*flags)
        with pytest.raises(megatron.MapError, match=words):
            megatron.check_arguments(args)
    megatron.check_arguments(parsed(*on, f"{work}/road"))
    megatron.check_arguments(parsed())
    assert not (work / "road").exists(), "the check makes nothing"

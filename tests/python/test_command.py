# SPDX-License-Identifier: Apache-2.0
"""The command for people and scripts: defaults, output, exit codes, no silent overwrite."""

import json
import re
import shutil
import sys

import numpy as np
import pytest

import foreign
from support import (
    DELTAS,
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
    with_bits,
    write_checkpoint,
)

COMMANDS = ("synth", "diff", "apply", "verify", "inspect", "bench")


@pytest.fixture
def chain(pair):
    """Three published versions; pair.steps has the tensors of versions 0 to 3."""
    pair.steps = [pair.old, pair.new]
    pair.paths = [pair.old_path, pair.new_path]
    for number in (2, 3):
        pair.steps.append(pair.step(pair.steps[-1]))
        pair.paths.append(write_checkpoint(pair.work / f"step{number}", pair.steps[-1]))
    pair.reports = [
        publish(pair.published, pair.paths[i], pair.paths[i + 1], *DELTAS[i]) for i in range(3)
    ]
    return pair


# --- help, version, usage ------------------------------------------------------------------------


def test_help_and_version():
    text = ok("--help")
    assert all(command in text for command in COMMANDS) and "Exit codes" in text
    assert re.match(r"driftless \d+\.\d+\.\d+\n", ok("--version"))
    for command in COMMANDS:
        text = ok(command, "--help")
        assert "--json" in text and "--threads" in text


@pytest.mark.parametrize("line", (
    [], ["frobnicate"], ["diff"], ["apply", "x"], ["verify"], ["inspect"], ["synth", "--out", "x"],
    ["verify", "x", "--frobnicate"], ["apply", "x", "--to", "y", "--verify", "some"],
    ["inspect", "x", "--threads", "0"], ["inspect", "x", "--threads", "many"],
    ["apply", "x", "--to", "y", "--wait", "-1"], ["apply", "x", "--to", "y", "--to-version", "-1"],
    ["diff", "x", "y", "--out", "z", "--version", "1.5"],
    ["diff", "x", "y", "--out", "z", "--version", "-1"],
    ["verify", "x", "--like", "y", "--manifest", "z"], ["synth", "--out", "x", "--params", "0"],
))  # fmt: skip
def test_wrong_usage(line, work):
    result = run(*line, cwd=work)
    assert result.returncode == 2 and result.stderr != ""
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("options", (
    ["--layout", "zip"], ["--encoding", "gzip"], ["--checksum", "md5"],
    ["--layout", "flush", "--encoding", "xor"], ["--layout", "hf_delta", "--encoding", "deltas"],
    ["--version", "0"], ["--version", "2", "--base", "2"], ["--base", "5"],
))  # fmt: skip
def test_wrong_options_of_diff(pair, options):
    result = run("diff", pair.old_path, pair.new_path, "--out", pair.published, *options)
    assert_refusal(result, 2, options[1])
    assert not pair.published.exists() or list(pair.published.glob("*weight_v*")) == []


def test_one_is_singular_and_a_weight_is_a_weight(work, rng):
    """The terms in the command's text output: docs/develop/glossary.md."""
    old = {"t.weight": random_tensor(rng, "BF16", (64,))}
    a, b = (write_checkpoint(work / n, t) for n, t in (("a", old), ("b", {"t.weight": changed(rng, old["t.weight"], positions=[3])})))
    texts = [
        run(*line).stdout
        for line in (
            ("diff", a, b, "--out", work / "v"),
            ("apply", work / "v", "--to", copy_checkpoint(a, work / "c")),
            ("verify", work / "c", "--like", a),
            ("verify", work / "c", "--like", b),
            ("compare", a, b),
            ("report", work / "v", "--base", a, "--out", work / "r.html"),
            ("status", work / "v"),
            ("doctor", "--only", "road", "--set", "road.kind=shared_fs", "--set", f"road.shared_fs.dir={work}/v"),
        )
    ]
    texts.append((work / "r.html").read_text())
    assert "1 weight in 1 tensor," in texts[1] and "(1 weight in 1 tensor different)" in texts[2]
    for text in texts:
        assert text and not re.search(r"(?<![\d.])1 (version|tensor|weight|unit|step|call|rollout|warning)s\b", text), text
        assert not re.search(r"\b(units?|elements?|steps?) (in|of|changed)\b", text), text


# --- synth ---------------------------------------------------------------------------------------


def test_synth_writes_a_qwen3_and_its_successors(work):
    report = ok_json("synth", "--out", work / "run", "--params", "600000", "--steps", "2")
    names = sorted(path.name for path in (work / "run").iterdir())
    assert names == ["step_000000", "step_000001", "step_000002"]
    steps = [read_checkpoint(work / f"run/step_{i:06d}") for i in range(3)]
    assert {"model.embed_tokens.weight", "model.norm.weight",
            "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.q_norm.weight",
            "model.layers.0.mlp.gate_proj.weight",
            "model.layers.0.input_layernorm.weight"} <= set(steps[0])  # fmt: skip
    assert all(tensor.dtype == "BF16" for tensor in steps[0].values())
    params = sum(len(tensor.words()) for tensor in steps[0].values())
    assert params == report["params"] and 400_000 < params < 900_000
    for before, after, density in zip(steps, steps[1:], report["density"]):
        different = sum(np.count_nonzero(before[n].words() != after[n].words()) for n in before)
        assert different / params == pytest.approx(density)
        assert 0.005 <= density <= 0.03
    config = json.loads((work / "run/step_000001/config.json").read_text())
    assert config["model_type"] == "qwen3"


def test_synth_is_deterministic(work):
    line = ("synth", "--params", "300000", "--steps", "1", "--seed", "5")
    ok(*line, "--out", work / "a", "--threads", "1")
    ok(*line, "--out", work / "b", "--threads", "2")
    ok(*line[:-1], "6", "--out", work / "c")
    assert files_of(work / "a") == files_of(work / "b") != files_of(work / "c")


def test_synth_splits_into_files(work):
    line = ("synth", "--params", "300000", "--steps", "0")
    ok(*line, "--out", work / "one")
    ok(*line, "--out", work / "many", "--shard-bytes", "100000")
    assert len(list((work / "many/step_000000").glob("*.safetensors"))) > 2
    one, many = (read_checkpoint(work / name / "step_000000") for name in ("one", "many"))
    assert one == many


def test_synth_overwrites_nothing(work):
    (work / "run").mkdir()
    (work / "run/note").write_text("mine")
    line = ("synth", "--out", work / "run", "--params", "300000")
    assert_refusal(run(*line), 7, "already_exists", "choose another")
    assert files_of(work / "run") == {"note": b"mine"}
    (work / "run/note").unlink()
    ok(*line, "--steps", "0")


# --- diff ----------------------------------------------------------------------------------------


def test_the_defaults_of_diff(chain):
    for number, report in enumerate(chain.reports, 1):
        assert (report["version"], report["base_version"]) == (number, number - 1)
        assert report["path"] == str(foreign.version_path(chain.published, number))
    assert len({report["run"] for report in chain.reports}) == 1, "the run is inherited"
    other = publish(chain.work / "other", chain.old_path, chain.new_path)
    assert other["run"] != chain.reports[0]["run"], "another directory begins another run"
    assert (other["layout"], other["encoding"]) == ("hf_delta", "xor")
    flush = publish(chain.work / "flush", chain.old_path, chain.new_path, "flush")
    assert flush["encoding"] == "deltas_zstd" and flush["checksum"] == "xxh3-128"


def test_diff_prints_its_figures(pair):
    report = publish(pair.published, pair.old_path, pair.new_path)
    units = sum(len(tensor.words()) for tensor in pair.old.values())
    different = {n: np.count_nonzero(pair.old[n].words() != pair.new[n].words()) for n in pair.old}
    assert report["total_units"] == units
    assert report["changed_units"] == sum(different.values())
    assert report["changed_tensors"] == sum(count > 0 for count in different.values())
    assert report["density"] == pytest.approx(report["changed_units"] / units)
    assert report["full_bytes"] == sum(len(tensor.data) for tensor in pair.old.values())
    files = files_of(pair.published / "weight_v000001")
    assert report["total_bytes"] == sum(len(data) for data in files.values())
    manifest = json.loads(files["manifest.json"])
    for key in ("run", "version", "base_version", "digest", "changed_units", "payload_bytes"):
        assert manifest[key] == report[key]


def test_diff_overwrites_nothing(chain):
    before = files_of(chain.published)
    line = ("diff", chain.old_path, chain.new_path, "--out", chain.published, "--version", "1")
    assert_refusal(run(*line), 7, "already_exists", "choose another")
    assert files_of(chain.published) == before


def test_diff_refuses_an_old_that_is_not_the_base(chain):
    """The receivers hold version 3: a delta from another base would not fit."""
    before = files_of(chain.published)
    line = ("diff", chain.paths[1], chain.paths[2], "--out", chain.published)
    assert_refusal(run(*line), 4, "wrong_base", str(chain.paths[1]))
    assert files_of(chain.published) == before


def test_version_and_base_can_be_chosen(chain):
    """A shortcut from 1 to 7 joins the run; a checkpoint at version 1 takes it."""
    report = publish(chain.published, chain.paths[1], chain.paths[3], "hf_delta", "overwrite",
                     "--version", "7", "--base", "1")  # fmt: skip
    assert (report["version"], report["base_version"]) == (7, 1)
    assert report["run"] == chain.reports[0]["run"]
    target = chain.checkpoint()
    applied = ok_json("apply", chain.published, "--to", target)["applied"]
    assert [v["version"] for v in applied] == [1, 7]
    assert read_checkpoint(target) == chain.steps[3] and state_version(target) == 7
    following = publish(chain.published, chain.paths[3], chain.paths[0])
    assert (following["version"], following["base_version"]) == (8, 7)


def test_checkpoints_are_read_as_files_too(pair):
    one = write_checkpoint(pair.work / "one", pair.old) / "model.safetensors"
    publish(pair.published, one, pair.new_path)
    assert foreign.read_hf_delta(pair.published / "weight_v000001", pair.old) == pair.new


def test_a_checkpoint_that_followed_the_run_publishes_in_it(chain):
    """A trainer that restarts elsewhere: the state of the old checkpoint names the run."""
    target = chain.checkpoint()
    ok("apply", chain.published, "--to", target)
    moved = chain.work / "moved"
    report = publish(moved, target, chain.old_path, "hf_delta", "xor", "--version", "4")
    assert report["run"] == chain.reports[0]["run"]
    ok("apply", moved, "--to", target)
    assert read_checkpoint(target) == chain.old


@pytest.mark.parametrize("layout,encoding", [*DELTAS, ("hf_delta", "full")])
def test_the_number_of_threads_changes_no_payload(work, rng, layout, encoding):
    old = {f"t{i}": random_tensor(rng, "BF16", (200 + i, 999)) for i in range(6)}
    new = {name: changed(rng, tensor) for name, tensor in old.items()}
    write_checkpoint(work / "old", old)
    write_checkpoint(work / "new", new)
    payloads = []
    for threads in ("1", "2", "7"):
        out = work / threads
        publish(out, work / "old", work / "new", layout, encoding, "--threads", threads)
        files = files_of(out / "weight_v000001")
        names = set(files) - {"manifest.json", "DONE"}
        # Skips the header of a frame, which has the run's id.
        payloads.append({n: files[n][128 * n.endswith(".frame") :] for n in names})
    assert payloads[0] == payloads[1] == payloads[2]


# --- apply ---------------------------------------------------------------------------------------


def test_apply_goes_to_the_newest_and_then_does_nothing(chain):
    target = chain.checkpoint()
    report = ok_json("apply", chain.published, "--to", target)
    assert (report["from_version"], report["version"], report["recovered"]) == (0, 3, False)
    for applied, published in zip(report["applied"], chain.reports):
        for key in ("version", "base_version", "encoding", "changed_units", "changed_tensors"):
            assert applied[key] == published[key]
    assert read_checkpoint(target) == chain.steps[3]
    before = {file: file.stat().st_mtime_ns for file in target.rglob("*")}
    again = ok_json("apply", chain.published, "--to", target)
    assert (again["from_version"], again["version"], again["applied"]) == (3, 3, [])
    assert {file: file.stat().st_mtime_ns for file in target.rglob("*")} == before


def test_apply_stops_at_the_requested_version(chain):
    target = chain.checkpoint()
    for version in (2, 2, 3):
        text = ok("apply", chain.published, "--to", target, "--to-version", str(version))
        assert f"at version {version}" in text
        assert read_checkpoint(target) == chain.steps[version]
        assert state_version(target) == version


def test_a_refused_version_in_the_middle_leaves_those_before_it(chain):
    """Each version is applied completely or not at all."""
    shard = chain.published / "weight_v000003/rank0000_flush000000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\xa5")
    target = chain.checkpoint()
    assert_refusal(run("apply", chain.published, "--to", target), 4, shard.name)
    version = state_version(target)
    assert read_checkpoint(target) == chain.steps[version]


def test_apply_starts_from_a_full_version_if_the_chain_is_broken(chain):
    publish(chain.published, chain.paths[3], chain.paths[1], "hf_delta", "full")
    publish(chain.published, chain.paths[1], chain.paths[2])
    for version in (1, 2, 3):
        shutil.rmtree(foreign.version_path(chain.published, version))
    target = chain.checkpoint()
    report = ok_json("apply", chain.published, "--to", target)
    assert [v["version"] for v in report["applied"]] == [4, 5]
    assert read_checkpoint(target) == chain.steps[2]


# --- verify --------------------------------------------------------------------------------------


def test_verify_compares_a_checkpoint_with_its_own_state(chain):
    target = chain.checkpoint()
    assert_refusal(run("verify", target), 2, "--like or --manifest")
    ok("apply", chain.published, "--to", target)
    answer = ok_json("verify", target)
    assert answer["identical"] is True
    assert answer["digest"] == answer["expected_digest"] == chain.reports[2]["digest"]
    assert "identical" in ok("verify", target)


def test_verify_compares_a_checkpoint_with_a_manifest(chain):
    for version in (1, 2, 3):
        path = foreign.version_path(chain.published, version)
        for manifest in (path, path / "manifest.json"):
            ok("verify", chain.paths[version], "--manifest", manifest)
            result = run("verify", chain.paths[version - 1], "--manifest", manifest, "--json")
            assert result.returncode == 1 and json.loads(result.stdout)["identical"] is False
            before, after = chain.steps[version - 1], chain.steps[version]
            assert json.loads(result.stdout)["tensor"] == min(
                n for n in after if before[n].data != after[n].data
            )
            assert "different: tensor '" in run(
                "verify", chain.paths[version - 1], "--manifest", manifest
            ).stdout


def test_verify_names_the_first_difference(work, rng):
    old = {"a": random_tensor(rng, "BF16", (10,)), "b": random_tensor(rng, "BF16", (5, 7)),
           "c": random_tensor(rng, "F32", (4,))}  # fmt: skip
    old["b"] = with_bits(old["b"], *range(0x3F80, 0x3F80 + 35))
    words = old["b"].words().copy()
    words[[17, 30]] = (0x4000, 0xBF80)  # 2 and -1 instead of other numbers
    new = {**old, "b": type(old["b"])("BF16", (5, 7), words.tobytes())}
    new["c"] = changed(rng, new["c"], positions=[1])
    one, two = write_checkpoint(work / "one", old), write_checkpoint(work / "two", new, shards=2)
    result = run("verify", one, "--like", two)
    assert result.returncode == 1 and result.stdout.count("\n") == 1
    assert re.search(r"'b' at position 17: .*0x3f91 \(1.1328125\) .*0x4000 \(2\)", result.stdout)
    found = json.loads(run("verify", one, "--like", two, "--json").stdout)
    assert (found["tensor"], found["position"]) == ("b", 17)
    assert found["value"].startswith("0x3f91") and found["other_value"].startswith("0x4000")
    assert (found["different_units"], found["different_tensors"]) == (3, 2)
    assert ok_json("verify", one, "--like", one)["identical"] is True


def test_verify_distinguishes_zeros_and_nans(work, rng):
    zeros = {"t": with_bits(random_tensor(rng, "F32", (9,)), *[0] * 9)}
    one = write_checkpoint(work / "one", zeros)
    for number, bits in enumerate((0x80000000, 0x7FC00000, 0x7FC00001, 1)):
        tensors = {"t": with_bits(zeros["t"], 0, 0, bits)}
        two = write_checkpoint(work / f"two{number}", tensors)
        result = run("verify", one, "--like", two)
        assert result.returncode == 1 and f"0x{bits:08x}" in result.stdout
        same = copy_checkpoint(two, work / f"same{number}")
        assert run("verify", same, "--like", two).returncode == 0


def test_verify_of_other_tensors(pair):
    other = {n: t for n, t in pair.old.items() if n != "norm.weight"}
    path = write_checkpoint(pair.work / "other", other)
    result = run("verify", pair.old_path, "--like", path)
    assert result.returncode == 1 and "norm.weight" in result.stdout


# --- demo and bench ------------------------------------------------------------------------------


def test_demo_shows_every_encoding(work):
    line = ("demo", "--params", "100000", "--steps", "1", "--dir")
    rows = ok_json(*line, work / "a")["rows"]
    assert {(row["layout"], row["encoding"]) for row in rows} == set(DELTAS)
    assert all(row["identical"] for row in rows)
    text = ok(*line, work / "b")
    assert all(encoding in text for _, encoding in DELTAS)
    assert_refusal(run(*line, work / "b"), 7, "already_exists")


def test_bench_names_its_ratios():
    size = ("--bytes", str(1 << 20), "--repeats", "1")
    numbers = ok_json("bench", *size, "--python", sys.executable)
    for name in ("diff_vs_read", "diff_deltas_vs_read", "indices_vs_numpy", "deltas_vs_numpy",
                 "xor_vs_numpy", "scatter_vs_numpy"):  # fmt: skip
        assert numbers[name] > 0


def test_an_unknown_word_is_named(work):
    for line in (["frobnicate"], ["frobnicate", "--config", "x"], ["config", "frobnicate"]):
        assert_refusal(run(*line), 2, "'frobnicate'", "check" if line[0] == "config" else "trainer")

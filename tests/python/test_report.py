# SPDX-License-Identifier: Apache-2.0
"""`driftless report` replays a run and writes one page about it. Its figures match the versions, it
names what it cannot read, and its recommendation is a valid configuration."""

import itertools
import json
import re
import shutil
import statistics

import foreign
import jobs
import pytest
from jobs import Files
from support import DELTAS, assert_refusal, changed, files_of, ok, ok_json, publish, read_checkpoint, run
from support import write_checkpoint
from test_compare import Page

STEPS = 4
RUN = "ab" * 16


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """Checkpoints with the changes of RL."""
    path = tmp_path_factory.mktemp("run")
    ok("synth", "--out", path, "--params", 150_000, "--steps", STEPS, "--seed", 3)
    return [path / f"step_{step:06d}" for step in range(STEPS + 1)]


def published(out, steps, layout, encoding):
    return [publish(out, a, b, layout, encoding) for a, b in zip(steps, steps[1:], strict=False)]


def report(work, *arguments, noted=False, **options):
    """The command's JSON; it also writes the page."""
    result = run("report", *arguments, "--out", work / "r.html", "--force", "--json", **options)
    assert result.returncode == 0, result.stderr
    assert noted or result.stderr == "", result.stderr
    page = Page(work / "r.html")
    page.assert_closed()
    return json.loads(result.stdout), page


def bytes_by_encoding(found):
    return {row["encoding"]: row.get("bytes") for row in found["encodings"]}


def test_every_layout_costs_the_same_as_diff(work, steps):
    """Whatever the encoding of a run, its report has the bytes of every encoding."""
    expected = {}
    for layout, encoding in DELTAS:
        reports = published(work / encoding, steps, layout, encoding)
        expected[encoding] = sum(r["payload_bytes"] for r in reports)
        units = sum(r["changed_units"] for r in reports)
    for _, encoding in DELTAS:
        before = files_of(work / encoding)
        found, page = report(work, work / encoding, "--base", steps[0])
        assert files_of(work / encoding) == before
        assert (found["versions"], found["replayed"], found["left_out"]) == (STEPS, STEPS, [])
        assert bytes_by_encoding(found) == expected, encoding
        for row in found["encodings"]:
            assert row["bits_per_changed"] == pytest.approx(8 * row["bytes"] / units)
            assert str(row["bytes"]) in page.text
        assert f"model.layers.0, version {STEPS}: " in page.text


def test_the_tensors_that_change_most(work, steps):
    """Sorted, with the share of each that changes in a version."""
    published(work / "v", steps, "flush", "deltas")
    report(work, work / "v", "--base", steps[0])
    rows = re.findall(
        r'<tr><td class="num">(\d+)</td><td class="num">([\d.]+)</td><td class="num">\d+</td>'
        r'<td class="num">(\d+)</td><td>([^<]+)</td>', (work / "r.html").read_text())  # fmt: skip
    changed = {}
    for a, b in itertools.pairwise(read_checkpoint(step) for step in steps):
        for name, tensor in a.items():
            count = int((tensor.words() != b[name].words()).sum())
            changed[name] = changed.get(name, 0) + count
    expected = sorted((-count, name) for name, count in changed.items() if count)[:30]
    assert [(-int(count), name) for count, _, _, name in rows] == expected
    for count, share, weights, _ in rows:
        assert share == f"{100 * int(count) / (int(weights) * STEPS):.3f}"


@pytest.mark.parametrize("encoding", ["deltas", "compact"])
def test_without_a_base_figures_that_need_old_values_are_left_out(work, steps, encoding):
    layout = "flush" if encoding == "deltas" else "frames"
    published(work / "v", steps, layout, encoding)
    found, page = report(work, work / "v", noted=True)
    assert found["encodings"] == [] and any("--base" in note for note in found["notes"])
    assert "--base" in page.text and found["replayed"] == 0


def test_the_recommended_settings_are_a_configuration(work, steps):
    for layout, encoding in (("flush", "deltas"), ("hf_delta", "xor"), ("frames", "compact")):
        published(work / encoding, steps, layout, encoding)
        found, page = report(work, work / encoding, "--base", steps[0])
        assert found["yaml"] in page.text
        config = work / f"{encoding}.yaml"
        config.write_text(found["yaml"])
        settings = ok_json("config", "check", config)
        text = json.dumps(settings)
        assert str(work / encoding) in text
        keys = {row["key"]: row for row in found["recommended"]}
        assert set(keys) == {
            "encoding",
            "anchors.every",
            "keep_versions",
            "full_above_density",
            "buffer_size",
        }
        assert all(any(c.isdigit() for c in row["why"]) for row in keys.values())


@pytest.fixture
def finished(work, rng):
    """An ended run over shared_fs, with an anchor and metrics of both sides."""
    history = jobs.make_run(work / "replay", rng, STEPS)
    job = Files(work / "job")
    metrics = work / "metrics"
    metrics.mkdir()
    job.set(**{"metrics.file": metrics / "{role}_{rank}.jsonl", "anchors.first": "true"})
    job.set(keep_versions="0")
    trainer = job.start_trainer("--replay", work / "replay", "--rollouts", 1)
    rollout = job.start_rollout("--base", work / "replay/step_000000")
    for process in (rollout, trainer):
        result = jobs.finish(process)
        assert result.returncode == 0, result.stderr
    job.metrics = sorted(metrics.iterdir())
    job.history, job.base = history, work / "replay/step_000000"
    return job


def test_a_run_over_a_road_with_its_metrics(work, finished):
    before = files_of(finished.dir)
    found, page = report(work, finished.dir, "--metrics", *finished.metrics)
    assert files_of(finished.dir) == before  # the report registers and writes nothing
    assert (found["versions"], found["replayed"]) == (STEPS, STEPS)  # replayed from its anchor
    changes = sum(
        int((tensor.words() != after[name].words()).sum())
        for old, after in zip(finished.history, finished.history[1:], strict=False)
        for name, tensor in old.items()
    )
    for row in found["encodings"]:
        assert row["bits_per_changed"] == pytest.approx(8 * row["bytes"] / changes)
    with_base, _ = report(work, finished.dir, "--base", finished.base)
    assert bytes_by_encoding(with_base) == bytes_by_encoding(found)
    lines = [json.loads(line) for path in finished.metrics for line in path.open()]
    mine = [line for line in lines if "event" not in line and line["role"] == "trainer"]
    assert found["run"] == mine[0]["run"]
    median = statistics.median_high(line["process_ms"] for line in mine)
    assert "process" in page.text and f"{median:.2f}" in page.text
    assert "assumed" not in json.dumps(found["recommended"])  # the metrics have fetch times


def test_damaged_versions_are_named(work, steps, finished):
    published(work / "v", steps, "flush", "deltas")
    file = next((work / "v/weight_v000003").glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    (work / "v/weight_v000002/DONE").unlink()
    found, page = report(work, work / "v", "--base", steps[0], noted=True)
    named = {row["version"]: row for row in found["left_out"]}
    assert set(named) == {2, 3} and named[3]["code"] == "corrupt"
    assert found["replayed"] == 1
    assert "version 2: incomplete" in page.text and "version 3: corrupt" in page.text
    (finished.version_dir(2) / "DONE").unlink()
    found, page = report(work, finished.dir, noted=True)
    assert 2 in {row["version"] for row in found["left_out"]} and found["replayed"] == 1
    assert "version 2: " in page.text


def test_foreign_versions_are_read_with_a_base(work, pair):
    foreign.write_hf_delta(pair.work / "theirs", 1, pair.old, pair.new)
    found, _ = report(work, pair.work / "theirs", "--base", pair.old_path)
    ours = publish(pair.published, pair.old_path, pair.new_path, "hf_delta", "xor")
    assert found["replayed"] == 1 and bytes_by_encoding(found)["xor"] == ours["payload_bytes"]


def test_a_wrong_base_is_refused(work, pair, finished):
    other = write_checkpoint(work / "o", finished.history[1])
    line = ["report", finished.dir, "--out", work / "r.html"]
    assert_refusal(run(*line, "--base", other), 4, "wrong_base")
    assert_refusal(run(*line, "--base", pair.old_path), 4, "wrong_layout")
    assert not (work / "r.html").exists()


def engine_line(version, goal, status="ok", pause=5.0, **more):
    return {
        "role": "agent", "rank": 0, "host": "h", "time": "2026-01-01T00:00:00.000Z", "run": RUN,
        "monotonic_ms": 1.0, "engine": "http://<b>e</b>:1", "kind": "vllm", "version": version,
        "goal": goal, "status": status, "attempts": 1, "stage_ms": 1.0, "pause_ms": pause,
        "apply_ms": 1.0, "resume_ms": 1.0, **more,
    }  # fmt: skip


def test_metrics_alone(work):
    trainer = {"role": "trainer", "rank": 0, "run": RUN, "encoding": "deltas", "density": 0.01}
    trainer |= {"changed_units": 100, "full_bytes": 20000, "wire_bytes": 400, "delta_bytes": 390}
    lines = [trainer | {"version": v, "process_ms": 10.0 * v, "total_ms": 9.0} for v in (1, 2, 3)]
    lines += [engine_line(1, 1), engine_line(1, 3, "io", error="x"), engine_line(3, 3, pause=50.0)]
    lines += [trainer | {"version": 9, "run": "cd" * 16}]
    path = work / "m.jsonl"
    text = "\n".join(json.dumps(line) for line in lines)
    path.write_text(text + "\nnot json\n" + "[" * 5000 + '\n{"role": 1}\n')
    found, page = report(work, "--metrics", path, noted=True)
    assert found["run"] == RUN and found["versions"] == 0
    again = run("report", "--metrics", path, "--out", work / "again.html")
    assert f"run {RUN}, 3 versions in the metrics" in again.stdout
    assert any("3 of 10 lines without a record" in note for note in found["notes"])
    assert any("line 8" in note for note in found["notes"])
    assert "1 metrics record of other runs" in found["notes"]
    assert "http://<b>e</b>:1" in page.text and "b" not in page.tags
    assert all(text in page.text for text in ("1 io", "50.00", "20.00"))


def test_an_incomplete_last_line_is_ignored(work):
    line = json.dumps({"role": "trainer", "rank": 0, "run": RUN, "version": 1, "density": 0.01,
                       "changed_units": 1, "delta_bytes": 3})  # fmt: skip
    (work / "m.jsonl").write_text(line + "\n" + line[:40])
    found, _ = report(work, "--metrics", work / "m.jsonl")
    assert found["run"] == RUN and found["notes"] == []


def test_wrong_input_is_refused(work, steps):
    out = work / "r.html"
    assert_refusal(run("report", "--out", out), 2, "RUN", "--metrics")
    assert_refusal(run("report", work / "nothing", "--out", out), 3, "not_found")
    assert_refusal(run("report", steps[0], "--out", out), 3, "no versions")
    published(work / "v", steps[:2], "flush", "deltas")
    out.write_text("mine")
    line = ["report", work / "v", "--base", steps[0], "--out", out]
    assert_refusal(run(*line), 7, "already_exists", "--force")
    assert out.read_text() == "mine"
    ok(*line, "--force")
    shutil.rmtree(work / "v/weight_v000001")
    (work / "v/weight_v000001").mkdir()
    result = run(*line, "--force")
    assert_refusal(result, 3, "version 1")


def test_markup_in_names_is_escaped(work, pair):
    names = {n: f"<i>{n}</i>.0.<script>" for n in pair.old}
    old = {names[n]: t for n, t in pair.old.items()}
    new = {n: changed(pair.rng, t) for n, t in old.items()}
    a, b = write_checkpoint(work / "a", old), write_checkpoint(work / "b", new)
    publish(work / "<i>v", a, b, "flush", "deltas")
    _, page = report(work, work / "<i>v", "--base", a)
    assert "i" not in page.tags and "<i>norm.weight</i>.0.<script>" in page.text

# SPDX-License-Identifier: Apache-2.0
"""`driftless inspect` describes a file or directory, and --json has the same facts as the text."""

import json

import pytest

import foreign
from jobs import Files, make_run
from support import (
    DELTAS,
    assert_refusal,
    ok,
    ok_json,
    publish,
    run,
    write_checkpoint,
)


@pytest.fixture
def seen(pair):
    """Everything that inspect can describe, as {kind: path}."""
    publish(pair.published, pair.old_path, pair.new_path)
    publish(pair.published, pair.new_path, pair.old_path, "flush", "deltas")
    theirs = foreign.write_hf_delta(pair.work / "theirs", 1, pair.old, pair.new, shards=2)
    target = pair.checkpoint()
    ok("apply", pair.published, "--to", target)
    compressed = pair.work / "compressed"
    publish(compressed, pair.old_path, pair.new_path, "flush", "deltas_zstd")
    return {
        "versions": pair.published,
        "version": pair.published / "weight_v000001",
        "version flush": pair.published / "weight_v000002",
        "version theirs": theirs,
        "manifest": pair.published / "weight_v000001/manifest.json",
        "safetensors": pair.published / "weight_v000001/model-00000-of-00001.safetensors",
        "flush": pair.published / "weight_v000002/rank0000_flush000000.safetensors",
        "flush zstd": compressed / "weight_v000001/rank0000_flush000000.safetensors",
        "checkpoint": target,
        "checkpoint fresh": pair.old_path,
    }


def test_everything_can_be_inspected(seen):
    for kind, path in seen.items():
        facts = ok_json("inspect", path)
        text = ok("inspect", path)
        assert facts["kind"] == kind.split()[0], path
        assert facts["kind"] in text.splitlines()[0]
        for name, value in facts.items():
            if not isinstance(value, list) and name != "kind" and len(str(value)) < 200:
                assert f"  {name}: {value}\n" in text, f"{path}: {name}"
        for row in facts["rows"]:
            assert all(str(cell) in text for cell in row.values() if cell is not None)


def test_the_description_of_versions(seen):
    facts = ok_json("inspect", seen["versions"])
    assert facts["newest"] == 2 and [r["version"] for r in facts["rows"]] == [1, 2]
    facts = ok_json("inspect", seen["version"])
    assert (facts["version"], facts["base_version"], facts["encoding"]) == (1, 0, "xor")
    assert {row["file"] for row in facts["rows"]} >= {"model-00000-of-00001.safetensors"}
    facts = ok_json("inspect", seen["version theirs"])
    assert "another tool" in facts["manifest"] and len(facts["rows"]) == 2


def test_the_description_of_a_checkpoint(seen, pair):
    facts = ok_json("inspect", seen["checkpoint"])
    assert facts["version"] == 2 and facts["tensors"] == len(pair.old)
    rows = {row["tensor"]: row for row in facts["rows"]}
    for name, tensor in pair.old.items():
        assert rows[name]["dtype"] == tensor.dtype and rows[name]["bytes"] == len(tensor.data)
        assert rows[name]["shape"] == list(tensor.shape)
    assert ok_json("inspect", seen["checkpoint fresh"])["version"] == 0


def test_the_bytes_of_a_file_are_those_on_disk(seen):
    """Also for a compressed file, which adds its decoded size."""
    path = seen["flush zstd"]
    data = path.read_bytes()
    facts = ok_json("inspect", path)
    assert int(facts["bytes"]) == len(data)
    assert int(facts["decoded_bytes"]) == len(foreign.unzstd(data)) != len(data)
    plain = ok_json("inspect", seen["flush"])
    assert int(plain["bytes"]) == seen["flush"].stat().st_size and "decoded_bytes" not in plain
    for row in ok_json("inspect", seen["version theirs"])["rows"]:
        assert int(row["bytes"]) == (seen["version theirs"] / row["file"]).stat().st_size


def payload_on_disk(version):
    """The files that hold changes, without index, manifest and DONE."""
    return sum(f.stat().st_size for f in version.iterdir() if f.suffix in (".safetensors", ".frame"))


@pytest.mark.parametrize(("layout", "encoding"), DELTAS)
def test_the_payload_is_one_number(pair, layout, encoding):
    made = publish(pair.published, pair.old_path, pair.new_path, layout, encoding)
    expected = payload_on_disk(pair.published / "weight_v000001")
    bits = 8 * expected / made["changed_units"]
    costs = ok_json("compare", pair.old_path, pair.new_path)["encodings"]
    (cost,) = (row for row in costs if row["encoding"] == encoding)
    target = pair.checkpoint()
    (applied,) = ok_json("apply", pair.published, "--to", target)["applied"]
    (seen,) = ok_json("status", pair.published)["versions"]
    found = {
        "diff": made["payload_bytes"],
        "compare": cost["bytes"],
        "inspect": ok_json("inspect", pair.published / "weight_v000001")["payload_bytes"],
        "inspect, all versions": ok_json("inspect", pair.published)["rows"][0]["bytes"],
        "apply": applied["payload_bytes"],
        "status": seen["delta_bytes"],
    }
    assert found == dict.fromkeys(found, expected)
    assert made["bits_per_changed"] == cost["bits_per_changed"] == pytest.approx(bits)
    # As text, for another directory: the version's figures are the same.
    again = pair.work / "again"
    line = ("diff", pair.old_path, pair.new_path, "--out", again, "--layout", layout, "--encoding", encoding)
    assert f"{bits:.2f} bits per change" in ok(*line)
    assert f" {bits:.2f} " in ok("status", again) and f" {bits:.2f} " in ok("compare", pair.old_path, pair.new_path)


@pytest.mark.parametrize(("layout", "encoding"), [("frames", "deltas_zstd"), ("flush", "deltas_zstd"),
                                                  ("frames", "compact"), ("hf_delta", "xor")])  # fmt: skip
def test_the_payload_of_a_trainers_versions(work, rng, layout, encoding):
    make_run(work / "run", rng, 1)
    road = "hf_delta" if layout == "hf_delta" else "flush"
    metrics = {"metrics.file": work / "metrics.jsonl", "road.layout": layout, "encoding": encoding}
    job = Files(work, road, **metrics)
    ok(*job.trainer("--replay", work / "run"))
    version = job.version_dir(1)
    expected = payload_on_disk(version)
    record = json.loads((work / "metrics.jsonl").read_text().splitlines()[0])
    (seen,) = (v for v in ok_json("status", job.dir)["versions"] if v["version"] == 1)
    found = {
        "manifest": json.loads((version / "manifest.json").read_text())["payload_bytes"],
        "inspect": ok_json("inspect", version)["payload_bytes"],
        "record": record["delta_bytes"],
        "status": seen["delta_bytes"],
    }
    assert found == dict.fromkeys(found, expected)


def test_damage_among_versions_is_shown_in_its_row(seen):
    (seen["version"] / "DONE").unlink()
    rows = ok_json("inspect", seen["versions"])["rows"]
    assert "incomplete" in rows[0]["run or error"] and "incomplete" not in rows[1]["run or error"]
    assert_refusal(run("inspect", seen["version"]), 3, "incomplete")


def test_other_files_are_refused(work):
    (work / "noise").write_bytes(b"\x93NUMPY" + bytes(100))
    (work / "empty").write_bytes(b"")
    (work / "nothing").mkdir()
    (work / "other.json").write_text("{}")
    assert_refusal(run("inspect", work / "noise"), 4)
    assert_refusal(run("inspect", work / "empty"), 4)
    assert_refusal(run("inspect", work / "other.json"), 4)
    assert_refusal(run("inspect", work / "nothing"), 3)
    assert_refusal(run("inspect", work / "absent"), 3, "not_found")


def test_failures_are_json_too(work, pair):
    for line, code in [
        (("inspect", work / "absent"), "not_found"),
        (("verify", work / "absent"), "not_found"),
        (("apply", work / "absent", "--to", pair.old_path), "not_found"),
        (("diff", pair.old_path, work / "absent", "--out", work / "out"), "not_found"),
        (("synth", "--out", pair.old_path, "--params", "300000"), "already_exists"),
    ]:
        result = run(*line, "--json")
        answer = json.loads(result.stdout)
        assert answer["error"]["code"] == code
        assert answer["error"]["message"] in result.stderr
        assert result.returncode == {"not_found": 3, "already_exists": 7}[code]


def test_control_characters_in_names_are_escaped(work, rng, pair):
    """They do not reach the terminal."""
    tensors = dict(pair.old)
    tensors["evil\n\x1b[2Jname"] = tensors.pop("norm.weight")
    path = write_checkpoint(work / "evil", tensors)
    result = run("inspect", path)
    assert "\x1b" not in result.stdout + result.stderr
    result = run("verify", pair.old_path, "--like", path)
    assert result.returncode != 0 and "\x1b" not in result.stdout + result.stderr

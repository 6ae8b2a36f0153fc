# SPDX-License-Identifier: Apache-2.0
"""`driftless plan`: its output, its refusals, and the agreement of its page and of the numbers page
with it."""

import json
import re
import sys

import pytest
from support import COMMAND, REPOSITORY, assert_refusal, ok, ok_json, run

sys.path.insert(0, str(REPOSITORY / "scripts"))
import plan_tables  # noqa: E402

PAGE = REPOSITORY / "docs/operate/plan.md"
NUMBERS = REPOSITORY / "docs/operate/numbers.md"
MODELS = REPOSITORY / "tests/python/models"
QWEN3_8B = ("--model", MODELS / "qwen3_8b.json")


def one(*arguments):
    (plan,) = ok_json("plan", *arguments)["plans"]
    return plan


def test_the_page_has_the_tables_of_the_command():
    page = PAGE.read_text()
    for table in plan_tables.tables(COMMAND):
        assert table in page, "run: scripts/plan_tables.py"


def test_every_figure_names_its_row():
    headings = {line.lstrip("# ") for line in NUMBERS.read_text().splitlines() if line[:1] == "#"}
    for device in ("gpu", "cpu"):
        figures = ok_json("plan", *QWEN3_8B, "--device", device)["figures"]
        assert len(figures) > 30
        for name, figure in figures.items():
            polled = name.startswith("wait.")
            assert polled or figure["source"] in headings, (name, figure)


def test_phases_add_up_and_one_is_best():
    found = ok_json("plan", *QWEN3_8B, "--snapshot", "device", "--engines", 4)
    assert found["predicted"] is True and found["weights"] == 8_190_735_360
    possible = [plan for plan in found["plans"] if "why_not" not in plan]
    roads = {"mpi_rma", "nccl", "peer", "shared_fs", "object_store"}
    assert {plan["road"] for plan in possible} == roads
    for plan in possible:
        assert sum(plan["phases"].values()) == pytest.approx(plan["seconds"])
        assert all(value >= 0 for value in plan["phases"].values())
        assert set(plan["memory_bytes"]) == {"trainer_device", "trainer_host", "receiver_device",
                                             "receiver_host"}  # fmt: skip
    (best,) = [plan for plan in possible if plan["best"]]
    assert best["seconds"] == min(plan["seconds"] for plan in possible)


def test_every_road_of_a_job_is_planned():
    (row,) = [key for key in ok_json("info")["keys"] if key["key"] == "road.kind"]
    kinds = set(re.split(r", | or ", row["value"]))
    assert "peer" in kinds
    planned = {plan["road"] for plan in ok_json("plan", *QWEN3_8B)["plans"]}
    assert kinds - {"host_shm"} == planned


@pytest.mark.parametrize("device", ("gpu", "cpu"))
def test_fp8_engines(device):
    """The figures for FP8 codes: fewer bytes, fewer changes, a trainer that quantizes."""
    line = (*QWEN3_8B, "--engines", 8, "--device", device, "--explain")
    plain = ok_json("plan", *line)
    found = ok_json("plan", *line, "--precision", "fp8")
    assert plain["precision"] == "bf16" and plain["fp8_weights"] == 0
    assert found["precision"] == "fp8" and found["snapshot"] == {"gpu": "device", "cpu": "host"}[device]
    assert found["fp8_weights"] == 36 * (4096 * 128 * (2 * 32 + 2 * 8) + 3 * 4096 * 12288)
    rows = {(p["road"], p["encoding"]): p for p in found["plans"] if "why_not" not in p}
    assert {road for road, _ in rows} == {"mpi_rma", "peer", "shared_fs", "object_store"}
    whole = rows["peer", "full"]
    others = found["weights"] - found["fp8_weights"]
    codes = found["fp8_weights"] * (1 + 4 / 128**2)
    assert whole["bytes"]["version"] == pytest.approx(codes + 2 * others)
    deltas = rows["peer", "deltas"]
    figure = {"gpu": "quantize.device (", "cpu": "quantize ("}[device]
    assert figure in deltas["phases"]["formulae"]["compare"]
    assert "changed codes (" in deltas["bytes"]["formulae"]["version"]
    before = {(p["road"], p["encoding"]): p for p in plain["plans"] if "why_not" not in p}
    assert deltas["bytes"]["version"] < before["peer", "deltas"]["bytes"]["version"] / 3
    for plan in rows.values():
        phases = [value for name, value in plan["phases"].items() if name != "formulae"]
        assert sum(phases) == pytest.approx(plan["seconds"]) and min(phases) >= 0


def test_text_has_every_row_and_the_formulae():
    line = ["plan", *QWEN3_8B, "--tp", 2, "--road", "mpi_rma", "--encoding", "deltas"]
    text = ok(*line)
    assert "Predicted, not measured" in text and "best" in text and " = " not in text
    explained = ok(*line, "--explain")
    assert re.search(r"compare = .* / compare\.none \(1\.24 TB/s\)", explained)
    assert "[A step of Megatron: `tests/bench/megatron_bench.py`]" in explained
    formulae = one(*line[1:], "--explain")["phases"]["formulae"]
    assert set(formulae) == {"compare", "encode", "send", "wait", "fetch", "hand_over", "stage",
                             "pause"}  # fmt: skip


def test_options_replace_figures(work):
    line = [*QWEN3_8B, "--road", "shared_fs", "--encoding", "indices"]
    before = one(*line)["phases"]["fetch"]
    assert one(*line, "--fs-read", 0.5)["phases"]["fetch"] > before
    assert one(*line, "--figure", "shared_fs.read=5e8")["phases"]["fetch"] > before
    (work / "figures.json").write_text('{"shared_fs.read": 5e8}')
    found = ok_json("plan", *line, "--figures", work / "figures.json")
    assert found["figures"]["shared_fs.read"]["source"] == str(work / "figures.json")


def test_measured_figures_can_be_read_back(work):
    measured = ok("plan", "--measure", "--bytes", 1 << 22, "--threads", 1)
    (work / "figures.json").write_text(measured)
    assert {"compare.host", "encode.compact", "decode.xor", "sweep"} <= set(json.loads(measured))
    line = (*QWEN3_8B, "--device", "cpu", "--figures", work / "figures.json")
    figures = ok_json("plan", *line)["figures"]
    assert figures["sweep"]["value"] == json.loads(measured)["sweep"]


@pytest.mark.parametrize(("line", "code", "words"), (
    ((), 2, ["--model", "--params"]),
    ((*QWEN3_8B, "--precision", "fp8", "--snapshot", "pinned"), 2, ["fp8", "device", "host"]),
    ((*QWEN3_8B, "--precision", "int4"), 2, ["int4"]),
    ((*QWEN3_8B, "--link", "fast"), 2, ["'fast'", "100Gbit"]),
    ((*QWEN3_8B, "--ep", 2), 2, ["--ep", "experts"]),
    ((*QWEN3_8B, "--pp", 64), 2, ["--pp", "36 layers"]),
    ((*QWEN3_8B, "--snapshot", "host"), 2, ["--snapshot"]),
    ((*QWEN3_8B, "--figure", "hahs=1"), 2, ["'hahs'", "'hash'"]),
    ((*QWEN3_8B, "--figures", "nowhere.json"), 3, ["nowhere.json"]),
    ((*QWEN3_8B, "--encoding", "gzip"), 2, ["gzip"]),
    (("--model", "nowhere.json"), 3, ["nowhere.json"]),
))  # fmt: skip
def test_refusals(line, code, words):
    assert_refusal(run("plan", *line), code, *words)


def test_an_unknown_architecture_is_named_with_the_option_to_use(work):
    (work / "config.json").write_text('{"model_type": "mamba"}')
    assert_refusal(run("plan", "--model", work / "config.json"), 8, "'mamba'", "--params")
    (work / "config.json").write_text('{"model_type": "llama"')
    assert_refusal(run("plan", "--model", work / "config.json"), 4, "config.json")


@pytest.mark.parametrize("line", (
    (*QWEN3_8B, "--params", "1000000"), (*QWEN3_8B, "--road", "pigeon"),
    (*QWEN3_8B, "--density", "0"), (*QWEN3_8B, "--tp", "0"), ("--params", "-5"),
))  # fmt: skip
def test_wrong_usage(line):
    assert run("plan", *line).returncode == 2


def measured_between_hosts():
    """(encoding, link, seconds) of two_hosts.py's table."""
    section = NUMBERS.read_text().split("## Between two hosts")[1].split("\n## ")[0]
    links = ("10Mbit", "100Mbit", "1Gbit")
    for encoding, *times in re.findall(
        r"^\| `(full|indices|deltas|deltas_zstd|compact)` \|[^|]*\|([^|]*)\|([^|]*)\|([^|]*)\|",
        section, re.MULTILINE,
    ):  # fmt: skip
        for link, seconds in zip(links, times, strict=True):
            if seconds.strip():
                yield encoding, link, float(seconds)


@pytest.mark.parametrize(("encoding", "link", "seconds"), list(measured_between_hosts()))
def test_the_measured_times_of_the_numbers_page_are_predicted(encoding, link, seconds):
    """Within 25 % if the wire takes most of the time, else within a factor of 1.5."""
    plan = one("--params", 500_000_000, "--device", "cpu", "--hand-over", "none", "--density", 0.0105,
               "--link", link, "--road", "mpi_rma", "--encoding", encoding)  # fmt: skip
    wire = plan["phases"]["fetch"] > plan["seconds"] / 2
    factor = max(plan["seconds"] / seconds, seconds / plan["seconds"])
    assert factor < (1.25 if wire else 1.5), (plan["seconds"], seconds, plan["phases"])

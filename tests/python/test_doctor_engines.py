# SPDX-License-Identifier: Apache-2.0
"""`driftless doctor --engine` names what an engine lacks, with the flag to add; an engine that
hangs costs its deadline. The answers are those of vLLM 0.32 and SGLang 0.5.23."""

import contextlib
import itertools
import json
import re
import socket

import jobs
from doctor_rows import assert_row, closed_port, config, doctor, served
from support import REPOSITORY, run

MPI = "road: { kind: mpi_rma }\n"
RANK = {
    "nonce": "n", "rank": 0, "process": "p", "ok": True, "error": "", "state": "idle", "version": 3,
    "staged_version": None, "run": "a" * 32, "follows": "a" * 32, "digest": "b" * 32,
    "session": True, "updating": False,
}  # fmt: skip
EXTENSION = "driftless.engines.vllm.WorkerExtension"


def vllm(extension=EXTENSION, shows_config=True, paused=False):
    parallel = {"parallel_config": {"worker_extension_cls": extension}} if shows_config else {}
    raised = (500, {"error": {"message": "'CPUWorker' object has no attribute 'driftless_status'"}})
    return {
        ("GET", "/version"): {"version": "0.32.0"},
        ("GET", "/v1/models"): {"data": [{"id": "m", "root": "/models/base"}]},
        ("GET", "/server_info"): {"vllm_config": parallel},
        ("GET", "/is_paused"): {"is_paused": paused},
        ("POST", "/collective_rpc"): {"results": [RANK]} if extension else raised,
    }


def sglang(loader=("driftless.engines.sglang.load",), **more):
    return {
        ("GET", "/model_info"): {"model_path": "/models/base", "weight_version": "7"},
        ("GET", "/server_info"): {
            "version": "0.5.23", "tp_size": 2, "dp_size": 1, "custom_weight_loader": list(loader),
        } | more,
        ("POST", "/update_weights_from_disk"): {"success": True},
    }  # fmt: skip


# --- the samples of the page ---------------------------------------------------------------------


def table(text):
    """{group: [(check, state, finding)]} of doctor's table, without next actions."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if re.match(r"group +check +state +finding", line))
    at = [lines[first].index(word) for word in ("group", "check", "state", "finding")] + [None]
    rows, group = {}, ""
    for line in itertools.takewhile(str.strip, lines[first + 1 :]):
        name, check, state, finding = (line[a:b].strip() for a, b in itertools.pairwise(at))
        group = name.split(" ")[0] or group
        if check:
            rows.setdefault(group, []).append((check, state, finding))
    return rows


def plain(finding):
    """A finding without parts that differ between hosts: numbers with units, digests, paths."""
    finding = re.sub(r"\b[0-9a-f]{32}\b", "HEX", re.sub(r"(?<![\w.])/[\w./-]+", "PATH", finding))
    return re.sub(r"\d+(\.\d+)*(\+\w+)?( ?([kMGT]?i?B|ms|s)\b)?", "N", finding)


# Rows that depend on the host and on the build, or whose findings do.
ROWS_OF_A_HOST = {"configuration": {"built"}, "mpi": {"environment"}, "road": {"file system"}}


def assert_fresh(sample, real, groups):
    assert list(sample) == [group for group in real if group in sample]
    for group in groups:
        left_out = ROWS_OF_A_HOST.get(group, ())
        shown, found = ([row for row in rows[group] if row[0] not in left_out] for rows in (sample, real))
        if group == "configuration":  # further rows are of backends that were not built
            found = [row for row in found if row[1] != "skip"]
        assert [row[0] for row in shown] == [row[0] for row in found], group
        for ours, theirs in zip(shown, found, strict=True):
            if ours[1] == theirs[1] == "ok" and group in ("configuration", "road", "engine"):
                assert plain(ours[2]) == plain(theirs[2]), ours


def test_the_samples_of_the_page_are_as_the_command_prints_them(work):
    jobs.need("mpi_rma")
    page = (REPOSITORY / "docs/operate/doctor.md").read_text()
    samples = [block for block in page.split("```") if re.search(r"^group +check", block, flags=re.M)]
    text = re.search(r"^\$ cat job.yaml\n(.*?)^\$ ", samples[0], flags=re.M | re.S)[1]
    idle = RANK | {"state": "closed"}
    answers = vllm() | {("POST", "/collective_rpc"): {"results": [idle]}}
    key = work / "key"
    key.write_text("k3y\n")
    key.chmod(0o600)
    lacks = vllm(extension="", shows_config=False)
    with served(answers) as ready, served(lacks, "k3y", ["/version"]) as lacking:
        job = text.replace("/var/tmp/weights", str(work)).replace("http://127.0.0.1:8000", ready)
        real = table(run("doctor", *config(work, job)).stdout)
        groups = ("configuration", "mpi", "road", "host", "python", "engine")
        assert_fresh(table(samples[0]), real, groups)
        real = table(run("doctor", "--engine", lacking, "--token-file", key, "--only", "engine").stdout)
        assert_fresh(table(samples[1]), real, ("engine",))
    for sample in samples:
        states = [state for rows in table(sample).values() for _, state, _ in rows]
        counts = re.search(r"^(\d+) failed, (\d+) warnings?, (\d+) ok, (\d+) skipped; [\d.]+ s$", sample, re.M)
        assert [int(n) for n in counts.groups()] == [states.count(s) for s in ("fail", "warn", "ok", "skip")]


# --- engines -------------------------------------------------------------------------------------


def test_engines_that_are_ready():
    with served(vllm()) as first, served(sglang()) as second:
        rows = doctor("--engine", first, "--engine", second, "--only", "engine", code=0)
        assert_row(rows, first, "reachable", "ok", "vLLM 0.32.0")
        assert_row(rows, first, "base", "ok", "/models/base")
        assert_row(rows, first, "paused", "ok", "no")
        assert_row(rows, first, "extension", "ok", "rank 0 idle", "version 3")
        assert_row(rows, first, "ways", "ok", "in place by our receiver, load from disk")
        assert_row(rows, second, "reachable", "ok", "SGLang 0.5.23")
        assert_row(rows, second, "base", "ok", "weight_version 7")
        assert_row(rows, second, "extension", "ok", "driftless.engines.sglang.load")
        posts = [path for method, path in first.calls + second.calls if method != "GET"]
        assert posts == ["/collective_rpc"], "nothing else could change an engine"


def test_quantized_bases_are_named(work):
    schemes = {
        "blocks": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        "whole": {"quant_method": "fp8"},
        "other": {"quant_method": "awq"},
        "plain": None,
    }
    with contextlib.ExitStack() as stack:
        urls = {}
        for name, scheme in schemes.items():
            (work / name).mkdir()
            (work / name / "config.json").write_text(json.dumps({"quantization_config": scheme}))
            base = {"data": [{"id": "m", "root": str(work / name)}]}
            urls[name] = stack.enter_context(served(vllm() | {("GET", "/v1/models"): base}))
        (work / "damaged").mkdir()
        (work / "damaged" / "config.json").write_text("{")
        answers = sglang() | {("GET", "/model_info"): {"model_path": str(work / "damaged")}}
        urls["damaged"] = stack.enter_context(served(answers))
        engines = [word for url in urls.values() for word in ("--engine", url)]
        rows = doctor(*engines, "--only", "engine", code=0)
        assert_row(rows, urls["blocks"], "base", "ok", "FP8 in blocks of 128x128")
        assert_row(rows, urls["whole"], "base", "warn", "quantized: fp8", "driftless quantize")
        assert_row(rows, urls["other"], "base", "warn", "quantized: awq")
        for name in ("plain", "damaged"):
            assert_row(rows, urls[name], "base", "ok", str(work / name))
            assert "quantized" not in rows[urls[name], "base"]["finding"]


def test_what_an_engine_lacks_names_its_flag():
    no_dev = {key: value for key, value in vllm().items() if key[1] in ("/version", "/v1/models")}
    with contextlib.ExitStack() as stack:
        plain, old, dev, paused, loader, router = (
            stack.enter_context(served(answers))
            for answers in (vllm(""), vllm("", shows_config=False), no_dev, vllm(paused=True),
                            sglang([], dp_size=2), {})  # fmt: skip
        )
        engines = (plain, old, dev, paused, loader, router, closed_port())
        arguments = [word for url in engines for word in ("--engine", url)]
        rows = doctor(*arguments, "--only", "engine", code=1)
        flag = f"--worker-extension-cls {EXTENSION}"
        assert_row(rows, plain, "extension", "fail", flag)
        assert ("POST", "/collective_rpc") not in plain.calls
        assert_row(rows, old, "extension", "fail", "do not have our receiver", flag)
        assert_row(rows, dev, "dev mode", "fail", "404", "VLLM_SERVER_DEV_MODE=1")
        assert_row(rows, paused, "paused", "warn", "yes")
        assert_row(rows, loader, "extension", "fail", "--custom-weight-loader driftless.engines")
        assert_row(rows, loader, "replicas", "fail", "a server for each replica")
        assert_row(rows, router, "kind", "fail", "neither vLLM nor SGLang")
        assert_row(rows, engines[-1], "reachable", "fail", "start the engine")


def test_answers_of_an_extension_that_do_not_fit():
    answers = {
        "another release": ({"results": [{"rank": 0}]}, "install the same release"),
        "a failure": ((500, {"error": {"message": "out of memory"}}), "look at the engine's log"),
        "no results": ({"else": 1}, "look at the engine's log"),
    }
    with contextlib.ExitStack() as stack:
        urls = {
            name: stack.enter_context(served(vllm() | {("POST", "/collective_rpc"): answer}))
            for name, (answer, _) in answers.items()
        }
        paused = stack.enter_context(served(sglang(is_paused=True)))
        engines = [word for url in (*urls.values(), paused) for word in ("--engine", url)]
        rows = doctor(*engines, "--only", "engine", code=1)
        for name, (_, words) in answers.items():
            assert_row(rows, urls[name], "extension", "fail", words)
        assert_row(rows, paused, "paused", "warn", "requests wait", "/continue_generation")


def test_hand_over_by_files_needs_no_extension(work):
    with served(vllm("")) as first, served(sglang([])) as second:
        text = f"engines: [{{ url: '{first}', kind: vllm }}, {{ url: '{second}', kind: vllm }}]\n"
        text += f"agent: {{ hand_over: checkpoint, checkpoint_dir: {work} }}\n"
        rows = doctor(*config(work, MPI + text), "--only", "engine", code=1)
        assert_row(rows, first, "extension", "skip")
        assert_row(rows, first, "ways", "ok", "load from disk")
        assert_row(rows, second, "kind", "fail", "set it to sglang")


def test_engines_that_the_trainer_notifies(work):
    with served(sglang()) as first, served(vllm()) as second:
        engine = "{{ url: '{}', action: pull_weights, local_checkpoint_dir: /local }}"
        text = f"engines: [{engine.format(first)}, {engine.format(second)}]\n"
        road = f"road: {{ kind: shared_fs, shared_fs: {{ dir: {work} }}, layout: hf_delta }}\n"
        rows = doctor(*config(work, road + text), "--only", "engine", code=1)
        assert_row(rows, first, "action", "fail", "/pull_weights")
        assert_row(rows, second, "action", "fail", "kind: vllm")


def test_tokens(work):
    right, wrong, open_to_all = work / "right", work / "wrong", work / "open"
    for path, text in ((right, "key"), (wrong, "other"), (open_to_all, "key")):
        path.write_text(text)
        path.chmod(0o600)
    open_to_all.chmod(0o644)
    with served(vllm(), "key", ["/v1/models"]) as url, served(
        sglang(), "key", ["/model_info", "/server_info"]
    ) as second:
        both = ["--engine", url, "--engine", second, "--only", "engine"]
        rows = doctor(*both, "--token-file", right, code=0)
        assert_row(rows, url, "token", "ok")
        for arguments, words in (([], ["asks for a token"]), (["--token-file", wrong], ["--api-key"])):
            rows = doctor(*both, *arguments, code=1)
            assert_row(rows, url, "token", "fail", *words)
            assert_row(rows, second, "token", "fail", *words)
        rows = doctor(*both, "--token-file", open_to_all, code=1)
        assert_row(rows, url, "token", "fail", "644")


def test_an_engine_that_hangs_ends_within_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        rows = doctor("--engine", url, "--only", "engine", code=1)
        assert_row(rows, url, "reachable", "fail", "no reply within", "log")

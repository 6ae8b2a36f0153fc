# SPDX-License-Identifier: Apache-2.0
"""compare, report, plan, doctor, status and config with malicious input: no false figure with exit
code 0, no secret in the output, no file replaced, no process left."""

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest

import jobs
from doctor_rows import doctor
from support import (
    COMMAND,
    Tensor,
    assert_refusal,
    changed,
    ok,
    ok_json,
    random_tensor,
    run,
    write_checkpoint,
)

PLAN = ("plan", "--params", 1_000_000_000)
RUN = "040ff08fb413f40b739c63cc36a83459"


# --- figures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", (
    (*PLAN, "--density", "nan"), (*PLAN, "--engines-per-host", "nan"), (*PLAN, "--fs-read", "NaN"),
    ("status", "/", "--interval", "nan"), (*PLAN, "--figure", "compare.none=1e-300"),
))  # fmt: skip
def test_an_invalid_number_is_refused(line):
    assert_refusal(run(*line), 2)


SHAPE = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 100,
         "intermediate_size": 128, "num_key_value_heads": 2, "head_dim": 16}  # fmt: skip
EXPERTS = {"num_experts": 8, "moe_intermediate_size": 32}


def planned(work, **config):
    (work / "config.json").write_text(json.dumps(config))
    return run("plan", "--model", work / "config.json", "--json")


@pytest.mark.parametrize(("config", "word"), (
    ({"model_type": "qwen3", "num_experts": 8}, "num_experts"),
    ({"model_type": "mistral", "num_local_experts": 8}, "num_local_experts"),
    ({"model_type": "qwen3", "head_dim": 0}, "head_dim"),
    ({"model_type": "qwen3", "num_key_value_heads": 0}, "num_key_value_heads"),
    ({"model_type": "qwen3_moe", "num_experts": 8}, "moe_intermediate_size"),
    ({"model_type": "qwen3_moe", **EXPERTS, "decoder_sparse_step": 0}, "decoder_sparse_step"),
    ({"model_type": "qwen3", "hidden_size": -64}, "hidden_size"),
    ({"model_type": "qwen3", "hidden_size": 1e300}, "hidden_size"),
))  # fmt: skip
def test_impossible_shapes_are_refused(work, config, word):
    assert_refusal(run_quietly(planned(work, **{**SHAPE, **config})), 4, word)


def run_quietly(result):
    """The result without the JSON object on stdout."""
    return subprocess.CompletedProcess(result.args, result.returncode, "", result.stderr)


def test_layers_that_are_dense_anyway_are_not_left_out_twice(work):
    """With a step of 2, layers 1 and 3 have experts: layer 0 in the list changes nothing."""
    moe = {**SHAPE, **EXPERTS, "model_type": "qwen3_moe", "decoder_sparse_step": 2}
    weights = [
        json.loads(planned(work, **moe, mlp_only_layers=layers).stdout)["expert_weights"]
        for layers in ([], [0], [1], [1, 3])
    ]
    one = 8 * 3 * 64 * 32
    assert weights == [2 * one, 2 * one, one, 0]


def test_impossible_metrics_are_ignored(work):
    """Records with figures like 10^308 ms do not count: no figure on the page is infinite."""
    record = {"role": "trainer", "run": RUN, "version": 1, "changed_units": 5, "wire_bytes": 50}
    impossible = (
        {"density": 5e300}, {"process_ms": 1e308}, {"version": 2**64 - 1},
        {"role": "rollout", "fetch_ms": 1, "versions": 2**64 - 1},
        {"role": "agent", "engine": "<img src=x>", "goal": 2**64 - 1, "status": "<b>"},
    )  # fmt: skip
    lines = [{**record, "density": 0.5, "process_ms": 3}, *({**record, **each} for each in impossible),
             {**record, "role": "rollout", "fetch_ms": 1e-320}]  # fmt: skip
    (work / "m.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    page = work / "page.html"
    shown = run("report", "--metrics", work / "m.jsonl", "--out", page)
    assert shown.returncode == 0 and f"{len(impossible)} of {len(lines)} lines without a record" in shown.stderr
    text = page.read_text()
    for word in (">inf", '"inf', "inf ", '"-inf', ">-inf", ">nan", '"nan', "<img"):
        assert word not in text, word


def test_companions_that_were_not_compared_are_named(work, rng):
    tensors = {"w": random_tensor(rng, "BF16", (10,))}
    old, new = (write_checkpoint(work / name, tensors) for name in ("old", "new"))
    for directory, byte in ((old, b"a"), (new, b"b")):
        with (directory / "tokenizer.json").open("wb") as file:  # sparse
            file.seek(300 << 20)
            file.write(byte)
    os.mkfifo(new / "merges.txt")
    left_out = ok_json("compare", old, new)["other_files"]["not_compared"]
    assert len(left_out) == 3 and sum("tokenizer.json" in each for each in left_out) == 2, left_out
    assert "not compared" in ok("compare", old, new)
    assert "not compared" in run("verify", old, "--like", new).stderr


def test_a_file_that_shrinks_while_it_is_read(work, rng):
    """One line and the exit code for a retry, not a core dump."""
    size = 64 << 20
    old, new = (
        write_checkpoint(work / name, {"w": Tensor("U8", (size,), rng.bytes(size))})
        for name in ("old", "new")
    )
    line = [COMMAND, "compare", old, new, "--threads", "1"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        maps = f"/proc/{process.pid}/maps"
        while process.poll() is None:
            with open(maps) as file:
                if str(new) in file.read():
                    break
        os.truncate(new / "model.safetensors", 4096)
        _, output = process.communicate(timeout=300)
    # It may have read only the header afterwards, or everything before.
    assert process.returncode in (0, 4, 6), output
    if process.returncode == 6:
        assert output == "driftless: busy: a file was truncated while it was read; try again\n"


def test_a_version_that_is_missing_in_the_middle(work, rng):
    tensors = {"w": random_tensor(rng, "BF16", (100,))}
    old = write_checkpoint(work / "step_0", tensors)
    for version in (1, 2, 3, 4):
        tensors = {"w": changed(rng, tensors["w"])}
        new = write_checkpoint(work / f"step_{version}", tensors)
        ok("diff", old, new, "--out", work / "run", "--version", version, "--base", version - 1)
        old = new
    missing = "version 3 is missing, and version 4 is a change to it"
    assert "is missing" not in run("status", work / "run").stdout
    shutil.rmtree(work / "run/weight_v000001")  # the oldest, which a publisher may have removed
    assert "is missing" not in run("status", work / "run").stdout
    shutil.rmtree(work / "run/weight_v000003")
    shown = run("status", work / "run")
    assert shown.returncode == 1 and missing in shown.stdout


# --- what is written -----------------------------------------------------------------------------


@pytest.fixture
def pair(work, rng):
    tensors = {"w": random_tensor(rng, "BF16", (10,))}
    return [write_checkpoint(work / name, tensors) for name in ("old", "new")]


def test_a_page_replaces_no_device_link_or_directory(work, pair):
    (work / "target.html").write_text("keep me")
    (work / "link.html").symlink_to("target.html")
    (work / "directory").mkdir()
    os.mkfifo(work / "fifo")
    before = sorted(os.listdir(work))
    for name in ("link.html", "directory", "fifo"):
        refused = run("compare", *pair, "--html", work / name, "--force")
        assert_refusal(refused, 2, "not a regular file")
    assert sorted(os.listdir(work)) == before and (work / "link.html").is_symlink()
    assert (work / "target.html").read_text() == "keep me"
    (work / "page.html.tmp").write_text("somebody's")
    ok("compare", *pair, "--html", work / "page.html")
    ok("compare", *pair, "--html", work / "page.html", "--force")
    assert (work / "page.html.tmp").read_text() == "somebody's"
    assert sorted(os.listdir(work)) == sorted([*before, "page.html", "page.html.tmp"])


def test_output_that_is_lost_is_a_failure(pair):
    for line in (("compare", *pair), (*PLAN, "--json"), ("config", "init", "--road", "shared_fs")):
        with open("/dev/full", "w") as full:
            done = subprocess.run([COMMAND, *map(str, line)], stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == 5 and b"standard output" in done.stderr, line


# --- secrets -------------------------------------------------------------------------------------


def test_no_password_of_a_url_is_printed(work):
    url = "http://user:hunter2@127.0.0.1:1"
    config = work / "job.yaml"
    config.write_text(
        f"road: {{ kind: shared_fs, shared_fs: {{ dir: {work} }} }}\n"
        f"engines:\n  - {{ url: '{url}', kind: vllm }}\n"
    )
    lines = (
        ("doctor", "--only", "engine", "--engine", url),
        ("doctor", "--only", "engine", "--engine", "http://user:hun/hunter2@127.0.0.1:1"),
        ("doctor", "--only", "configuration,engine", "--config", config),
        ("config", "check", config, "--all"),
        ("status", url), ("status", f"{url}/status.json"), ("status", f"https://{url[7:]}"),
        ("report", f"{url}/bucket", "--out", work / "page.html"),
        ("verify", "--engine", url),
    )  # fmt: skip
    for line in lines:
        for more in ((), ("--json",)):
            result = run(*line, *more)
            assert (result.returncode == 0) == (line[0] == "config"), line
            assert "hunter2" not in result.stdout + result.stderr, line


# --- doctor --------------------------------------------------------------------------------------

LONG = str(10**6 + os.getpid())  # seconds; the unusual number identifies these processes
HANGS = f'[ "$1" = --version ] && exit; setsid sleep {LONG} & trap "" TERM INT; sleep {LONG}'


def sleepers():
    found = []
    for process in os.listdir("/proc"):
        try:
            with open(f"/proc/{process}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", LONG.encode()]:
            found.append(process)
    return found


def hanging(work):
    (work / "bin").mkdir()
    (work / "bin/mpirun").write_text(f"#!/bin/sh\n{HANGS}\n")
    (work / "bin/mpirun").chmod(0o755)
    return {**os.environ, "PATH": f"{work / 'bin'}:/usr/bin:/bin"}


def test_doctor_leaves_no_process_in_any_session(work):
    jobs.need("mpi_rma")
    path = hanging(work)
    begin = time.monotonic()
    doctor("--only", "mpi", env=path)
    assert time.monotonic() - begin < 100
    jobs.wait_for(lambda: sleepers() == [], "the end of all processes")
    with subprocess.Popen(
        [COMMAND, "doctor", "--only", "mpi"], env=path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        while not sleepers():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, output = process.communicate(timeout=300)
    assert process.returncode == 6 and "stopped by signal 2" in output, output
    jobs.wait_for(lambda: sleepers() == [], "the end of all processes")


@pytest.mark.parametrize("mode", ("silent", "endless", "drip", "header"))
def test_an_engine_whose_answer_never_ends(mode):
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()

        def answer(link):
            try:
                link.recv(65536)
                if mode == "silent":
                    ended.wait(300)
                link.sendall(b"HTTP/1.1 200 OK\r\n")
                if mode in ("endless", "drip"):
                    link.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
                while not ended.is_set():
                    if mode == "drip":
                        link.sendall(b"1\r\n \r\n")
                        ended.wait(0.1)
                    elif mode == "header":
                        link.sendall(b"X: " + b"y" * 60_000 + b"\r\n")
                    else:
                        link.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            except OSError:
                pass

        def serve():
            while True:
                try:
                    link, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(link,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        begin = time.monotonic()
        rows = doctor(
            "--only", "engine", "--engine", f"http://127.0.0.1:{server.getsockname()[1]}", code=1
        )
        ended.set()
    assert time.monotonic() - begin < 100
    text = " ".join(row["finding"] for row in rows.values())
    assert "status 200" not in text, "it names the fault, not the status"

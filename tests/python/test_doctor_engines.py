# SPDX-License-Identifier: Apache-2.0
"""`driftless doctor --engine`: what an engine lacks is found, with the flag to add; an engine that
hangs costs its deadline. The answers are those of vLLM 0.32 and SGLang 0.5.23."""

import contextlib
import socket

from doctor_rows import assert_row, closed_port, config, doctor, served

MPI = "road: { kind: mpi_rma }\n"
RANK = {
    "nonce": "n", "rank": 0, "process": "p", "ok": True, "error": "", "state": "idle", "version": 3,
    "staged_version": None, "run": "a" * 32, "follows": "a" * 32, "digest": "b" * 32,
    "session": True, "updating": False,
}  # fmt: skip
EXTENSION = "driftless.engines.vllm.WorkerExtension"


def vllm(extension=EXTENSION, told=True, paused=False):
    parallel = {"parallel_config": {"worker_extension_cls": extension}} if told else {}
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


def test_what_an_engine_lacks_names_its_flag():
    no_dev = {key: value for key, value in vllm().items() if key[1] in ("/version", "/v1/models")}
    with contextlib.ExitStack() as stack:
        plain, old, dev, paused, loader, router = (
            stack.enter_context(served(answers))
            for answers in (vllm(""), vllm("", told=False), no_dev, vllm(paused=True),
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


def test_hand_over_by_files_needs_no_extension(work):
    with served(vllm("")) as first, served(sglang([])) as second:
        text = f"engines: [{{ url: '{first}', kind: vllm }}, {{ url: '{second}', kind: vllm }}]\n"
        text += f"agent: {{ hand_over: checkpoint, checkpoint_dir: {work} }}\n"
        rows = doctor(*config(work, MPI + text), "--only", "engine", code=1)
        assert_row(rows, first, "extension", "skip")
        assert_row(rows, first, "ways", "ok", "load from disk")
        assert_row(rows, second, "kind", "fail", "set it to sglang")


def test_engines_that_the_trainer_tells(work):
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

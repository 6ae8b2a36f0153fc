# SPDX-License-Identifier: Apache-2.0
"""Limits of an engine's HTTP calls: a client can make workers follow only what the operator allowed
at start; and a server that is no engine cannot deceive a driver."""

import http.server
import json
import os
import threading
import time

import pytest

import binding

driftless = binding.driftless()
from driftless import errors  # noqa: E402
from driftless import _native  # noqa: E402
from driftless.engines import allowed, sglang, vllm  # noqa: E402
from driftless.engines.rank_receiver import RankReceiver  # noqa: E402


@pytest.fixture(autouse=True)
def no_operator(monkeypatch):
    monkeypatch.delenv(allowed.VARIABLE, raising=False)


def no_target(chunk_bytes):
    raise AssertionError("a configuration of the caller was used")


class Worker(vllm.WorkerExtension):
    """vLLM's worker, with all that the extension uses."""

    rank = 0

    def __init__(self, **settings):
        self.weight_transfer_engine = None
        receiver = RankReceiver(0, no_target)
        receiver.settings = settings
        self.__dict__["_driftless_made"] = receiver


def forbidden_sources(tmp_path):
    """Sources in a POST to /collective_rpc that must be refused."""
    secret = tmp_path / "secret"
    secret.write_text("the-secret-of-this-machine: 1\n")
    hook = f"road: {{kind: shared_fs, shared_fs: {{ dir: {tmp_path} }}}}\nhooks: {{before_read: 'touch {tmp_path}/ran'}}\n"
    return [
        hook,
        hook.replace("\n", " "),
        str(secret),
        f"{tmp_path}/job.yaml",
        "../job",
        "job.yaml/..",
        "host_shm:../../etc",
        "host_shm:a\nhooks: {}",
        "host_shm:a}, metrics: {file: /tmp/x",
        "host_shm:",
        "host_shm:" + "a" * 65,
        ["job"],
        {"config": "job"},
        7,
    ]


def test_a_call_with_a_configuration_is_refused(tmp_path):
    (tmp_path / "job.yaml").write_text(f"road: {{kind: shared_fs, shared_fs: {{ dir: {tmp_path} }}}}\n")
    for source in forbidden_sources(tmp_path):
        reply = Worker(config_dir=str(tmp_path / "none")).driftless_open(source, "n")
        assert not reply["ok"] and reply["nonce"] == "n" and reply["state"] == "closed", source
        assert "invalid_argument" in reply["error"], reply
        assert "the-secret" not in reply["error"]
    assert not (tmp_path / "ran").exists()


def test_a_call_with_settings_is_refused():
    """Settings, too, can run hooks and write files."""
    with pytest.raises(TypeError):
        Worker().driftless_open("host_shm:a", sets=["metrics.file=/tmp/x"])


def test_what_the_operator_allows(tmp_path, monkeypatch):
    (tmp_path / "job.yaml").write_text("road: {kind: loopback}\n")
    given = {"config": "own.yaml", "sets": ["a=b"], "configs": {"other": "/o.yaml"},
             "config_dir": str(tmp_path), "host_shm_dir": "/shm"}  # fmt: skip
    assert allowed.source_of(None, given) == allowed.Source("own.yaml", ("a=b",))
    assert allowed.source_of("other", given).config == "/o.yaml"
    assert allowed.source_of("job", given).config == str(tmp_path / "job.yaml")
    road = json.loads(allowed.source_of("host_shm:a.b-1", given).config)
    assert road == {"road": {"kind": "host_shm", "host_shm": {"name": "a.b-1", "dir": "/shm"}}}
    with pytest.raises(errors.InvalidArgumentError, match="is not a configuration that"):
        allowed.source_of("own.yaml", given)
    with pytest.raises(errors.InvalidArgumentError, match="started without one"):
        allowed.source_of(None, {})
    monkeypatch.setenv(allowed.VARIABLE, json.dumps({"config": "env.yaml", "version": 3}))
    assert allowed.settings({"version": 4}) == {"config": "env.yaml", "version": 4}
    monkeypatch.setenv(allowed.VARIABLE, "{")
    with pytest.raises(errors.InvalidArgumentError, match=allowed.VARIABLE):
        allowed.settings()


def test_sglang_answers_only_a_driver_of_its_user(tmp_path):
    token = "0123456789abcdef"
    with pytest.raises(errors.InvalidArgumentError, match="on this host, as this user"):
        allowed.answer_directory(token, str(tmp_path))
    made = tmp_path / f"driftless-{os.geteuid()}-answers-{token}"
    made.mkdir(mode=0o700)
    assert allowed.answer_directory(token, str(tmp_path)) == made
    made.chmod(0o755)
    with pytest.raises(errors.InvalidArgumentError, match="only this user can access"):
        allowed.answer_directory(token, str(tmp_path))
    made.rmdir()
    made.symlink_to(tmp_path)
    with pytest.raises(errors.InvalidArgumentError, match="only this user can access"):
        allowed.answer_directory(token, str(tmp_path))
    for other in ("../../etc", "/etc", token + "/..", "", None, 7, "g" * 16):
        with pytest.raises(errors.InvalidArgumentError, match="is not the token of a driver"):
            allowed.answer_directory(other, str(tmp_path))


class Model:
    """An object that holds a receiver, as a model does for a loader."""


def test_sglang_writes_nowhere_else(tmp_path, capfd, monkeypatch):
    """A command that names a directory of the sender is refused, and ends no process."""
    monkeypatch.setattr(sglang, "global_rank", lambda: 0)

    class Tensor:
        def __init__(self, command):
            self.data = json.dumps(command).encode()

        def cpu(self):
            return self

        def tolist(self):
            return list(self.data)

    for answers in (str(tmp_path), "../" * 9 + str(tmp_path), {"a": 1}):
        command = {"phase": "open", "source": "host_shm:a", "answers": answers, "nonce": "n"}
        sglang.load(Model(), [("driftless.command", Tensor(command))])
        assert "is not the token of a driver" in capfd.readouterr().out
    assert os.listdir(tmp_path) == []


# --- servers that are no engines ------------------------------------------------------------------


class Answers(http.server.BaseHTTPRequestHandler):
    """By path."""

    def do_GET(self):
        self.answer()

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer()

    def answer(self):
        if self.path == "/login":
            return self.respond(200, b"<html>please log in</html>")
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "/login")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if self.path == "/long":
            return self.respond(200, b" " * (2 << 20))
        if self.path == "/slow":
            return self.drip()
        return self.respond(200, b'{"ok": true}')

    def respond(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def drip(self):
        """Sends a byte now and then: every single read is quick."""
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        try:
            for _ in range(3000):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.1)
        except OSError:
            pass

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()


def test_http_answers(server):
    assert _native.sglang_call(server, "/", "{}", 60) == ""
    assert json.loads(_native.sglang_call(server, "/", None, 60)) == {"ok": True}


@pytest.mark.parametrize("path", ("/redirect", "/login", "/long"))
def test_http_accepts_no_web_page_as_an_answer(server, path):
    """A login page once counted as a successful pause."""
    with pytest.raises(errors.Error, match="redirect|expected a JSON object|longer than"):
        _native.sglang_call(server, path, "{}", 60)


def test_http_has_one_deadline_for_the_whole_call(server):
    began = time.monotonic()
    with pytest.raises(errors.DeadlineExceededError):
        _native.sglang_call(server, "/slow", "{}", 0.5)
    assert time.monotonic() - began < 50


def test_http_takes_no_proxy_from_the_environment(server, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert _native.sglang_call(server, "/", "{}", 60) == ""

# SPDX-License-Identifier: Apache-2.0
"""The status server with real processes: what it answers, to whom, and that nobody who connects
holds up training."""

import base64
import contextlib
import http.client
import json
import signal
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import jobs
from jobs import ended, finish, make_run, wait_for
from ports import free_port
from support import assert_refusal, run
from test_agent import Engine, checkpoint_host, name, replay  # noqa: F401

TOKEN = "s3cret-token"


@pytest.fixture(autouse=True)
def no_processes_left():
    jobs.need("status_server")
    yield
    jobs.stop_started()


class Answer:
    def __init__(self, response):
        self.status, self.headers = response.status, response.headers
        self.text = response.read().decode()

    @property
    def json(self):
        return json.loads(self.text)


def ask(port, path="/status.json", method="GET", **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return Answer(response)
    except urllib.error.HTTPError as refused:
        return Answer(refused)


def raw(port, sent, wait=20):
    """All that the server answers to these bytes, until it closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as client:
        client.sendall(sent)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := client.recv(1 << 16):
                received += piece
        return received


def answers(port):
    def there():
        with contextlib.suppress(OSError):
            return ask(port, "/ready").status in (200, 503)
        return False

    return there


@pytest.fixture
def host(work, name):  # noqa: F811
    """A run of 400 versions, 50 ms apart, and an agent's host."""
    make_run(work / "run", np.random.default_rng(1), 4)
    return checkpoint_host(work, name)


@pytest.fixture
def trainer(host, work):
    """Its port, while it publishes."""
    port = free_port()
    process = host.start_trainer(
        "--replay", work / "run", "--rollouts", 1, "--set",
        f"monitor.address={port}",
    )  # fmt: skip
    wait_for(lambda: answers(port)() and ask(port, "/ready").status == 200, "an open run")
    process.port = port
    return process


def test_a_trainer_and_an_agent_show_their_run(work, name):  # noqa: F811
    history = make_run(work / "run", np.random.default_rng(2), 10)
    engines = [Engine(work / "run/step_000000") for _ in range(2)]
    host = checkpoint_host(work, name, ("vllm", engines[0]), ("sglang", engines[1]))
    ours, theirs = free_port(), free_port()
    agent = host.start_agent("--set", f"monitor.address=:{theirs}")
    wait_for(answers(theirs), "the agent's server")
    waiting = ask(theirs, "/ready")
    assert waiting.status == 503 and not waiting.json["ready"]
    assert waiting.json["reason"] == "no run is open yet"
    trainer = replay(host, work / "run", "--interval-ms", 1000, "--set", f"monitor.address={ours}")
    wait_for(lambda: answers(theirs)() and ask(theirs).json["version"] >= 2, "version 2")
    shown = ask(ours).json
    assert (shown["schema"], shown["role"], shown["rank"]) == (1, "trainer", 0)
    assert shown["trainer"]["state"] == "alive" and shown["host"] and len(shown["run"]) == 32
    assert [each["version"] for each in shown["versions"]] == list(range(1, shown["version"] + 1))
    most = shown["versions"][0]["most_changed"]
    assert sum(each["changed_units"] for each in most) == shown["versions"][0]["changed_units"]
    assert {each["tensor"] for each in most} <= set(history[0])
    assert ask(ours, "/ready").status == 200
    since = shown["version"] - 1
    assert all(each["version"] > since for each in ask(ours, f"/status.json?since={since}").json["versions"])
    wait_for(lambda: ask(ours).json["rollouts"], "the agent's report at the trainer")
    (rollout,) = ask(ours).json["rollouts"]
    assert rollout["run"] == shown["run"] and rollout["lag"] >= 0 and "id" in rollout

    wait_for(lambda: ask(theirs, "/ready").status == 200, "engines that follow")
    found = ask(theirs).json
    assert found["role"] == "agent" and found["run"] == shown["run"]
    assert {each["engine"] for each in found["engines"]} == {each.url for each in engines}
    assert {each["kind"] for each in found["engines"]} == {"vllm", "sglang"}
    assert all(each["proven"] == "files" for each in found["engines"])
    assert all(each["version"] + each["lag"] == found["version"] for each in found["engines"])
    assert str(work) not in ask(theirs).text + ask(ours).text, "a path of this machine"
    ended(agent, 60)
    assert finish(trainer).returncode == 0


def test_readiness_follows_the_engines(work, name):  # noqa: F811
    make_run(work / "run", np.random.default_rng(3), 10)
    engine, port = Engine(work / "run/step_000000"), free_port()
    host = checkpoint_host(work, name, ("vllm", engine), **{"engine_calls.retries": "0"})
    host.set(**{"deadlines.connect": "6s", "agent.max_lag": 1})
    agent = host.start_agent("--set", f"monitor.address={port}")
    trainer = replay(host, work / "run", "--interval-ms", 700)
    wait_for(lambda: answers(port)() and ask(port, "/ready").status == 200, "a ready agent")
    engine.broken = {"/collective_rpc": 1000, "/pause": 1000}
    wait_for(lambda: ask(port, "/ready").status == 503, "the engine to fall behind")
    reason = ask(port, "/ready").json["reason"]
    assert engine.url in reason and ("behind" in reason or "holds no version" in reason)
    failed = ask(port).json
    assert failed["engines"][0]["status"] != "ok" and sum(failed["refusals"].values()) > 0
    engine.broken = {}
    wait_for(lambda: ask(port, "/ready").status == 200, "the engine to be back")
    assert finish(trainer).returncode == 0
    assert finish(agent, 60).returncode == 0


def test_what_the_server_answers(trainer):
    port = trainer.port
    page = ask(port, "/")
    assert page.status == 200 and page.headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Cache-Control"] == "no-store"
    head = ask(port, "/status.json", "HEAD")
    assert head.status == 200 and head.text == "" and int(head.headers["Content-Length"]) > 100
    assert ask(port, "/nothing").status == 404 and ask(port, "//etc/passwd").status == 404
    assert ask(port, "/%2e%2e/%2e%2e/etc/passwd").status == 404
    assert ask(port, "/status.json?since=x").status == 400
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"):
        assert ask(port, "/status.json", method).status in (400, 405), method
    many = ",".join(f"{at}-" for at in range(1500))
    partial = ask(port, "/", Range=f"bytes={many}")
    assert partial.status == 200 and partial.text == page.text, "no parts"


def test_strangers_get_nothing(trainer):
    """A page of somebody else's, whose name was resolved to this machine."""
    port = trainer.port
    for host in ("evil.org", f"evil.org:{port}", "localhost", "127.0.0.1:1", "[::2]"):
        refused = ask(port, Host=host)
        assert refused.status == 403 and "versions" not in refused.text, host
    assert ask(port, Host=f"localhost:{port}").status == 200
    assert raw(port, b"GET /status.json HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 403")


def test_a_token_is_asked_for(host, work):
    file, port = work / "token", free_port()
    file.write_text(TOKEN + "\n")
    file.chmod(0o600)
    settings = ["--set", f"monitor.address=0.0.0.0:{port}", "--set", f"monitor.token_file={file}"]
    host.start_trainer("--replay", work / "run", "--rollouts", 1, *settings)

    def there():
        with contextlib.suppress(OSError):
            return ask(port).status == 401
        return False

    wait_for(there, "the status server")
    basic = lambda text: "Basic " + base64.b64encode(text.encode()).decode()  # noqa: E731
    for right in (f"Bearer {TOKEN}", basic(f"me:{TOKEN}"), basic(f":{TOKEN}")):
        assert ask(port, Authorization=right).status == 200
    for wrong in (f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer", basic(TOKEN), basic(f"{TOKEN}:"),
                  "Basic !", f"Token {TOKEN}", "x" * 4000):  # fmt: skip
        for path in ("/", "/status.json", "/ready", "/metrics"):
            refused = ask(port, path, Authorization=wrong)
            assert refused.status == 401 and refused.headers["WWW-Authenticate"] == 'Basic realm="driftless"'
    assert ask(port, Host="node7:1", Authorization=f"Bearer {TOKEN}").status == 200


def test_requests_are_bounded(trainer):
    port = trainer.port
    get = b"GET /ready HTTP/1.1\r\nHost: localhost:%d\r\n" % port
    assert raw(port, get + b"X: " + b"y" * 9000 + b"\r\n\r\n").startswith(b"HTTP/1.1 431")
    assert raw(port, b"y" * 100_000).startswith(b"HTTP/1.1 431")
    assert raw(port, b"GET /" + b"a" * 9000).startswith(b"HTTP/1.1 431")
    assert raw(port, b"\x16\x03\x01\x02\x00\x01\r\n\r\n").startswith(b"HTTP/1.1 400"), "TLS"
    assert raw(port, b"GET\r\n\r\n").startswith(b"HTTP/1.1 400")
    # A body is not read, however long it is said to be.
    body = b"POST /ready HTTP/1.1\r\nHost: localhost:%d\r\nContent-Length: 99999999999\r\n\r\n" % port
    assert raw(port, body + b"z" * 50_000).startswith(b"HTTP/1.1 405")
    chunked = get + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"
    assert b" 200 OK" in raw(port, chunked).splitlines()[0]
    # One request per connection: the second one of a pipeline is not answered.
    both = raw(port, (get + b"\r\n") * 2)
    assert both.count(b"HTTP/1.1 200") == 1 and b"Connection: close" in both
    began = time.monotonic()
    assert raw(port, b"GET /ready HTTP/1.1\r\n") == b"", "half a request"
    assert 4 < time.monotonic() - began < 8
    assert ask(port, "/ready").status == 200


def test_slow_clients_and_many_hold_nobody_up_for_long(host, work):
    port, steps = free_port(), 4
    process = host.start_trainer(
        "--replay", work / "run", "--rollouts", 0, "--interval-ms", 800, "--set", f"monitor.address={port}"
    )  # fmt: skip
    wait_for(answers(port), "the status server")
    clients = []
    for _ in range(300):
        client = socket.socket()
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            client.connect(("127.0.0.1", port))
        clients.append(client)
    time.sleep(0.5)
    for client in clients:  # a byte now and then: the whole request has 5 s
        with contextlib.suppress(OSError):
            client.send(b"G")
    last = json.loads(finish(process, 30).stdout.splitlines()[-1])
    assert process.returncode == 0 and last["version"] == steps, "published meanwhile, and ended"
    refused = 0
    for client in clients:
        client.setblocking(True)
        client.settimeout(0.02)
        with contextlib.suppress(OSError):
            refused += client.recv(100).startswith(b"HTTP/1.1 503")
        client.close()
    assert refused > 100, "past those that wait, connections are refused at once"


def test_a_stopped_process_answers_when_it_goes_on(trainer):
    trainer.send_signal(signal.SIGSTOP)
    stopped = Path(f"/proc/{trainer.pid}/status")
    wait_for(lambda: "State:\tT" in stopped.read_text(), "the process to stop")
    connection = http.client.HTTPConnection("127.0.0.1", trainer.port, timeout=1)
    with pytest.raises(TimeoutError):
        connection.request("GET", "/ready")
        connection.getresponse()
    connection.close()
    trainer.send_signal(signal.SIGCONT)
    assert ask(trainer.port, "/ready").status == 200


def test_one_port_is_one_process_s_and_free_once_it_is_gone(host, trainer):
    port = trainer.port
    second = finish(host.start_agent("--set", f"monitor.address={port}"), 30)
    assert_refusal(second, 6, "busy", "monitor.address", f"127.0.0.1:{port} is in use")
    for _ in range(3):  # killed with connections, and started again at once
        open_ones = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        assert ask(port, "/ready").status in (200, 503)
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
        trainer = host.start_agent("--set", f"monitor.address={port}")
        wait_for(answers(port), "the next process on the port")
        for each in open_ones:
            each.close()
    assert trainer.poll() is None


def test_any_port_is_printed(host, work):
    agent = host.start_agent("--set", "monitor.address=localhost:0")
    line = agent.stderr.readline()
    assert ": status on http://localhost:" in line, line
    with urllib.request.urlopen(line.split()[-1] + "status.json", timeout=10) as response:
        assert json.load(response)["role"] == "agent"


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"address": "0.0.0.0:80"}, ["monitor.address", "monitor.token_file"]),
        ({"address": "[::]:80"}, ["monitor.token_file"]),
        ({"address": "somewhere:80"}, ["monitor.token_file"]),
        ({"address": "127.0.0.1:70000"}, ["monitor.address", "host:port"]),
        ({"address": "http://localhost:80"}, ["monitor.address", "host:port"]),
        ({"token_file": "/nowhere"}, ["monitor.token_file", "no use without monitor.address"]),
    ],
)
def test_addresses_that_are_refused(work, settings, words):
    work.mkdir(exist_ok=True)
    config = work / "job.yaml"
    lines = "".join(f'  {key}: "{value}"\n' for key, value in settings.items())
    config.write_text(f"road: {{ kind: shared_fs, shared_fs: {{ dir: {work} }} }}\nmonitor:\n{lines}")
    assert_refusal(run("config", "check", config), 2, *words)


def test_a_token_that_others_can_read_is_refused(host, work):
    file = work / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    settings = ["--set", "monitor.address=0", "--set", f"monitor.token_file={file}"]
    assert_refusal(finish(host.start_agent(*settings), 30), 2, "mode 644", "chmod 600")

# SPDX-License-Identifier: Apache-2.0
"""The status server with real processes: what it answers, to whom; and no client delays
training."""

import base64
import contextlib
import http.client
import json
import signal
import socket
import statistics
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

import jobs
from jobs import ended, finish, make_run, wait_for
from ports import free_port
from support import assert_refusal, run
from test_agent import Engine, Host, checkpoint_host, name, replay  # noqa: F401

TOKEN = "s3cret%41-token"  # a '%' has no meaning in a header


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
        with urllib.request.urlopen(request, timeout=60) as response:
            return Answer(response)
    except urllib.error.HTTPError as refused:
        return Answer(refused)


def raw(port, sent, wait=60):
    """All bytes that the server answers to these bytes, until it closes."""
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
    """The trainer's port, while it publishes."""
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
    host.hold(10)
    agent = host.start_agent("--set", f"monitor.address=:{theirs}")
    wait_for(answers(theirs), "the agent's server")
    waiting = ask(theirs, "/ready")
    assert waiting.status == 503 and not waiting.json["ready"]
    assert waiting.json["reason"] == "no run is open yet"
    trainer = replay(host, work / "run", "--interval-ms", 200, "--set", f"monitor.address={ours}")
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
    host.go(10)
    ended(agent)
    assert finish(trainer).returncode == 0


def test_readiness_follows_the_engines(work, name):  # noqa: F811
    make_run(work / "run", np.random.default_rng(3), 10)
    engine, port = Engine(work / "run/step_000000"), free_port()
    host = checkpoint_host(work, name, ("vllm", engine), **{"engine_calls.retries": "0"})
    host.set(**{"agent.max_lag": 1})
    host.hold(3, 7, 10)
    agent = host.start_agent("--set", f"monitor.address={port}")
    trainer = replay(host, work / "run")
    wait_for(lambda: answers(port)() and ask(port, "/ready").status == 200, "a ready agent")
    engine.broken = {"/collective_rpc": 1000, "/pause": 1000}
    host.go(3)
    wait_for(lambda: ask(port, "/ready").status == 503, "the engine to fall behind")
    reason = ask(port, "/ready").json["reason"]
    assert engine.url in reason and ("behind" in reason or "holds no version" in reason)
    # Readiness may end before the engine has refused: the road's listing shows that it is behind.
    wait_for(lambda: ask(port).json["engines"][0]["status"] != "ok", "the engine's refusal")
    assert sum(ask(port).json["refusals"].values()) > 0
    engine.broken = {}
    host.go(7)
    wait_for(lambda: ask(port, "/ready").status == 200, "the engine to be back")
    host.go(10)
    assert finish(trainer).returncode == 0
    assert finish(agent).returncode == 0


def engine_state(port, url):
    return next(each for each in ask(port).json["engines"] if each["engine"] == url)


def test_a_dead_engine_is_noticed_and_a_restarted_one_is_loaded(work, name):  # noqa: F811
    """While no version comes: only the agent's polls can notice it."""
    history = make_run(work / "run", np.random.default_rng(4), 2)
    engines = [Engine(work / "run/step_000000") for _ in range(3)]
    host = checkpoint_host(work, name, *zip(("vllm", "sglang", "vllm"), engines, strict=True))
    host.set(**{"agent.engine_look": "200ms", "metrics.file": work / "{role}.jsonl"})
    port = free_port()
    agent = host.start_agent("--set", f"monitor.address={port}")
    replay(host, work / "run", "--interval-ms", 600_000)
    wait_for(lambda: answers(port)() and ask(port, "/ready").status == 200, "a ready agent")
    updated = engine_state(port, engines[2].url)["time"]
    for number in (0, 1):
        dying = engines[number]
        dying.die()
        wait_for(lambda: ask(port, "/ready").status == 503, "a dead engine to be noticed")
        assert f"engine {dying.url} cannot be reached: " in ask(port, "/ready").json["reason"]
        dead = engine_state(port, dying.url)
        assert not dead["reachable"] and dead["status"] != "ok" and dead["version"] == 0
        assert dead["proven"] == "" and "does not answer" in dead["error"]
        seen = run("status", f"http://127.0.0.1:{port}", "--json")
        assert seen.returncode == 1
        assert any(f"engine {dying.url}: cannot be reached" in each for each in json.loads(seen.stdout)["wrong"])
        lines = [json.loads(line) for line in (work / "agent.jsonl").read_text().splitlines()]
        last = [line for line in lines if line.get("engine") == dying.url][-1]
        assert not last["reachable"] and last["attempts"] == 0
        metrics = ask(port, "/metrics")
        if metrics.status == 200:
            assert f'driftless_engine_reachable{{engine="{dying.url}"}} 0' in metrics.text
        if number == 0:  # a new server process, with the base's weights
            engines[number] = Engine(work / "run/step_000000", port=dying.server_address[1])
            back = engines[number]
            wait_for(lambda: ask(port, "/ready").status == 200, "the engine to be loaded again")
            assert back.version == "1" and back.loaded[-1] == history[1] and not back.paused
            found = engine_state(port, back.url)
            assert (found["reachable"], found["reload"], found["version"]) == (True, False, 1)
    assert engine_state(port, engines[2].url)["time"] == updated, "its state did not change"
    assert engines[2].loaded == [history[1]]
    agent.send_signal(signal.SIGTERM)
    stopped = finish(agent)
    assert stopped.returncode == 128 + signal.SIGTERM
    assert f"engine {engines[1].url}: " in stopped.stderr


def test_a_restarted_engine_is_loaded_without_a_new_version(work, name):  # noqa: F811
    history = make_run(work / "run", np.random.default_rng(5), 2)
    engine, port = Engine(work / "run/step_000000"), free_port()
    host = checkpoint_host(work, name, ("sglang", engine), **{"agent.engine_look": "200ms"})
    agent = host.start_agent("--set", f"monitor.address={port}")
    replay(host, work / "run", "--interval-ms", 600_000)
    wait_for(lambda: answers(port)() and ask(port, "/ready").status == 200, "a ready agent")
    engine.broken = {"/update_weights_from_disk": 10_000}
    engine.version = "default"  # between two polls
    wait_for(lambda: ask(port, "/ready").status == 503, "the restart to be noticed")
    reason = ask(port, "/ready").json["reason"]
    assert f"engine {engine.url} lost its version and is to be loaded again" in reason
    found = engine_state(port, engine.url)
    assert found["reload"] and found["reachable"] and found["version"] == 0
    assert "is to be loaded again" in run("status", f"http://127.0.0.1:{port}").stdout
    engine.broken = {}
    wait_for(lambda: ask(port, "/ready").status == 200, "the engine to be loaded again")
    assert engine.version == "1" and engine.loaded[-1] == history[1]
    assert not engine_state(port, engine.url)["reload"]
    assert agent.poll() is None


def test_a_stopped_engine_delays_no_other_process(work, name):  # noqa: F811
    history = make_run(work / "run", np.random.default_rng(6), 4)
    stopped, good = (Engine(work / "run/step_000000") for _ in range(2))
    host = checkpoint_host(work, name, ("vllm", stopped), ("vllm", good))
    host.set(**{"agent.engine_look": "100ms", "engine_calls.timeout": "3s", "engine_calls.retries": "0"})
    host.set(**{"deadlines.connect": "15s"})  # so long the agent waits for the stopped one
    host.hold(2)
    agent = host.start_agent()
    trainer = replay(host, work / "run")
    wait_for(lambda: stopped.version == "1" and good.version == "1", "version 1 in both")
    stopped.answering.clear()
    host.go(2)
    wait_for(lambda: good.version == "4", "the last version in the other")
    result = finish(agent)
    stopped.answering.set()
    assert result.returncode == 1 and f"engine {stopped.url}" in result.stderr
    assert good.loaded[-1] == history[-1]
    finish(trainer)


def test_an_agent_knows_its_trainer_and_one_without_engines_is_not_behind(work, name):  # noqa: F811
    make_run(work / "run", np.random.default_rng(7), 6)
    host, port = Host(work, name), free_port()
    host.hold(6)
    agent = host.start_agent("--set", f"monitor.address={port}")
    wait_for(answers(port), "the agent's server")
    assert ask(port).json["trainer"] == {"state": "unknown", "seen": ""}
    trainer = replay(host, work / "run", "--set", "deadlines.connect=3s")
    wait_for(lambda: ask(port).json["version"] >= 4, "version 4")
    shown = ask(port).json
    assert shown["trainer"]["state"] == "alive" and shown["trainer"]["seen"].endswith("Z")
    seen = run("status", host.dir, "--json")
    assert seen.returncode == 0, seen.stdout
    (idle,) = json.loads(seen.stdout)["rollouts"]
    assert idle["idle"] and idle["version"] == 0 and not idle["proven"]
    assert run("status", f"http://127.0.0.1:{port}").returncode == 0
    host.go(6)
    assert finish(trainer).returncode in (0, 1)
    ended(agent)


def test_no_password_of_a_url_is_shown(work, name):  # noqa: F811
    make_run(work / "run", np.random.default_rng(8), 3)
    engine, port = Engine(work / "run/step_000000"), free_port()
    with_user = lambda url: url.replace("://", "://admin:s3cr3t@")  # noqa: E731
    dead = "http://admin:s3cr@3t@127.0.0.1:9"
    host = checkpoint_host(work, name, ("vllm", with_user(engine.url)), ("vllm", dead))
    host.set(**{"road.layout": "hf_delta", "encoding": "xor"})
    host.set(**{"engines[2].url": with_user("http://127.0.0.1:9"), "engines[2].action": "pull_weights"})
    host.set(**{"engines[2].local_checkpoint_dir": work / "told", "engine_calls.retries": "0"})
    host.set(**{"metrics.file": work / "{role}.jsonl", "monitor.spans_file": work / "{role}.spans"})
    host.set(**{"deadlines.connect": "5s"})
    host.hold(3)
    agent = host.start_agent("--set", f"monitor.address={port}")
    trainer = replay(host, work / "run")
    wait_for(lambda: answers(port)() and ask(port).json["version"] == 2, "version 2")
    texts = {path: ask(port, path).text for path in ("/", "/status.json", "/ready", "/metrics")}
    host.go(3)
    for process in (trainer, agent):
        result = finish(process)
        texts[f"output of {process.args[1]}"] = result.stdout + result.stderr
    texts |= {file.name: file.read_text() for file in [*work.glob("*.jsonl"), *work.glob("*.spans")]}
    check = run("config", "check", host.config, *host.settings)
    texts["config check"] = check.stdout + check.stderr + run("config", "check", host.config, *host.settings, "--json").stdout
    refused = run("config", "check", host.config, *host.settings, "--set", "engines[0].url=ftp://admin:s3cr3t@e")
    texts["a refused url"] = refused.stdout + refused.stderr
    assert refused.returncode == 2 and len(texts) == 12
    shown = [what for what, text in texts.items() if "s3cr" in text]
    assert shown == [], shown
    assert engine.version == "3", "it was called"
    lines = [json.loads(line) for line in (work / "agent.jsonl").read_text().splitlines()]
    assert engine.url in {line.get("engine") for line in lines}


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


def test_other_host_names_get_no_answer(trainer):
    """A foreign web page whose host name was resolved to this machine (DNS rebinding)."""
    port = trainer.port
    for host in ("evil.org", f"evil.org:{port}", "localhost", "127.0.0.1:1", "[::2]"):
        refused = ask(port, Host=host)
        assert refused.status == 403 and "versions" not in refused.text, host
    assert ask(port, Host=f"localhost:{port}").status == 200
    assert raw(port, b"GET /status.json HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 403")


def test_a_token_is_required(host, work):
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
    for header in (b"Bearer " + TOKEN.encode() + b"\0", b"Bearer " + TOKEN.encode() + b"\0x", b"Bearer \0"):
        answer = raw(port, b"GET /status.json HTTP/1.1\r\nHost: h\r\nAuthorization: " + header + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400") and b"version" not in answer, header


def test_requests_are_bounded(trainer):
    port = trainer.port
    get = b"GET /ready HTTP/1.1\r\nHost: localhost:%d\r\n" % port
    assert raw(port, get + b"X: " + b"y" * 9000 + b"\r\n\r\n").startswith(b"HTTP/1.1 431")
    assert raw(port, b"y" * 100_000).startswith(b"HTTP/1.1 431")
    assert raw(port, b"GET /" + b"a" * 9000).startswith(b"HTTP/1.1 431")
    assert raw(port, b"\x16\x03\x01\x02\x00\x01\r\n\r\n").startswith(b"HTTP/1.1 400"), "TLS"
    assert raw(port, b"GET\r\n\r\n").startswith(b"HTTP/1.1 400")
    # A body is not read, whatever its Content-Length.
    body = b"POST /ready HTTP/1.1\r\nHost: localhost:%d\r\nContent-Length: 99999999999\r\n\r\n" % port
    assert raw(port, body + b"z" * 50_000).startswith(b"HTTP/1.1 405")
    chunked = get + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"
    assert b" 200 OK" in raw(port, chunked).splitlines()[0]
    # One request per connection: the second one of a pipeline is not answered.
    both = raw(port, (get + b"\r\n") * 2)
    assert both.count(b"HTTP/1.1 200") == 1 and b"Connection: close" in both
    began = time.monotonic()
    assert raw(port, b"GET /ready HTTP/1.1\r\n") == b"", "half a request"
    assert 4 < time.monotonic() - began < 50
    assert ask(port, "/ready").status == 200


def test_slow_and_many_clients_delay_other_processes_only_briefly(host, work):
    port, steps = free_port(), 4
    host.hold(steps)
    process = host.start_trainer(
        "--replay", work / "run", "--rollouts", 0, "--set", f"monitor.address={port}"
    )  # fmt: skip
    wait_for(answers(port), "the status server")
    clients = []
    for _ in range(300):
        client = socket.socket()
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            client.connect(("127.0.0.1", port))
        clients.append(client)

    def refused(client):
        with contextlib.suppress(OSError):
            return client.recv(100, socket.MSG_PEEK).startswith(b"HTTP/1.1 503")
        return False

    def many_are_refused():
        return sum(map(refused, clients)) > 20

    wait_for(many_are_refused, "further connections to be refused at once")
    host.go(steps)
    for client in clients:  # slow bytes: the whole request has 5 s
        with contextlib.suppress(OSError):
            client.send(b"G")
    last = json.loads(finish(process).stdout.splitlines()[-1])
    assert process.returncode == 0 and last["version"] == steps, "published meanwhile, and ended"
    for client in clients:
        client.close()


def test_constantly_renewed_connections_delay_no_probe(trainer):
    """More connections than are read at a time, each replaced as soon as the server closes it."""
    port, over = trainer.port, threading.Event()

    def renew():
        clients = []
        while not over.is_set():
            with contextlib.suppress(OSError):
                clients.append(socket.create_connection(("127.0.0.1", port), timeout=5))
                clients[-1].send(b"GET /status.json HTTP/1.1\r\nHost: localhost\r\n")
            if len(clients) > 60:
                clients.pop(0).close()
            time.sleep(0.005)
        for client in clients:
            client.close()

    attackers = [threading.Thread(target=renew) for _ in range(4)]
    for attacker in attackers:
        attacker.start()
    try:
        time.sleep(3)
        answered = []
        for _ in range(10):
            began = time.monotonic()
            with contextlib.suppress(OSError):
                answered.append((ask(port, "/ready").status, time.monotonic() - began))
    finally:
        over.set()
        for attacker in attackers:
            attacker.join()
    assert len(answered) == 10, answered
    assert all(status == 200 for status, _ in answered), answered
    assert statistics.median(seconds for _, seconds in answered) < 3, answered


def test_a_full_disk_is_named_for_every_file(host, work):
    full = ["--set", "metrics.file=/dev/full", "--set", "monitor.spans_file=/dev/full"]
    trainer = finish(host.start_trainer("--replay", work / "run", "--rollouts", 0, *full))
    assert trainer.returncode == 0
    assert "metrics.file: /dev/full: lines are lost" in trainer.stderr + trainer.stdout
    assert "monitor.spans_file: /dev/full: lines are lost" in trainer.stderr + trainer.stdout


def test_a_stopped_process_answers_once_it_continues(trainer):
    jobs.stop(trainer)
    connection = http.client.HTTPConnection("127.0.0.1", trainer.port, timeout=1)
    with pytest.raises(TimeoutError):
        connection.request("GET", "/ready")
        connection.getresponse()
    connection.close()
    trainer.send_signal(signal.SIGCONT)
    assert ask(trainer.port, "/ready").status == 200


def test_a_port_has_one_process_and_is_free_after_its_end(host, trainer):
    port = trainer.port
    second = finish(host.start_agent("--set", f"monitor.address={port}"))
    assert_refusal(second, 6, "busy", "monitor.address", f"127.0.0.1:{port} is in use")
    for _ in range(3):  # killed with open connections, and restarted at once
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
    with urllib.request.urlopen(line.split()[-1] + "status.json", timeout=60) as response:
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


@pytest.mark.parametrize("token", [TOKEN + "\0", TOKEN + "\0\n", "\0", "two words", "t\u00f6ken"])
def test_a_token_that_no_header_can_hold_is_refused(host, work, token):
    file = work / "token"
    file.write_text(token)
    file.chmod(0o600)
    settings = ["--set", "monitor.address=0", "--set", f"monitor.token_file={file}"]
    assert_refusal(finish(host.start_agent(*settings)), 2, str(file), "no header can hold")
    asked = run("status", "http://127.0.0.1:1", "--token-file", file)
    assert_refusal(asked, 2, str(file), "no header can hold")


def test_a_token_that_others_can_read_is_refused(host, work):
    file = work / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    settings = ["--set", "monitor.address=0", "--set", f"monitor.token_file={file}"]
    assert_refusal(finish(host.start_agent(*settings)), 2, "mode 644", "chmod 600")

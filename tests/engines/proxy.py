# SPDX-License-Identifier: Apache-2.0
"""A proxy in front of a real engine: it can refuse calls, hold them, or forward them to another
engine. Attributes that it does not have are those of the engine."""

import http.client
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Paths:
    """The paths that a driver calls, in the order of an update."""

    pause: str
    begin: str
    write: str
    ask: str
    finish: str
    clear: str
    resume: str


PATHS = {
    "vllm_server": Paths("/pause", "/start_weight_update", "/update_weights", "/collective_rpc",
                         "/finish_weight_update", "/reset_prefix_cache", "/resume"),
    "sglang": Paths("/pause_generation", "/begin_weight_update", "/update_weights_from_tensor",
                    "/update_weights_from_tensor", "/end_weight_update", "/flush_cache",
                    "/continue_generation"),
}  # fmt: skip


class Held:
    """Holds the first call that matches: `reached` is set when it arrives; it waits for
    release()."""

    def __init__(self):
        self.reached, self._go, self._forward = threading.Event(), threading.Event(), True

    def release(self, forward=True):
        self._forward = forward
        self._go.set()

    def wait(self):
        self.reached.set()
        self._go.wait()
        return self._forward


class Proxy:
    """`engine` may be replaced. Functions match calls by `path`, `body` and `commit`: the paths
    since the pause of the current update (None: there is no update)."""

    def __init__(self, engine, paths):
        self.engine, self.paths = engine, paths
        self.calls = []
        self._commit, self._lock = None, threading.Lock()
        self._refused, self._held = [], []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def close(self):
        for _, held in self._held:
            held.release(forward=False)
        self.server.shutdown()
        self.server.server_close()

    @contextmanager
    def refuse(self, match):
        """Fails calls that match; they do not reach the engine."""
        self._refused.append(match)
        try:
            yield
        finally:
            self._refused.remove(match)

    def hold(self, match):
        self._held.append((match, Held()))
        return self._held[-1][1]

    def _handler(proxy):  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer(*proxy._pass_on("GET", self.path, b""))

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.answer(*proxy._pass_on("POST", self.path, body))

            def answer(self, status, kind, text):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_): ...

        return Handler

    def _pass_on(self, method, target, body):
        call = self._note(urlsplit(target).path, json.loads(body) if body else {})
        if any(match(call) for match in self._refused):
            return 400, "application/json", b'{"message": "injected by the proxy"}'
        for match, held in list(self._held):
            if not held.reached.is_set() and match(call) and not held.wait():
                return 500, "application/json", b'{"message": "dropped by the proxy"}'
        if call.path == self.paths.resume:
            self._commit = None
        try:
            return self._forward(method, target, body)
        except OSError as problem:
            return 502, "application/json", json.dumps({"message": str(problem)}).encode()

    def _note(self, path, body):
        with self._lock:
            self.calls.append(path)
            if path == self.paths.pause and body.get("mode") != "in_place":
                self._commit = []
            commit = None if self._commit is None else list(self._commit)
            if self._commit is not None:
                self._commit.append(path)
            return SimpleNamespace(path=path, body=body, commit=commit)

    def _forward(self, method, target, body):
        connection = http.client.HTTPConnection(urlsplit(self.engine.url).netloc, timeout=600)
        try:
            headers = {"Content-Type": "application/json"} if body else {}
            connection.request(method, target, body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Type", "text/plain"), answer.read()
        finally:
            connection.close()

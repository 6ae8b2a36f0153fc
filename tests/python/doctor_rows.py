# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of `driftless doctor`: its rows, and servers that answer from a table."""

import contextlib
import http.server
import json
import socket
import threading
import time

from support import run

LONGEST = 30  # seconds; doctor ends within 10 s, unless the machine is busy


def doctor(*arguments, code=None, **options):
    """{(group, check): row} of one run."""
    begin = time.monotonic()
    result = run("doctor", "--json", *arguments, **options)
    took = time.monotonic() - begin
    assert result.stderr == "", result.stderr
    report = json.loads(result.stdout)
    assert report["seconds"] < LONGEST and took < 2 * LONGEST, report["seconds"]
    failed = [row for row in report["checks"] if row["state"] == "fail"]
    assert report["ok"] == (not failed) and result.returncode == (1 if failed else 0), failed
    assert code is None or result.returncode == code, failed
    assert all(row["next"] for row in failed), failed
    assert all(row["finding"] for row in report["checks"])
    return {(row["group"].split(" ")[-1], row["check"]): row for row in report["checks"]}


def assert_row(rows, group, check, state, *words):
    row = rows[group, check]
    text = f"{row['finding']} -> {row['next']}"
    assert row["state"] == state, text
    for word in words:
        assert word in text, f"no {word!r} in {text}"


def config(work, text):
    path = work / "job.yaml"
    path.write_text(text)
    return ["--config", path]


class Engine(http.server.BaseHTTPRequestHandler):
    """Answers from a table {path: answer}, where an answer is a dict or a status. Paths for POST
    answer 405 to GET, as in FastAPI."""

    def log_message(self, *_):
        pass

    def reply(self, answer):
        status, content = (answer, {}) if isinstance(answer, int) else (200, answer)
        if isinstance(content, tuple):
            status, content = content
        body = json.dumps(content).encode()
        self.send_response_only(status)
        self.send_header("Date", self.server.date or self.date_time_string())
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self, method):
        size = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(size)
        self.server.calls.append((method, self.path))
        path = self.path.split("?")[0]
        key = self.server.key
        if key and path in self.server.guarded and self.headers["Authorization"] != f"Bearer {key}":
            return self.reply(401)
        answers = self.server.answers
        if (method, path) in answers:
            return self.reply(answers[method, path])
        other = "POST" if method == "GET" else "GET"
        return self.reply(405 if (other, path) in answers else 404)

    def do_GET(self):
        self.answer("GET")

    def do_HEAD(self):
        self.answer("HEAD")

    def do_POST(self):
        self.answer("POST")

    def do_PUT(self):
        self.answer("PUT")


@contextlib.contextmanager
def served(answers, key="", guarded=(), date=""):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    server.answers, server.key, server.guarded, server.date = answers, key, guarded, date
    server.calls = []
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        url = Address(f"http://127.0.0.1:{server.server_address[1]}")
        url.calls = server.calls
        yield url
    finally:
        server.shutdown()
        server.server_close()


class Address(str):
    """A server's address, with the calls that it received."""


def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"

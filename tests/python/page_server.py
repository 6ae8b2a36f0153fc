# SPDX-License-Identifier: Apache-2.0
"""Serves the live page with a made-up run, for its tests, its benchmark and the screenshot in the
documentation. The status has the keys that docs/operate/metrics.md describes.

    page_server.py [--engines 64] [--versions 10000] [--port 8077]
"""

import argparse
import base64
import hashlib
import json
import random
import re
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

PAGE = Path(__file__).resolve().parents[2] / "plugin/observe/page.html"
RUN = "3f2a91c45d0e4b7798c1d2e3f4a5b6c7"
UNITS = 8_030_261_248
TENSORS = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")


def utc(seconds):
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    return text[:-3] + "Z"


class MadeRun:
    """A run of `engines` engines and `versions` versions, 30 s apart, the newest 8 s old."""

    def __init__(self, engines=64, versions=10000, rollouts=4, seed=7, now=None, role="trainer"):
        self.random = random.Random(seed)
        self.now = now or time.time()
        self.role = role
        self.versions = [self._version(v, self.now - 8 - 30 * (versions - v))
                         for v in range(1, versions + 1)]  # fmt: skip
        self.engines = [self._engine(number) for number in range(engines)]
        self.rollouts = [self._rollout(number) for number in range(rollouts)]
        self.trainer = {"state": "alive", "seen": utc(self.now - 1)}
        self.refusals = {"unavailable": 5, "timeout": 2, "corrupt": 1} if engines else {}

    def newest(self):
        return self.versions[-1]["version"] if self.versions else 0

    def digest(self, version):
        return hashlib.md5(f"{version}".encode()).hexdigest()

    def _begin(self, role, when, rank=0, host="trainer-0"):
        return {"role": role, "rank": rank, "host": host, "time": utc(when), "run": RUN,
                "monotonic_ms": when * 1000 % 1e9}  # fmt: skip

    def _version(self, version, when):
        pick = self.random
        anchor = version % 200 == 0
        density = 0.012 + 0.03 * 0.9996**version * (0.6 + 0.8 * pick.random())
        changed = int(UNITS * density)
        delta = int(changed * (1.55 + 0.1 * pick.random()))
        process = 2600 * (0.8 + 0.5 * pick.random()) * (1.6 if anchor else 1)
        publish = 140 * (0.7 + pick.random())
        rest = 60 * pick.random()
        changes = [{"tensor": f"model.layers.{(version + 7 * k) % 32}.{TENSORS[k % 4]}.weight",
                    "changed_units": int(58_720_256 * density * (4 - 0.2 * k)),
                    "total_units": 58_720_256} for k in range(16)]  # fmt: skip
        return {**self._begin(self.role, when), "version": version, "base_version": version - 1,
                "versions": 1, "anchor": anchor, "digest": self.digest(version),
                "changed_units": changed, "full_bytes": 2 * UNITS, "delta_bytes": delta,
                "wire_bytes": (2 * UNITS if anchor else 0) + delta, "most_changed": changes,
                "encoding": "compact", "density": density, "process_ms": process,
                "manifest_publish_ms": publish, "total_ms": process + publish + rest,
                "compare_ms": 0.5 * process, "encode_ms": 0.7 * process,
                "send_ms": 0.4 * process, "seal_ms": 0.6 * publish}  # fmt: skip

    def _engine(self, number, version=None, when=None):
        pick = self.random
        version = self.newest() if version is None else version
        when = self.now - 4.5 + pick.random() if when is None else when
        host = f"rollout-{number // 8:02d}"
        return {**self._begin("agent", when, number // 8, host),
                "engine": f"http://{host}:{30000 + number % 8}",
                "kind": "sglang" if number % 2 else "vllm", "version": version, "goal": version,
                "digest": self.digest(version), "proven": "workers", "status": "ok",
                "reachable": True, "reload": False, "attempts": 1,
                "stage_ms": 900 + 700 * pick.random(), "pause_ms": 6 + 25 * pick.random() ** 3,
                "apply_ms": 70 + 40 * pick.random(),
                "resume_ms": 3 + 6 * pick.random()}  # fmt: skip

    def _rollout(self, number):
        return {"id": f"rollout-{number:02d}", "run": RUN, "version": self.newest(),
                "digest": self.digest(self.newest()), "proven": True, "unproven": 0, "left": False, "idle": False,
                "stage_ms": 1200.5 + number, "commit_ms": 95.25 + number}  # fmt: skip

    def step(self, when=None):
        """Adds a version, and brings every engine to it."""
        when = when or time.time()
        self.versions.append(self._version(self.newest() + 1, when - 4))
        self.engines = [self._engine(number, when=when - self.random.random())
                        for number in range(len(self.engines))]  # fmt: skip
        for rollout in self.rollouts:
            rollout.update(version=self.newest(), digest=self.digest(self.newest()))

    def fail(self, number, behind=1, status="unavailable", error="connection refused"):
        engine = self.engines[number]
        version = self.newest() - behind
        engine.update(version=version, digest=self.digest(version), status=status, error=error,
                      proven="", attempts=3)  # fmt: skip

    def status(self, since=0, now=None):
        newest = self.newest()
        with_lag = [[{**record, "lag": newest - record["version"]} for record in records]
                    for records in (self.engines, self.rollouts)]  # fmt: skip
        return {"schema": 1, "role": self.role, "rank": 0, "host": "trainer-0",
                "time": utc(now or time.time()), "run": RUN, "version": newest,
                "digest": self.digest(newest), "trainer": self.trainer,
                "versions": [v for v in self.versions if v["version"] > since][-10000:],
                "engines": with_lag[0], "rollouts": with_lag[1],
                "failing": "", "fallback": "",
                "refusals": self.refusals}  # fmt: skip


def policy(page):
    """The content security policy under which the page must work: only its own style and script."""
    hashes = {}
    for tag in ("style", "script"):
        source = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.S)[1]
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        hashes[tag] = f"'sha256-{digest}'"
    return (f"default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; "
            f"form-action 'none'; style-src {hashes['style']}; "
            f"script-src {hashes['script']}")  # fmt: skip


class PageServer:
    """Serves the page and `answer(since)`, and records the requests. `broken`: an HTTP status that
    /status.json returns instead, or "hang"."""

    def __init__(self, answer, port=0):
        self.answer, self.broken, self.requests = answer, None, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                outer.requests.append(self.path)
                url = urlparse(self.path)
                if url.path == "/":
                    page = PAGE.read_text()
                    self.reply(200, page, "text/html; charset=utf-8", policy(page))
                elif url.path != "/status.json":
                    self.reply(404, "", "text/plain")
                elif outer.broken == "hang":
                    time.sleep(8)
                    self.close_connection = True
                elif outer.broken:
                    self.reply(outer.broken, "", "text/plain")
                else:
                    since = int(parse_qs(url.query).get("since", ["0"])[0])
                    answer = outer.answer(since)
                    text = answer if isinstance(answer, str) else json.dumps(answer)
                    self.reply(200, text, "application/json")

            def reply(self, code, text, kind, csp=None):
                body = text.encode("utf-8", "replace")
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                if csp:
                    self.send_header("Content-Security-Policy", csp)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", type=int, default=64)
    parser.add_argument("--versions", type=int, default=10000)
    parser.add_argument("--port", type=int, default=8077)
    options = parser.parse_args()
    made = MadeRun(options.engines, options.versions)
    server = PageServer(made.status, options.port)
    print(server.url, flush=True)
    while True:
        time.sleep(5)
        made.step()
        made.trainer["seen"] = utc(time.time())


if __name__ == "__main__":
    main()

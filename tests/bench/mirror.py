#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mirrors a directory of versions to another host over HTTP, as between two datacenters.

    mirror.py serve DIR PORT     on the trainer's host
    mirror.py pull HOST:PORT     as road.shared_fs.before_read on a rollout's host: fetches new versions into
                                 $DRIFTLESS_DIR, each under a hidden name that is then renamed
"""
import http.client
import json
import os
import pathlib
import shutil
import sys

PREFIXES = ("weight_v", "anchor_v")
PIECE = 1 << 20


def listing(directory):
    """Complete files only; each after its directory, if it is in one."""
    found = {}
    for path in directory.iterdir():
        if path.name.startswith(PREFIXES):
            found[path.name] = sorted(part.name for part in path.iterdir())
    return found


def serve(directory, port):
    import http.server

    class Handler(http.server.SimpleHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            if self.path != "/":
                return super().do_GET()
            text = json.dumps(listing(directory)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            return None

    def handler(*arguments):
        return Handler(*arguments, directory=str(directory))

    http.server.ThreadingHTTPServer(("", port), handler).serve_forever()


def fetch(connection, name):
    connection.request("GET", "/" + name)
    answer = connection.getresponse()
    if answer.status != 200:
        answer.read()
        raise FileNotFoundError(name)
    return answer


def fetch_file(connection, name, path):
    answer = fetch(connection, name)
    with open(path, "wb") as file:
        shutil.copyfileobj(answer, file, PIECE)


def pull(address, directory):
    directory.mkdir(parents=True, exist_ok=True)
    connection = http.client.HTTPConnection(address, timeout=600)
    if not (directory / "run.json").exists():
        try:
            fetch_file(connection, "run.json", directory / ".run.json.tmp")
        except FileNotFoundError:
            return  # no run yet
        os.rename(directory / ".run.json.tmp", directory / "run.json")
    there = json.loads(fetch(connection, "").read())
    for name in sorted(there, key=lambda version: version[-6:]):
        if (directory / name).exists():
            continue
        hidden = directory / f".{name}.pulled.tmp"
        shutil.rmtree(hidden, ignore_errors=True)
        hidden.mkdir()
        for part in there[name]:
            fetch_file(connection, f"{name}/{part}", hidden / part)
        os.rename(hidden, directory / name)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(pathlib.Path(sys.argv[2]), int(sys.argv[3]))
    else:
        pull(sys.argv[2], pathlib.Path(os.environ["DRIFTLESS_DIR"]))

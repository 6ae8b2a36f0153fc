# SPDX-License-Identifier: Apache-2.0
"""A proxy in front of an object store that answers some requests with faults.

    with FaultyProxy(endpoint) as proxy:
        proxy.fault = lambda request: "500" if request.method == "PUT" else None

`fault` is called for every request, with its number, method, path and query; it returns the name of a
fault, or None. `dropped`: headers that are not forwarded. `log` records all requests with their faults.
Signatures stay valid: the Host header that the client signed is forwarded.

With a `directory`, that of `rclone serve s3`, the proxy enforces If-None-Match and If-Match itself, by
looking at the files there, except for conditions in `ignored`. These headers are still forwarded,
because rclone checks the signatures over them."""

import contextlib
import hashlib
import http.client
import http.server
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

ERROR = '<?xml version="1.0"?><Error><Code>{}</Code><Message>{}</Message></Error>'
# Answered without forwarding the request to the store.
ANSWERS = {
    "500": (500, "InternalError"),
    "503": (503, "SlowDown"),
    "412": (412, "PreconditionFailed"),
    "409": (409, "ConditionalRequestConflict"),
    "403": (403, "AccessDenied"),
    "expired": (400, "ExpiredToken"),
    "skewed": (403, "RequestTimeTooSkewed"),
}
FAULTS = (*ANSWERS, "cut", "cut_after", "truncate", "short", "stale")
ANSWERS["404"] = (404, "NoSuchKey")  # not a fault of the store: another client removed the object


@dataclass
class Request:
    number: int
    method: str
    path: str
    query: str
    fault: str | None = None

    @property
    def lists(self):
        return self.method == "GET" and "list-type=2" in self.query

    @property
    def seals(self):
        return self.method == "PUT" and "/versions/" in self.path


class FaultyProxy:
    def __init__(self, endpoint, directory=None):
        self.target = urlsplit(endpoint).netloc
        self.directory = directory
        self.ignored = ()  # conditions that the proxy does not enforce
        self._writing = threading.Lock()  # held from the check of a condition to the end of its request
        self.fault = lambda request: None
        self.dropped = ()  # headers that the store never sees
        self.lies = False  # sends wrong ETags for reads
        self.log = []
        self._stale = {}  # prefix -> its first list
        self._lock = threading.Lock()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_any(self):
                proxy._serve(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, *ignored):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *ignored):
        self.server.shutdown()
        self.server.server_close()

    def _serve(self, handler):
        parts = urlsplit(handler.path)
        with self._lock:
            request = Request(len(self.log), handler.command, parts.path, parts.query)
            self.log.append(request)
            request.fault = self.fault(request)
        length = int(handler.headers.get("Content-Length") or 0)
        body = handler.rfile.read(length)
        if len(body) < length:  # the client was killed
            handler.close_connection = True
            return
        if request.fault in ANSWERS:
            status, code = ANSWERS[request.fault]
            self._answer(handler, status, {}, ERROR.format(code, "made up").encode())
        elif request.fault == "cut":
            handler.close_connection = True
        else:
            writes = self.directory and request.method in ("PUT", "DELETE") and not request.query
            with self._writing if writes else contextlib.nullcontext():
                unmet = self._unmet(handler.headers, request) if writes else None
                if unmet is None:
                    return self._pass_on(handler, request, body)
            status, code = ANSWERS[unmet]
            self._answer(handler, status, {}, ERROR.format(code, "as asked for").encode())

    def _unmet(self, headers, request):
        """The answer to an unmet condition; None if it is met."""
        path = Path(self.directory) / unquote(request.path).lstrip("/")
        if "if-none-match" in headers:
            return "412" if path.is_file() else None
        if "if-match" in headers and "if-match" not in self.ignored:
            if not path.is_file():
                return "404"
            tag = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
            return None if headers["if-match"].strip('"') == tag else "412"
        return None

    def _pass_on(self, handler, request, body):
        connection = http.client.HTTPConnection(self.target, timeout=60)
        connection.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
        for name, value in handler.headers.items():
            if name.lower() not in ("connection", *self.dropped):
                connection.putheader(name, value)
        connection.endheaders(body or None)
        answer = connection.getresponse()
        data, headers = answer.read(), dict(answer.getheaders())
        connection.close()
        if self.lies and handler.command == "GET":
            headers = {k: f'"lie-{request.number}"' if k.lower() == "etag" else v for k, v in headers.items()}
        if request.lists:
            data = self._list(request, data)
        if request.fault == "cut_after":  # the request was executed, but the client gets no answer
            handler.close_connection = True
        else:
            self._answer(handler, answer.status, headers, data, request.fault)

    def _list(self, request, data):
        prefix = re.search(r"prefix=([^&]*)", request.query).group(1)
        with self._lock:
            first = self._stale.setdefault(prefix, data)
        return first if request.fault == "stale" else data

    def _answer(self, handler, status, headers, data, fault=None):
        """truncate: fewer bytes than Content-Length. short: fewer bytes, with a matching header."""
        if fault == "short":
            data = data[: len(data) // 2]
        handler.send_response(status)
        skipped = {"transfer-encoding", "connection", "content-length", "date", "server"}
        for name, value in headers.items():
            if name.lower() not in skipped:
                handler.send_header(name, value)
        length = len(data)
        if handler.command == "HEAD":
            length = int(headers.get("Content-Length", 0))
        handler.send_header("Content-Length", str(length))
        handler.end_headers()
        if handler.command == "HEAD":
            return
        cut = fault == "truncate"
        try:
            handler.wfile.write(data[: length // 2] if cut else data)
        except OSError:
            cut = True
        if cut:
            handler.close_connection = True

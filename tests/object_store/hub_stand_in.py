# SPDX-License-Identifier: Apache-2.0
"""Replaces the Hugging Face Hub for buckets: the calls of huggingface_hub to /api/buckets and
/buckets/.../resolve, in pages. Contents are stored by their hash, instead of in Xet's store;
`XetSession` uploads them."""

import contextlib
import hashlib
import http.server
import json
import threading
import types
import urllib.request
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = 3  # files per answer
TOKEN = "hf_secretTokenOfTheTests"


class Hub:
    """`fault` is called with (method, path) of every request: a status, "partial" or None."""

    def __init__(self):
        self.files, self.contents, self.log = {}, {}, []
        self.fault = lambda method, path: None
        self.lock = threading.Lock()
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer_any(self):
                hub.serve(self)

            do_GET = do_POST = do_HEAD = answer_any

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

    def serve(self, handler):
        url = urlsplit(handler.path)
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        with self.lock:
            self.log.append((handler.command, url.path))
            fault = self.fault(handler.command, url.path)
            known = handler.headers.get("authorization") == f"Bearer {TOKEN}"
            if isinstance(fault, int):
                status, headers, data = fault, {}, b"{}"
            elif not known and not url.path.startswith("/xet"):
                status, headers, data = 401, {}, b'{"error": "who are you?"}'
            else:
                status, headers, data = self.answer(url, body, fault)
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        with contextlib.suppress(OSError):
            handler.wfile.write(b"" if handler.command == "HEAD" else data)

    def answer(self, url, body, fault):
        parts = url.path.strip("/").split("/")
        if parts[0] == "xet":
            return 200, {}, self.content(parts, body)
        if parts[0] == "buckets":  # buckets/user/name/resolve/path
            xet_hash, _ = self.files[unquote(parts[4])]
            route = f"{self.endpoint}/api/token"
            return 200, {"X-Xet-Hash": xet_hash, "X-Xet-Refresh-Route": route, "X-Linked-Size": "1"}, b""
        what = parts[4]
        if what == "tree":
            return self.tree(url, unquote(parts[5]) if len(parts) > 5 else "")
        if what == "paths-info":
            found = [self.info(path) for path in json.loads(body)["paths"] if path in self.files]
            return 200, {}, json.dumps(found).encode()
        return 200, {}, json.dumps({"failed": self.batch(body, fault)}).encode()

    def content(self, parts, body):
        if len(parts) == 2:
            return self.contents[parts[1]]
        xet_hash = hashlib.sha256(body).hexdigest()
        self.contents[xet_hash] = body
        return xet_hash.encode()

    def info(self, path):
        xet_hash, size = self.files[path]
        return {"type": "file", "path": path, "size": size, "xetHash": xet_hash}

    def tree(self, url, prefix):
        begin = int(parse_qs(url.query).get("cursor", ["0"])[0])
        inside = sorted(p for p in self.files if not prefix or p.startswith(f"{prefix}/"))
        headers = {}
        if len(inside) > begin + PAGE:
            again = f"{self.endpoint}{url.path}?recursive=true&cursor={begin + PAGE}"
            headers["Link"] = f'<{again}>; rel="next"'
        page = [self.info(path) for path in inside[begin : begin + PAGE]]
        return 200, headers, json.dumps(page).encode()

    def batch(self, body, fault):
        failed = []
        for line in body.decode().splitlines():
            operation = json.loads(line)
            path = operation["path"]
            if fault == "partial" or (operation["type"] == "deleteFile" and path not in self.files):
                failed.append({"path": path, "error": "not today"})
            elif operation["type"] == "deleteFile":
                del self.files[path]
            else:
                xet_hash = operation["xetHash"]
                self.files[path] = (xet_hash, len(self.contents[xet_hash]))
        return failed


class XetSession:
    """The calls of huggingface_hub to hf_xet; contents go to the stand-in unchanged."""

    def __init__(self, endpoint):
        self.endpoint = endpoint

    def new_upload_commit(self, **ignored):
        return contextlib.nullcontext(self)

    def new_file_download_group(self, **ignored):
        return contextlib.nullcontext(self)

    def start_upload_file(self, path, sha256=None):
        with open(path, "rb") as file:
            return self.start_upload_bytes(file.read())

    def start_upload_bytes(self, data, sha256=None):
        request = urllib.request.Request(f"{self.endpoint}/xet", data=data, method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            info = types.SimpleNamespace(hash=answer.read().decode(), file_size=len(data))
        return types.SimpleNamespace(result=lambda: types.SimpleNamespace(xet_info=info))

    def start_download_file(self, info, path):
        with urllib.request.urlopen(f"{self.endpoint}/xet/{info.hash}", timeout=60) as answer:
            data = answer.read()
        with open(path, "wb") as file:
            file.write(data)

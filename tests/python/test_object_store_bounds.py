# SPDX-License-Identifier: Apache-2.0
"""Malicious servers: endless lists, documents that would fill memory, wrong lengths, redirects to
other hosts, echoes of requests. A rollout and a trainer end in time, use little memory, and print
no credentials."""

import contextlib
import http.server
import json
import os
import subprocess
import sys
import threading
import time

import pytest

import jobs
from jobs import make_run
from support import COMMAND, REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tests/object_store"))
import servers  # noqa: E402

PAGE = '<?xml version="1.0"?><ListBucketResult><IsTruncated>{}</IsTruncated>{}{}</ListBucketResult>'


@contextlib.contextmanager
def answering(answer):
    """A server that answers by `answer(handler)`; `requests` has those that it received."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            server.requests.append((self.command, self.path, dict(self.headers)))
            with contextlib.suppress(OSError):
                answer(self)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

        def log_message(self, *ignored):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.requests = []
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def reply(handler, text, status=200, **headers):
    data = text.encode()
    handler.send_response(status)
    for name, value in ({"Content_Length": str(len(data))} | headers).items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(data)


def lists(handler):
    return "list-type=2" in handler.path


def or_nothing(listed):
    """Answers lists by `listed`; no object exists, and each can be written once."""
    written = set()

    def answer(handler):
        if lists(handler):
            listed(handler)
        elif handler.command in ("GET", "HEAD"):
            reply(handler, "<Error><Code>NoSuchKey</Code></Error>", 404)
        elif handler.headers.get("If-None-Match") and handler.path in written:
            reply(handler, "<Error><Code>PreconditionFailed</Code></Error>", 412)
        else:
            written.add(handler.path)
            reply(handler, "", ETag='"tag"')

    return answer


def contents(count, first=0):
    key = "<Contents><Key>p/versions/{:019d}.version.json</Key><Size>9</Size></Contents>"
    return "".join(key.format(first + i + 1) for i in range(count))


def endless_list(handler):
    number = len(handler.server.requests)
    token = f"<NextContinuationToken>t{number}</NextContinuationToken>"
    reply(handler, PAGE.format("true", contents(50_000, 50_000 * number), token))


def list_in_a_circle(handler):
    token = "<NextContinuationToken>again</NextContinuationToken>"
    reply(handler, PAGE.format("true", contents(10), token))


def laughs(handler):
    entities = '<!ENTITY a0 "ha">' + "".join(
        f'<!ENTITY a{i + 1} "{f"&a{i};" * 10}">' for i in range(12)
    )
    reply(handler, f"<!DOCTYPE l [{entities}]><ListBucketResult><Contents><Key>&a12;</Key></Contents></ListBucketResult>")


def deep(handler):
    reply(handler, "<ListBucketResult>" + "<a>" * 4_000_000)


def endless_body(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", str(1 << 50))
    handler.end_headers()
    while True:
        handler.wfile.write(b"x" * (1 << 20))


def endless_headers(handler):
    handler.send_response(200)
    while True:
        handler.wfile.write(b"X-More: " + b"x" * 1000 + b"\r\n")


def echo(handler):
    """Returns the request as the code of an error."""
    sent = handler.headers.get("Authorization", "") + handler.headers.get("x-amz-date", "")
    reply(handler, f"<Error><Code>{sent}\x1b[2J</Code><Message>{sent}</Message></Error>", 400)


def negative(handler):
    reply(handler, "x", Content_Length="-5", ETag='"x"')


def not_http(handler):
    handler.wfile.write(os.urandom(1 << 16))
    handler.close_connection = True


ANSWERS = {
    "endless list": or_nothing(endless_list),
    "list in a circle": or_nothing(list_in_a_circle),
    "laughs": or_nothing(laughs),
    "deep": or_nothing(deep),
    "endless body": endless_body,
    "endless headers": endless_headers,
    "echo": echo,
    "negative length": negative,
    "not HTTP": not_http,
}


def ends(role, server, work, *more, url="s3://road/p"):
    """Exit status, output, peak memory in MiB and seconds of a role with this server."""
    jobs.need("object_store")
    line = [COMMAND, role, "--config", REPOSITORY / "configs/object_store.yaml", "--threads", "1", *more]
    settings = {"url": url, "endpoint": server.url}
    for key, value in settings.items():
        line += ["--set", f"road.object_store.{key}={value}"]
    for key in ("connect", "fetch", "publish"):
        line += ["--set", f"deadlines.{key}=4s"]
    began = time.monotonic()
    with open(work / "out", "w+") as out:
        process = subprocess.Popen(
            [*map(str, line)], env=servers.client_environment(), stdout=out, stderr=out
        )
        killer = threading.Timer(300, process.kill)
        killer.start()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status  # os.wait4() has already reaped it
        killer.cancel()
        out.seek(0)
        text = out.read()
    signed = {
        part.removeprefix("Signature=")
        for _, _, headers in server.requests
        for part in headers.get("Authorization", "").split(", ")
        if part.startswith("Signature=")
    }
    for secret in (servers.SECRET_KEY, servers.ACCESS_KEY, *signed):
        assert secret not in text, text
    return status, text, usage.ru_maxrss / 1024, time.monotonic() - began


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("role", ["rollout", "trainer"])
def test_a_malicious_server_only_fails_the_call(work, rng, role, name):
    make_run(work / "run", rng, 1)
    more = {
        "rollout": ["--base", work / "run/step_000000", "--timeout", "8s"],
        "trainer": ["--replay", work / "run"],
    }[role]
    with answering(ANSWERS[name]) as server:
        status, text, peak, seconds = ends(role, server, work, *more)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0, text
    assert text.strip() and "\x1b" not in text and len(text) < 4000
    if role == "trainer" and "list" in name:  # under load the deadline may come before the limit
        assert "list" in text or ("endless" in name and "gave up" in text), text
    assert seconds < 120 and peak < 450, (seconds, peak, text)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(work, rng, status):
    """Neither with credentials nor without."""
    make_run(work / "run", rng, 1)
    with answering(lambda handler: reply(handler, "")) as elsewhere:
        lead = lambda handler: reply(handler, "", status, Location=elsewhere.url + handler.path)  # noqa: E731
        with answering(lead) as server:
            for role, more in (("rollout", ["--timeout", "5s"]), ("trainer", ["--replay", work / "run"])):
                code, text, _, _ = ends(role, server, work, *more)
                assert os.WEXITSTATUS(code) != 0 and f"status {status}" in text, text
            web = ["--set", f"road.object_store.url={server.url}/p?token=s3cr3t", "--timeout", "5s"]
            code, text, _, _ = ends("rollout", server, work, *web)
            assert os.WEXITSTATUS(code) != 0 and "s3cr3t" not in text, text
            assert len(server.requests) >= 3
        assert elsewhere.requests == []


# --- names that lead elsewhere, dead endpoints ---------------------------------------------------

LEADS_ELSEWHERE = (
    "s3://road/../other/z", "s3://road/a/../../other", "s3://road/%2e%2e/other", "s3://road/%2E./z",
    "s3://../z", "s3://road/./z", "s3://road/a//b", "s3://road/a%2f..%2f..%2fother",
)  # fmt: skip


@pytest.mark.parametrize("role", ["rollout", "trainer"])
def test_a_url_that_leads_out_of_its_bucket_is_refused_before_a_request(work, rng, role):
    make_run(work / "run", rng, 1)
    more = {"rollout": ["--timeout", "5s"], "trainer": ["--replay", work / "run"]}[role]
    with answering(lambda handler: reply(handler, "")) as server:
        urls = [*LEADS_ELSEWHERE]
        if role == "rollout":
            urls += [f"{server.url}/road/{path}" for path in ("../other", "%2e%2e/other", "a//b")]
        for url in urls:
            code, text, _, _ = ends(role, server, work, *more, url=url)
            assert os.WEXITSTATUS(code) == 2 and "road.object_store.url" in text, (url, text)
        assert server.requests == []


def test_links_that_lead_out_of_their_folder_are_refused(work):
    """Including links in an index.json that leads elsewhere."""

    def index(handler):
        base = f"{handler.server.url}/road/%2e%2e/other/"
        links = {"base": base, "query": "X-Amz-Signature=", "expires": "2099-01-01T00:00:00Z"}
        links["signatures"] = {"run.json": "0"}
        reply(handler, json.dumps({"format": 1, "versions": [], "links": links}))

    with answering(index) as server:
        url = f"{server.url}/road/p/index.json?X-Amz-Signature=1"
        code, text, _, _ = ends("rollout", server, work, "--timeout", "5s", url=url)
        assert os.WEXITSTATUS(code) == 2 and "'..'" in text, text
        assert {path.partition("?")[0] for _, path, _ in server.requests} == {"/road/p/index.json"}


@pytest.mark.parametrize("role", ["rollout", "trainer", "web rollout"])
def test_a_dead_endpoint_is_named_with_its_cause(work, rng, role):
    """The error does not only name a deadline."""
    make_run(work / "run", rng, 1)
    with answering(lambda handler: reply(handler, "")) as server:
        pass  # the port has no listener any more
    more = ["--replay", work / "run"] if role == "trainer" else ["--timeout", "5s"]
    url = f"{server.url}/p" if role == "web rollout" else "s3://road/p"
    code, text, _, _ = ends(role.split()[-1], server, work, *more, url=url)
    assert os.WEXITSTATUS(code) != 0
    assert "onnection refused" in text and server.url in text, text

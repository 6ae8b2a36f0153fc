# SPDX-License-Identifier: Apache-2.0
"""Rollouts that read a prefix over HTTP and HTTPS, without credentials."""

import contextlib
import functools
import http.server
import shutil
import ssl
import subprocess
import sys
import threading
import time

import pytest

from jobs import make_run
from support import REPOSITORY, assert_refusal, read_checkpoint, run
from test_object_store import job, only, server  # noqa: F401

sys.path.insert(0, str(REPOSITORY / "tests/object_store"))
import servers  # noqa: E402

# ruff: noqa: F811


@contextlib.contextmanager
def web_server(directory, certificate=None, handler=None):
    """Serves files over HTTP, without authentication. It answers a range with the whole file."""
    handler = functools.partial(handler or QuietHandler, directory=directory)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        scheme = "https" if certificate else "http"
        yield f"{scheme}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *ignored):
        pass


@pytest.fixture
def published(job, rng):
    """A job with three versions, in a store whose files a web server can serve: rclone's."""
    job.history = make_run(job.work / "run", rng, 3)
    job.ok(*job.line("trainer", "--replay", job.work / "run", "--json"))
    return job


@pytest.fixture
def shared(job, rng):
    """A job with three versions and presigned links, in either store."""
    job.history = make_run(job.work / "run", rng, 3)
    job.ok(*job.line("trainer", "--replay", job.work / "run", **{"road.object_store.presign": "1h"}))
    return job


def presign(job, *more):
    """A presigned URL, which is a secret: no output may contain it."""
    result = run(*job.line("presign", *more), env=job.environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def read_presigned(job, url, *more):
    settings = {"road.object_store.url": url, "road.object_store.endpoint": "", "deadlines.connect": "60s"}
    line = job.line("rollout", "--save", job.work / "a", "--timeout", "240s", *more, **settings)
    result = run(*line, env=reader_environment())
    signature = url.partition("X-Amz-Signature=")[2]
    assert len(signature) == 64 and signature not in result.stdout + result.stderr
    return result


def test_presigned_links_open_a_run_to_readers_without_credentials(shared):
    result = read_presigned(shared, presign(shared))
    assert result.returncode == 0, result.stderr
    assert read_checkpoint(shared.work / "a/rollout_00") == shared.history[3]


def test_a_rollout_follows_a_trainer_by_presigned_links(job, rng):
    """It finds new versions in the index, whose links the trainer itself made."""
    work, history = job.work, make_run(job.work / "run", rng, 4)
    slow = ["--replay", work / "run", "--interval-ms", 500]
    trainer = job.start(*job.line("trainer", *slow, **{"road.object_store.presign": "1h"}))
    until = time.monotonic() + 300
    while run(*job.line("presign"), env=job.environment).returncode != 0:
        assert time.monotonic() < until, "there is no index"
    result = read_presigned(job, presign(job), "--base", work / "run/step_000000", "--verbose")
    job.finish(trainer)
    assert result.returncode == 0, result.stderr
    assert read_checkpoint(work / "a/rollout_00") == history[4]


def test_large_parts_are_read_by_presigned_links(job, rng):
    """In ranges, after reading their sizes; a presigned GET does not permit a HEAD."""
    job.ok("synth", "--out", job.work / "run", "--params", 12_000_000, "--steps", 1)
    job.ok(*job.line("trainer", "--replay", job.work / "run", **{"road.object_store.presign": "1h"}))
    result = read_presigned(job, presign(job))
    assert result.returncode == 0, result.stderr
    result = run("verify", job.work / "a/rollout_00", "--like", job.work / "run/step_000001")
    assert result.returncode == 0, result.stderr


@only("rclone")  # moto does not check signatures
def test_an_expired_link_is_reported_as_expired(shared):
    url = presign(shared)
    last = url[-1]
    result = read_presigned(shared, url[:-1] + ("0" if last != "0" else "1"))
    assert_refusal(result, 2, "index.json", "refused")
    url = presign(shared, "--for", "1s")
    time.sleep(2.5)
    result = read_presigned(shared, url)
    assert_refusal(result, 2, "index.json", "refused", "expired?")
    # The URL is valid, but the links in the index have expired.
    holds = presign(shared)
    presign(shared, "--for", "1s")
    time.sleep(2.5)
    result = read_presigned(shared, holds)
    assert_refusal(result, 2, "run.json", "refused", "holds until", "driftless presign")
    assert presign(shared)
    result = read_presigned(shared, holds)
    assert result.returncode == 0, result.stderr


def test_prefixes_that_cannot_be_presigned_are_refused(job, rng):
    nothing = run(*job.line("presign"), env=job.environment)
    assert_refusal(nothing, 3, "index.json", "publisher")
    longer = run(*job.line("presign", "--for", "169h"), env=job.environment)
    assert_refusal(longer, 2, "168h")
    refused = run(*job.line("trainer", **{"road.object_store.presign": "169h"}), env=job.environment)
    assert_refusal(refused, 2, "road.object_store.presign", "168h")


def reader_environment():
    return servers.client_environment(AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")


@only("rclone")
def test_readers_without_credentials_follow_over_http(published):
    job, work, environment = published, published.work, reader_environment()
    with web_server(job.endpoint.directory) as web:
        url = {"road.object_store.url": f"{web}/{servers.BUCKET}/{work.name}?token=s3cr3t"}
        line = job.line("rollout", "--save", work / "a", "--timeout", "240s", **url)
        result = run(*line, env=environment)
        assert result.returncode == 0, result.stderr
        assert "s3cr3t" not in result.stdout + result.stderr
        refused = run(*job.line("trainer", "--replay", work / "run", **url), env=environment)
    assert read_checkpoint(work / "a/rollout_00") == job.history[3]
    assert_refusal(refused, 8, "can only be read")


@pytest.fixture
def certificate(work):
    """A self-signed certificate of 127.0.0.1: (certificate, key)."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    line = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    line += ["-addext", "subjectAltName=IP:127.0.0.1"]
    made = (work / "cert.pem", work / "key.pem")
    line += ["-out", made[0], "-keyout", made[1]]
    subprocess.run([*map(str, line)], check=True, capture_output=True)
    return made


@only("rclone")
def test_https_trusts_only_the_certificates_of_ca_file(published, certificate):
    job, work = published, published.work
    with web_server(job.endpoint.directory, certificate) as web:
        url = {"road.object_store.url": f"{web}/{servers.BUCKET}/{work.name}", "deadlines.connect": "60s"}
        line = ["rollout", "--save", work / "a", "--timeout", "240s"]
        refused = run(*job.line(*line, **url), env=reader_environment())
        assert refused.returncode != 0 and "certificate" in refused.stderr.lower(), refused.stderr
        believed = url | {"road.object_store.ca_file": certificate[0]}
        result = run(*job.line(*line, **believed), env=reader_environment())
        assert result.returncode == 0, result.stderr
    assert read_checkpoint(work / "a/rollout_00") == job.history[3]


class TokenHandler(QuietHandler):
    """Serves files to requests with the token, until it expires."""

    def send_head(self):
        path, _, query = self.path.partition("?")
        if query != "token=s3cr3t":
            self.send_error(403)
            return None
        self.path = path
        return super().send_head()


@only("rclone")
def test_a_token_in_the_url_opens_every_object(published):
    job, work = published, published.work
    with web_server(job.endpoint.directory, handler=TokenHandler) as web:
        place = f"{web}/{servers.BUCKET}/{work.name}"
        for query, good in (("?token=s3cr3t", True), ("?token=0ldT0ken", False)):
            line = ["rollout", "--save", work / "a", "--timeout", "240s"]
            result = run(
                *job.line(*line, **{"road.object_store.url": place + query, "deadlines.connect": "60s"}),
                env=reader_environment(),
            )
            assert (result.returncode == 0) == good, result.stderr
            assert query[7:] not in result.stdout + result.stderr
    assert "has the signature in road.object_store.url expired?" in result.stderr
    assert read_checkpoint(work / "a/rollout_00") == job.history[3]

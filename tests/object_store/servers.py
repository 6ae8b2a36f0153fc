# SPDX-License-Identifier: Apache-2.0
"""Object stores for tests, each a process on this machine:

    moto     enforces If-None-Match, does not check signatures
    rclone   `rclone serve s3`: checks signatures, answers ranges with 200. It ignores If-None-Match and
             If-Match, which a proxy in front of it enforces

Both are in the environment of tests/requirements/stores.txt, which is made on first use."""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path += [str(REPOSITORY / "tests/python"), str(REPOSITORY / "tests/object_store")]
from faulty_proxy import FaultyProxy  # noqa: E402
from ports import free_port  # noqa: E402

NAMES = ("moto", "rclone")
BUCKET = "road"
# No output may contain these.
ACCESS_KEY, SECRET_KEY = "AKIATESTONLYKEY00001", "sEcReTtEsToNlY/key+0123456789abcdefghij"


class Endpoint(str):
    """A server's address. `directory` has rclone's buckets as directories; `unguarded` is the address
    of rclone itself, without conditions; `guard` is the proxy that enforces them."""


class Unavailable(Exception):
    """The servers cannot be installed or started here; the text has the reason."""


def environment():
    """The directory of the Python environment with the servers."""
    line = [REPOSITORY / "scripts/python_env.sh", "stores"]
    made = subprocess.run(line, capture_output=True, text=True)
    if made.returncode != 0:
        raise Unavailable((made.stderr.strip().splitlines() or ["no environment"])[-1])
    return Path(made.stdout.strip().splitlines()[-1])


def client_environment(**more):
    """The environment of a client: it finds only these credentials."""
    kept = {k: v for k, v in os.environ.items() if not k.upper().startswith("AWS_")}
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        kept.pop(name, None)
    return kept | {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        "AWS_EC2_METADATA_DISABLED": "true",
    } | more  # fmt: skip


def _command(name, port, directory):
    binaries = environment() / "bin"
    if name == "moto":
        return [binaries / "moto_server", "-H", "127.0.0.1", "-p", str(port)]
    (directory / BUCKET).mkdir()
    return [
        binaries / "rclone", "serve", "s3", "--addr", f"127.0.0.1:{port}",
        "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}", "--config", directory / "no.conf",
        directory,
    ]  # fmt: skip


def _end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _wait(process, port, log):
    until = time.monotonic() + 300
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise Unavailable(f"the server did not start: {log.read_text()[-500:]}")


@contextlib.contextmanager
def serve(name, directory=None):
    """Starts a server with the bucket BUCKET; gives its endpoint. It ends with the block."""
    own = Path(tempfile.mkdtemp(prefix=f"driftless-{name}-", dir=directory))
    port, log = free_port(), own / "log"
    data = own / "data"
    data.mkdir()
    try:
        with open(log, "w") as file:
            process = subprocess.Popen(
                _command(name, port, data), stdout=file, stderr=file, preexec_fn=_end_with_parent
            )
        try:
            _wait(process, port, log)
            endpoint = Endpoint(f"http://127.0.0.1:{port}")
            if name == "moto":
                make_bucket(endpoint)
                yield endpoint
            else:
                with FaultyProxy(endpoint, data) as proxy:
                    guarded = Endpoint(proxy.endpoint)
                    guarded.directory, guarded.unguarded, guarded.guard = data, endpoint, proxy
                    yield guarded
        finally:
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(own, ignore_errors=True)


def make_bucket(endpoint):
    request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT", data=b"")
    with contextlib.suppress(urllib.error.HTTPError):
        urllib.request.urlopen(request, timeout=30).close()

# SPDX-License-Identifier: Apache-2.0
"""Jobs over object stores: trainers and rollouts that share only a bucket.
tests/object_store/servers.py starts the servers, each in a process."""

import contextlib
import http.server
import json
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

import jobs
from jobs import make_run, start
from support import COMMAND, REPOSITORY, assert_refusal, ok, read_checkpoint, run

sys.path.insert(0, str(REPOSITORY / "tests/object_store"))
import servers  # noqa: E402


@pytest.fixture(scope="module", params=servers.NAMES)
def server(request):
    jobs.need("object_store")
    with contextlib.ExitStack() as stack:
        try:
            endpoint = stack.enter_context(servers.serve(request.param))
        except servers.Unavailable as reason:
            pytest.skip(f"{request.param}: {reason}")
        yield request.param, endpoint


def only(name):
    """Runs a test with one server, because the others lack what it checks."""
    return pytest.mark.parametrize("server", [name], indirect=True, scope="module")


class StoreJob:
    """A job with its own prefix in the server's bucket."""

    def __init__(self, work, server):
        self.name, self.endpoint = server
        self.work = work
        self.url = f"s3://{servers.BUCKET}/{work.name}"
        self.settings = {
            "road.object_store.url": self.url,
            "road.object_store.endpoint": self.endpoint,
            "road.poll_first": "5ms",
            "road.poll_longest": "50ms",
            "deadlines.fetch": "20s",
            "deadlines.connect": "30s",
        }
        self.environment = servers.client_environment()
        self.outputs = []

    def line(self, role, *arguments, **settings):
        line = [role, "--config", REPOSITORY / "configs/object_store.yaml", "--threads", 1]
        for key, value in (self.settings | settings).items():
            line += ["--set", f"{key}={value}"]
        return [*map(str, line), *map(str, arguments)]

    def ok(self, *line):
        result = run(*line, env=self.environment)
        self.outputs += [result.stdout, result.stderr]
        assert result.returncode == 0, result.stderr + result.stdout
        return result.stdout

    def start(self, *line):
        return start([COMMAND, *line], env=self.environment)

    def finish(self, process):
        result = jobs.finish(process)
        self.outputs += [result.stdout, result.stderr]
        assert result.returncode == 0, result.stderr + result.stdout
        return result.stdout

    def assert_no_credential(self):
        for text in self.outputs:
            assert servers.SECRET_KEY not in text and servers.ACCESS_KEY not in text


@pytest.fixture
def job(work, server):
    made = StoreJob(work, server)
    yield made
    jobs.stop_started()
    made.assert_no_credential()


def versions_of(text):
    events = [json.loads(line) for line in text.splitlines()]
    return [event["version"] for event in events if event["event"] == "version"]


def test_rollouts_follow_a_trainer_and_late_ones_catch_up(job, rng):
    work = job.work
    history = make_run(work / "run", rng, 4)
    base = ["--base", work / "run/step_000000", "--json"]
    early = job.start(*job.line("rollout", *base, "--save", work / "a"))
    trainer = ["--replay", work / "run", "--rollouts", 1, "--json"]
    assert versions_of(job.ok(*job.line("trainer", *trainer))) == [1, 2, 3, 4]
    job.finish(early)
    assert read_checkpoint(work / "a/rollout_00") == history[4]
    # The run has ended: a rollout without a base takes the anchor, catches up and ends.
    job.ok(*job.line("rollout", "--save", work / "b", "--timeout", "240s"))
    assert read_checkpoint(work / "b/rollout_00") == history[4]


def test_a_restarted_trainer_goes_on(job, rng):
    work = job.work
    history = make_run(work / "run", rng, 4)
    replay = ["--replay", work / "run", "--json"]
    assert versions_of(job.ok(*job.line("trainer", *replay, "--steps", 2))) == [1, 2]
    assert versions_of(job.ok(*job.line("trainer", *replay))) == [3, 4]
    base = ["--base", work / "run/step_000000"]
    job.ok(*job.line("rollout", "--save", work / "a", *base, "--timeout", "240s"))
    assert read_checkpoint(work / "a/rollout_00") == history[4]


def test_trainer_ranks_of_an_mpirun_job_share_a_prefix(job, rng):
    jobs.need_mpirun()
    work = job.work
    history = make_run(work / "run", rng, 3)
    line = jobs.mpirun_line((2, job.line("trainer", "--replay", work / "run", "--json")))
    job.finish(start(line, env=jobs.environment() | job.environment))
    job.ok(*job.line("rollout", "--save", work / "a", "--timeout", "240s"))
    assert read_checkpoint(work / "a/rollout_00") == history[3]


def test_the_python_module_loads_the_road_on_demand(job):
    code = f"""
import driftless
from driftless import Config, Job
print({{b.name: b.built or b.why_not for b in driftless.backends()}}["object_store"])
text = "road: {{kind: object_store, object_store: {{ url: '{job.url}', endpoint: '{job.endpoint}' }}}}"
Job(Config.parse(text), "rollout", launched=False).close()
"""
    environment = job.environment | {"PYTHONPATH": str(REPOSITORY / "build/python")}
    line = [sys.executable, "-c", code]
    result = subprocess.run(line, env=environment, capture_output=True, text=True)
    if "No module named 'driftless" in result.stderr:
        pytest.skip("the module is not built")
    assert result.returncode == 0 and result.stdout == "True\n", result.stderr + result.stdout


def test_a_report_of_the_run(job, rng):
    """Made from the run's URL and its anchor; the page shows no credential."""
    make_run(job.work / "run", rng, 3)
    trainer = ["--replay", job.work / "run", "--rollouts", 1]
    rollout = job.start(*job.line("rollout", "--base", job.work / "run/step_000000"))
    job.ok(*job.line("trainer", *trainer, **{"anchors.first": "true"}))
    job.finish(rollout)
    page = job.work / "report.html"
    endpoint = f"road.object_store.endpoint={job.endpoint}"
    text = job.ok("report", job.url, "--out", page, "--set", endpoint, "--json")
    found = json.loads(text)
    assert (found["versions"], found["replayed"], found["left_out"]) == (3, 3, [])
    job.outputs.append(page.read_text())
    job.assert_no_credential()


def test_versions_are_pruned_and_late_rollouts_take_an_anchor(job, rng):
    work = job.work
    history = make_run(work / "run", rng, 8)
    keep = {"keep_versions": 1, "anchors.every": 3, "road.patience": "1ms"}
    job.ok(*job.line("trainer", "--replay", work / "run", **keep))
    job.ok(*job.line("rollout", "--save", work / "a", "--timeout", "240s"))
    assert read_checkpoint(work / "a/rollout_00") == history[8]
    # Used version numbers are not used again: the run continues after them.
    shutil.rmtree(work / "run")
    longer = make_run(work / "run", np.random.default_rng(20240607), 10)
    assert longer[8] == history[8]
    assert versions_of(job.ok(*job.line("trainer", "--replay", work / "run", "--json"))) == [9, 10]


@only("rclone")  # moto always has conditional writes
def test_a_store_without_conditions_is_refused(job, rng):
    make_run(job.work / "run", rng, 1)
    bare = {"road.object_store.endpoint": job.endpoint.unguarded}
    result = run(*job.line("trainer", "--replay", job.work / "run", **bare), env=job.environment)
    assert_refusal(result, 8, "If-None-Match", job.url)
    # A rollout makes no conditional writes.
    job.ok(*job.line("trainer", "--replay", job.work / "run"))
    job.ok(*job.line("rollout", "--save", job.work / "a", "--timeout", "240s", **bare))


def test_wrong_credentials_are_named_by_where_they_come_from(job, rng):
    make_run(job.work / "run", rng, 1)
    line = job.line("trainer", "--replay", job.work / "run")
    result = run(*line, env=servers.client_environment(AWS_SECRET_ACCESS_KEY=""))
    assert_refusal(result, 2, "no credentials", "AWS_SECRET_ACCESS_KEY", "/nonexistent")
    if job.name == "rclone":  # rclone checks signatures
        wrong = "wrongwrongwrong"
        result = run(*line, env=servers.client_environment(AWS_SECRET_ACCESS_KEY=wrong))
        assert_refusal(result, 2, "credentials", job.url)
        assert wrong not in result.stderr


ROLE = {
    "AccessKeyId": servers.ACCESS_KEY,
    "SecretAccessKey": servers.SECRET_KEY,
    "Token": "",
    "Expiration": "2000-01-01T00:00:00Z",  # expired, so that they are fetched again and again
}


class InstanceHandler(http.server.BaseHTTPRequestHandler):
    """An instance's metadata about its role, for clients with its token; and a container's."""

    def do_PUT(self):
        self.answer("instance-token" if self.path == "/latest/api/token" else None)

    def do_GET(self):
        roles = "/latest/meta-data/iam/security-credentials/"
        known = self.headers.get("x-aws-ec2-metadata-token") == "instance-token"
        if self.path == "/container":
            known = self.headers.get("authorization") == "container-token"
        answers = {roles: "trainer", f"{roles}trainer": json.dumps(ROLE)}
        answers["/container"] = json.dumps(ROLE)
        self.answer(answers.get(self.path) if known else None)

    def answer(self, text):
        self.send_response(404 if text is None else 200)
        self.send_header("Content-Length", str(len(text or "")))
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *ignored):
        pass


@pytest.mark.parametrize("source", ["file", "profile", "container", "instance"])
def test_where_credentials_come_from(job, rng, source):
    """rclone checks the signatures made with these credentials."""
    work = job.work
    history = make_run(work / "run", rng, 1)
    keys = f"aws_access_key_id={servers.ACCESS_KEY}\naws_secret_access_key={servers.SECRET_KEY}\n"
    (work / "credentials").write_text(f"[{'other' if source == 'profile' else 'default'}]\n{keys}")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), InstanceHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    more = {
        "file": {"AWS_SHARED_CREDENTIALS_FILE": str(work / "credentials")},
        "profile": {
            "AWS_SHARED_CREDENTIALS_FILE": str(work / "credentials"), "AWS_PROFILE": "other"
        },
        "container": {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{address}/container",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": "container-token",
        },
        "instance": {
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": address, "AWS_EC2_METADATA_DISABLED": "false"
        },
    }[source]  # fmt: skip
    nothing = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    job.environment = servers.client_environment(**nothing | more)
    job.ok(*job.line("trainer", "--replay", work / "run"))
    job.ok(*job.line("rollout", "--save", work / "a", "--timeout", "240s"))
    assert read_checkpoint(work / "a/rollout_00") == history[1]
    server.shutdown()
    server.server_close()


def test_the_configuration_shows_no_signature(work):
    path = work / "job.yaml"
    path.write_text("road: { kind: object_store, object_store: { url: 'https://h/p?X-Amz-Signature=abc' } }\n")
    shown = ok("config", "check", path)
    assert "https://h/p?(not shown)" in shown and "abc" not in shown
    path.write_text("road: { kind: object_store }\n")
    assert_refusal(run("config", "check", path), 2, "road.object_store.url is missing")
    path.write_text("road: { kind: object_store, object_store: { url: 's3://b', endpoint: 'http://me:pw@h' } }\n")
    refused = run("config", "check", path)
    assert_refusal(refused, 2, "road.object_store.endpoint")
    assert "pw" not in refused.stderr
    for url in ("s3://AKIAKEY:pw@bucket/prefix", "https://me:pw@host/p", "s3://b/p?X-Amz-Signature=pw"):
        path.write_text(f"road: {{ kind: object_store, object_store: {{ url: '{url}' }} }}\n")
        refused = run("config", "check", path)
        assert_refusal(refused, 2, "road.object_store.url", "credentials come from")
        assert "pw" not in refused.stderr and "AKIAKEY" not in refused.stderr

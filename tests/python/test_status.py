# SPDX-License-Identifier: Apache-2.0
"""driftless status: its output for real runs, from each kind of source; that it changes nothing;
its exit codes; and the escaping of a malicious peer's text."""

import contextlib
import http.server
import json
import os
import signal
import sys
import threading
import time

import pytest
import xxhash

import jobs
from jobs import Files, make_run, start, wait_for
from support import COMMAND, REPOSITORY, assert_refusal, ok, run

sys.path.insert(0, str(REPOSITORY / "tests/object_store"))
import servers  # noqa: E402


@pytest.fixture(autouse=True)
def no_process_stays():
    yield
    jobs.stop_started()


def status(*arguments, code=0, **options):
    result = run("status", *arguments, "--json", **options)
    assert result.returncode == code, result.stdout + result.stderr
    return json.loads(result.stdout)


def files_of(directory):
    """Every file with its bytes and times, and the times of directories."""
    found = {}
    for path in sorted(directory.rglob("*")):
        info = path.lstat()
        found[str(path)] = (info.st_mtime_ns, info.st_size, path.read_bytes() if path.is_file() else b"")
    return found, directory.stat().st_mtime_ns


def ended_run(work, rng, road="flush", versions=3, **settings):
    make_run(work / "run", rng, versions)
    job = Files(work, road, **settings)
    assert run(*job.trainer("--replay", work / "run")).returncode == 0
    return job


@pytest.mark.parametrize("road", ["flush", "hf_delta", "frames"])
def test_a_directory_whose_run_has_ended(work, rng, road):
    frames = {"road.layout": "frames"} if road == "frames" else {}
    job = ended_run(work, rng, "flush" if frames else road, **frames)
    before = files_of(job.dir)
    seen = status(job.dir)
    assert files_of(job.dir) == before
    assert seen["trainer"]["state"] == "ended" and "closed.json" in seen["trainer"]["why"]
    assert [v["version"] for v in seen["versions"] if v["version"]] == [1, 2, 3] and seen["version"] == 3
    newest = seen["versions"][-1]
    manifest = json.loads((job.version_dir(3) / "manifest.json").read_text())
    assert newest["digest"] == seen["digest"] == manifest["digest"] and seen["run"] == manifest["run"]
    assert newest["changed_units"] == manifest["changed_units"]
    assert newest["delta_bytes"] == manifest["payload_bytes"] and newest["base_version"] == 2
    assert seen["wrong"] == [] and seen["damaged"] == []
    text = ok("status", job.dir)
    assert "trainer: ended" in text and newest["encoding"] in text and "bits per change" in text


def test_the_last_versions_or_all(work, rng):
    job = ended_run(work, rng, versions=12)
    numbers = lambda seen: [v["version"] for v in seen["versions"] if v["version"]]  # noqa: E731
    assert numbers(status(job.dir)) == list(range(3, 13))
    assert numbers(status(job.dir, "--all")) == list(range(1, 13))


def test_a_trainer_that_runs_and_one_that_was_killed(work, rng):
    make_run(work / "run", rng, 4)
    job = Files(work)
    trainer = job.start_trainer("--replay", work / "run", "--rollouts", "1", "--interval-ms", "60000")
    rollout = job.start_rollout("--base", work / "run/step_000000")
    wait_for(lambda: job.version_dir(1).exists(), "version 1")
    wait_for(lambda: any(r["version"] == 1 and r["proven"] for r in status(job.dir)["rollouts"]), "a report")
    seen = status(job.dir)
    assert seen["trainer"]["state"] == "alive", seen["trainer"]
    assert f"process {trainer.pid} on " in seen["trainer"]["why"]
    (there,) = seen["rollouts"]
    assert (there["version"], there["lag"], there["proven"]) == (1, 0, True) and there["commit_ms"] > 0
    rollout.send_signal(signal.SIGSTOP)  # a stopped rollout cannot report the trainer's end
    trainer.kill()
    trainer.wait()
    dead = status(job.dir)
    assert dead["trainer"]["state"] == "unknown", "one version shows no usual interval"
    assert "is not running" in dead["trainer"]["why"] and "last version" in dead["trainer"]["why"]
    # Years later, according to the versions' times.
    for path in (job.version_dir(1), job.dir / "anchor_v000000"):
        age_manifest(path, "2020-01-01T00:00:00Z")
    silent = status(job.dir, code=1)
    assert silent["trainer"]["state"] == "silent" and silent["wrong"] == ["the trainer is silent"]


def age_manifest(path, created):
    """Sets the time in a manifest. DONE has its hash."""
    manifest = json.loads((path / "manifest.json").read_text()) | {"created": created}
    text = json.dumps(manifest)
    (path / "manifest.json").write_text(text)
    (path / "DONE").write_text(xxhash.xxh3_128_hexdigest(text) + "\n")


def test_damaged_manifests_are_named(work, rng):
    job = ended_run(work, rng)
    manifest = job.version_dir(2) / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-40])
    seen = status(job.dir, code=1)
    assert len(seen["damaged"]) == 1 and str(manifest) in seen["damaged"][0]
    assert [v["version"] for v in seen["versions"] if v["version"]] == [1, 3]
    text = run("status", job.dir).stdout
    assert f"wrong: damaged: {manifest}" in text


def test_a_damaged_announcement_is_named(work, rng):
    """No rollout can join the run any more, whatever its versions are."""
    job = ended_run(work, rng)
    (job.dir / "run.json").write_text("{")
    seen = status(job.dir, code=1)
    assert len(seen["damaged"]) == 1 and "run.json" in seen["damaged"][0]
    assert seen["version"] == 3 and len(seen["run"]) == 32


@pytest.mark.parametrize("road", ["flush", "hf_delta", "frames"])
def test_a_version_that_is_missing_and_parts_that_were_removed_are_named(work, rng, road):
    frames = {"road.layout": "frames"} if road == "frames" else {}
    job = ended_run(work, rng, "flush" if frames else road, versions=4, **frames)
    directory = job.version_dir(2)
    manifest = json.loads((directory / "manifest.json").read_text())
    part = directory / max(manifest["files"], key=lambda each: each["size_bytes"])["name"]
    content = part.read_bytes()
    for lost in (None, content[: len(content) // 2]):
        part.unlink()
        if lost is not None:
            part.write_bytes(lost)
        seen = status(job.dir, code=1)
        assert len(seen["damaged"]) == 1 and part.name in seen["damaged"][0], seen["damaged"]
        assert "version 2" in seen["damaged"][0] or "weight_v000002" in seen["damaged"][0]
        part.write_bytes(content)
    assert status(job.dir)["damaged"] == []
    directory.rename(work / "away")
    seen = status(job.dir, code=1)
    assert seen["damaged"] == ["version 2 is missing, and version 3 is a change to it"]
    for number in (1, 3):  # the oldest ones may be removed
        job.version_dir(number).rename(work / f"away{number}")
    assert status(job.dir)["damaged"] == []


def report_of(job, name, version, proof, beat=1):
    receivers = job.dir / ".receivers"
    receivers.mkdir(exist_ok=True)
    report = {"id": name, "version": version, "proof": proof, "needs": "", "beat": beat}
    (receivers / f"{name}.json").write_text(json.dumps(report) + "\n")


def test_rollouts_that_are_behind_or_wrong(work, rng):
    job = ended_run(work, rng)
    seen = status(job.dir)
    good = f"{seen['digest']} run={seen['run']} stage_ms=1.500 commit_ms=0.250"
    report_of(job, "good", 3, good)
    report_of(job, "partly", 3, good.replace(" run=", " unproven=2 run="))
    report_of(job, "other", 3, good.replace(seen["run"], "ab" * 16))
    report_of(job, "gone", 1, good)
    long_ago = time.time() - 7200
    os.utime(job.dir / ".receivers/gone.json", (long_ago, long_ago))
    seen = status(job.dir)
    rows = {row["id"]: row for row in seen["rollouts"]}
    assert set(rows) == {"good", "partly"} and rows["good"]["commit_ms"] == 0.25
    assert rows["good"]["proven"] and not rows["partly"]["proven"] and rows["partly"]["unproven"] == 2
    assert any("other" in note for note in seen["notes"])
    assert any("gone" in note and "silent for" in note for note in seen["notes"])
    report_of(job, "behind", 1, good.replace(seen["digest"], seen["versions"][-3]["digest"]))
    report_of(job, "wrong", 3, good.replace(seen["digest"], "00" * 16))
    report_of(job, "esc\u009b2J", 3, good)
    (job.dir / ".receivers/torn.json").write_text('{"id": "torn"')
    seen = status(job.dir, code=1)
    assert "rollout behind: 2 versions behind" in seen["wrong"]
    assert "rollout wrong: its digest is not that of version 3" in seen["wrong"]
    assert any("torn" in each for each in seen["damaged"])
    report_of(job, "gpj.\u202eexe", 3, good)
    report_of(job, "zero\u200bwidth", 3, good.replace(seen["digest"], "00" * 16))
    text = run("status", job.dir)
    assert text.returncode == 1
    assert not set("\x1b\u009b\u202e\u200b") & set(text.stdout), text.stdout
    for shown in ("report of esc\\u009b2J", "report of gpj.\\u202eexe", "report of zero\\u200bwidth"):
        assert shown in text.stdout


def test_sources_without_a_run(work):
    assert_refusal(run("status", work / "none"), 3, "none")
    (work / "empty").mkdir()
    assert_refusal(run("status", work / "empty"), 3, "no run and no version")
    (work / "empty.jsonl").write_text("")
    assert_refusal(run("status", work / "empty.jsonl"), 3, "no record")
    assert_refusal(run("status", work / "empty", work / "empty.jsonl"), 2, "metrics files")
    assert_refusal(run("status", "hf://u/b/p"), 2, "Python")
    assert_refusal(run("status", work / "empty", "--token-file", "x"), 2, "--token-file")


@pytest.fixture(scope="module")
def store():
    jobs.need("object_store")
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(servers.serve(servers.NAMES[0]))
        except servers.Unavailable as reason:
            pytest.skip(str(reason))


def test_a_bucket(work, rng, store):
    make_run(work / "run", rng, 3)
    url = f"s3://{servers.BUCKET}/{work.name}"
    endpoint = ["--set", f"road.object_store.endpoint={store}"]
    env = servers.client_environment()
    config = ["--config", REPOSITORY / "configs/object_store.yaml", "--set", f"road.object_store.url={url}", *endpoint]
    assert_refusal(run("status", url, *endpoint, env=env), 3, "no run and no version")
    assert run("trainer", *config, "--replay", work / "run", env=env).returncode == 0
    seen = status(url, *endpoint, env=env)
    assert seen["trainer"]["state"] == "ended" and seen["version"] == 3 and seen["rollouts"] == []
    assert [v["version"] for v in seen["versions"] if v["version"]] == [1, 2, 3]
    assert all(len(v["digest"]) == 32 for v in seen["versions"])


def test_metrics_files(work, rng):
    metrics = {"metrics.file": work / "{role}.jsonl"}
    make_run(work / "run", rng, 3)
    job = Files(work, **metrics)
    trainer = job.start_trainer("--replay", work / "run", "--rollouts", "1")
    rollout = job.start_rollout("--base", work / "run/step_000000")
    assert jobs.finish(trainer).returncode == 0 and jobs.finish(rollout).returncode == 0
    paths = [work / "trainer.jsonl", work / "rollout.jsonl"]
    before = [path.read_bytes() for path in paths]
    seen = status(*paths)
    assert [path.read_bytes() for path in paths] == before
    assert seen["trainer"]["state"] in ("unknown", "ended") and seen["version"] == 3
    assert [v["version"] for v in seen["versions"]] == [1, 2, 3] and seen["versions"][0]["total_ms"] > 0
    (there,) = seen["rollouts"]
    assert there["version"] == 3 and there["proven"] and there["id"].startswith("rollout_")
    # Times by phase, of what the record has; a directory has none.
    text = ok("status", *paths)
    for column in ("compare ms", "encode ms", "send ms", "seal ms", "total ms"):
        assert column in text, text
    assert "step ms" not in text and "fetch ms" in ok("status", work / "rollout.jsonl")
    alone = status(work / "rollout.jsonl")  # a rollout's file alone: no trainer to compare with
    assert alone["version"] == 3 and not alone["rollouts"][0]["proven"]
    with (work / "trainer.jsonl").open("a") as file:
        file.write('{"role": "trainer", "version": "x"}\nno JSON\n{"torn": ')
    damaged = status(*paths, code=1)["damaged"]
    assert len(damaged) == 1 and f"{work}/trainer.jsonl:" in damaged[0] and "1 more line" in damaged[0]


def version_line(run, version, second, **fields):
    line = {
        "role": "trainer", "rank": 0, "host": "h", "time": f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}.000Z",
        "run": run * 16, "version": version, "base_version": version - 1, "versions": 1, "anchor": False,
        "digest": "0c" * 16, "changed_units": 5, "full_bytes": 9, "delta_bytes": 3, "wire_bytes": 4,
        "encoding": "deltas", "density": 0.1, "process_ms": 1.0, "manifest_publish_ms": 1.0, "total_ms": 2.0,
    }  # fmt: skip
    return json.dumps(line | fields) + "\n"


def test_metrics_of_two_runs_are_both_named(work):
    work.mkdir(exist_ok=True)
    file = work / "trainer.jsonl"
    older = [version_line("ab", number, 10 * number) for number in range(1, 8)]
    newer = [version_line("ef", number, 300 + 10 * number) for number in range(1, 4)]
    file.write_text("".join(older + newer))
    seen = status(file, code=1)  # years old, so the trainer of the newer run is silent
    assert seen["run"] == "ef" * 16 and seen["damaged"] == [] and seen["version"] == 3
    (note,) = seen["notes"]
    assert "run " + "ab" * 16 in note and "version 7" in note and "2026-01-01T00:01:10.000Z" in note
    (work / "other.jsonl").write_text(version_line("ab", 8, 340) + version_line("ef", 4, 500))
    seen = status(file, work / "other.jsonl", code=1)
    assert seen["damaged"] == [] and "version 8" in seen["notes"][0], "its last lines come late"
    (work / "other.jsonl").write_text(version_line("ab", 8, 400) + version_line("ef", 4, 500))
    seen = status(file, work / "other.jsonl", code=1)
    (mixed,) = seen["damaged"]
    assert "two runs are mixed" in mixed and "ab" * 16 in mixed and "ef" * 16 in mixed


def engine_line(**fields):
    line = {
        "role": "agent", "rank": 0, "host": "h", "time": "2026-01-01T00:00:00.000Z", "run": "ab" * 16,
        "engine": "http://e:1", "kind": "vllm", "version": 4, "goal": 4, "digest": "", "proven": "workers",
        "status": "ok", "attempts": 1, "stage_ms": 3.0, "pause_ms": 2.0, "apply_ms": 1.0, "resume_ms": 0.5,
    }  # fmt: skip
    return line | fields


STATUS = {
    "schema": 1, "role": "trainer", "rank": 0, "host": "trainer-0", "time": "2026-01-01T00:00:10.000Z",
    "run": "ab" * 16, "version": 4, "digest": "cd" * 16, "trainer": {"state": "alive", "seen": "2026-01-01T00:00:09.000Z"},
    "versions": [], "engines": [], "rollouts": [], "refusals": {},
}  # fmt: skip


class Endpoint(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.asked.append(self.path)
        body = self.server.body
        token = self.server.token
        code = 200
        if token and self.headers.get("Authorization") != f"Bearer {token}":
            code, body = 401, b"no"
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def endpoint():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    server.asked, server.token = [], ""
    server.url = f"http://127.0.0.1:{server.server_port}"

    def answer(**fields):
        server.body = json.dumps(STATUS | fields).encode()

    server.answer = answer
    answer()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def test_an_endpoint(work, endpoint):
    engines = [engine_line(), engine_line(engine="http://e:2", version=3, proven="files", lag=1)]
    rollout = {"id": "rollout_00", "run": "ab" * 16, "version": 4, "digest": "cd" * 16, "proven": True,
               "unproven": 0, "left": False, "stage_ms": 1.0, "commit_ms": 2.0}  # fmt: skip
    endpoint.answer(engines=engines, rollouts=[rollout], refusals={"corrupt": 2})
    seen = status(endpoint.url)
    assert endpoint.asked == ["/status.json"]
    assert seen["trainer"]["state"] == "alive" and "trainer 0 on trainer-0" in seen["trainer"]["why"]
    assert [(e["engine"], e["lag"]) for e in seen["engines"]] == [("http://e:1", 0), ("http://e:2", 1)]
    assert seen["refusals"] == {"corrupt": 2} and seen["wrong"] == []
    text = ok("status", f"{endpoint.url}/status.json")
    assert "trainer: alive" in text and "refusals so far: corrupt 2" in text and "workers" in text


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"version": 1}, "3 versions behind"),
        ({"proven": ""}, "nothing proves that it holds version 4"),
        ({"status": "io", "error": "gone\x1b[2J"}, "its last update failed: io: gone"),
        ({"status": "io", "error": "does not answer", "reachable": False, "version": 0}, "cannot be reached"),
        ({"status": "mismatch", "error": "anew", "reload": True, "version": 0}, "is to be loaded again"),
    ],
)
def test_engines_that_are_wrong(endpoint, engine, words):
    endpoint.answer(engines=[engine_line(**engine)])
    seen = status(endpoint.url, code=1)
    assert len(seen["wrong"]) == 1 and words in seen["wrong"][0]
    assert "\x1b" not in run("status", endpoint.url).stdout


def test_an_engine_that_the_trainer_notifies_needs_no_proof(endpoint):
    endpoint.answer(engines=[engine_line(kind="", proven="")])
    assert status(endpoint.url)["wrong"] == []


def test_invalid_answers_of_an_endpoint_are_refused(work, endpoint):
    endpoint.token = "s3cr3t"
    secret = work / "token"
    secret.write_text("s3cr3t\n")
    secret.chmod(0o600)
    refused = run("status", endpoint.url)
    assert_refusal(refused, 2, "401", "--token-file")
    assert status(endpoint.url, "--token-file", secret)["version"] == 4
    endpoint.token = ""
    for body in (b"", b"[]", b'{"schema": 1}', b"\xff", json.dumps(STATUS | {"versions": [3]}).encode(),
                 json.dumps(STATUS | {"engines": [engine_line(version=-1)]}).encode()):  # fmt: skip
        endpoint.body = body
        assert_refusal(run("status", endpoint.url), 4, endpoint.url)
    endpoint.answer(schema=2)
    assert_refusal(run("status", endpoint.url), 8, "schema 2")
    assert_refusal(run("status", "http://127.0.0.1:1"), 5, "127.0.0.1:1")


def test_a_watch_prints_what_changes_and_ends_by_ctrl_c(endpoint):
    watch = start([COMMAND, "status", endpoint.url, "--watch", "--interval", "0.1"])
    lines = [watch.stdout.readline() for _ in range(2)]
    assert "version 4" in lines[0] and "trainer: alive" in lines[1]
    wait_for(lambda: len(endpoint.asked) > 3, "a few looks")
    endpoint.answer(version=5, digest="ef" * 16)
    assert "version 5" in watch.stdout.readline()
    watch.send_signal(signal.SIGINT)
    assert watch.wait(300) == 0
    assert watch.stdout.read() == ""


def test_a_watch_outlives_an_endpoint_that_fails_for_a_while(endpoint):
    watch = start([COMMAND, "status", endpoint.url, "--watch", "--interval", "0.1", "--json"])
    assert json.loads(watch.stdout.readline())["version"] == 4
    endpoint.body = b"[]"
    wait_for(lambda: len(endpoint.asked) > 6, "a few looks")
    endpoint.answer(version=6)
    assert json.loads(watch.stdout.readline())["version"] == 6
    watch.send_signal(signal.SIGINT)
    assert watch.wait(300) == 0
    warnings = watch.stderr.read().splitlines()
    assert warnings[0].split()[1] == "driftless:" and "corrupt" in warnings[0]
    assert len(warnings) <= 2, "a repeated line is counted"


WATCH = ["--watch", "--interval", "0.1"]


def test_a_watch_ends_with_the_run(work, rng, endpoint):
    ended = {"trainer": {"state": "ended", "seen": ""}}
    watch = start([COMMAND, "status", endpoint.url, *WATCH])
    assert "version 4" in watch.stdout.readline()
    endpoint.answer(version=5, **ended)
    assert watch.wait(300) == 0
    assert "trainer: ended" in watch.stdout.read()
    # The run has ended already: one poll.
    assert run("status", ended_run(work, rng).dir, "--watch").returncode == 0


def test_a_watch_waits_at_the_end_until_problems_are_gone(endpoint):
    ended = {"trainer": {"state": "ended", "seen": ""}}
    endpoint.answer(engines=[engine_line(version=3)], **ended)
    assert run("status", endpoint.url, *WATCH, "--patience", 0.3).returncode == 1
    watch = start([COMMAND, "status", endpoint.url, *WATCH, "--patience", "600", "--json"])
    assert json.loads(watch.stdout.readline())["wrong"]
    endpoint.answer(engines=[engine_line()], **ended)
    assert watch.wait(300) == 0
    assert json.loads(watch.stdout.read())["wrong"] == []


def test_a_watch_gives_up_on_a_source_that_never_answers(endpoint):
    watch = start([COMMAND, "status", endpoint.url, *WATCH, "--patience", "0.5"])
    assert "version 4" in watch.stdout.readline()
    endpoint.body = b"[]"
    assert watch.wait(300) == 4
    assert watch.stderr.read().splitlines()[-1].startswith("driftless: corrupt: ")


@pytest.mark.long
def test_the_wait_for_a_source_begins_anew_after_each_answer(endpoint):
    """It fails for a while several times, in sum longer than the limit."""
    watch = start([COMMAND, "status", endpoint.url, *WATCH, "--patience", "8"])
    assert "version 4" in watch.stdout.readline()
    for version in (5, 6, 7):
        endpoint.body = b"[]"
        time.sleep(3.5)
        endpoint.answer(version=version)
        wait_for(lambda: f"version {version}" in watch.stdout.readline(), "the next version")  # noqa: B023
    watch.send_signal(signal.SIGINT)
    assert watch.wait(300) == 0


def test_status_does_not_delay_a_publisher(work, rng):
    """Runs status as often as possible while trainers take and release the directory's lock."""
    make_run(work / "run", rng, 3)
    job = Files(work)
    stop = threading.Event()
    seen = []

    def look():
        while not stop.is_set():
            seen.append(run("status", job.dir))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for steps in (1, 2, 3):
            ok(*job.trainer("--replay", work / "run", "--steps", steps))
    finally:
        stop.set()
        thread.join()
    wrong = [each for each in seen if each.returncode not in (0, 3)]
    assert not wrong, wrong

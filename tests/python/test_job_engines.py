# SPDX-License-Identifier: Apache-2.0
"""Jobs with engines that read files themselves: stand-ins receive a call for every version."""

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import binding
from jobs import Job, finish, make_run, need, start, wait_for
from support import COMMAND, Tensor, read_checkpoint, run, write_checkpoint


@pytest.fixture
def engine():
    """An engine that records its calls; `refuse` makes it answer with an error."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path in ("/pause_generation", "/flush_cache", "/continue_generation"):
                self.server.paused = self.path != "/continue_generation"
                self.answer({})
                return
            if self.path == "/update_weight_version":
                self.server.weight_version = body["new_version"]
                self.answer({"success": True})
                return
            if self.path in ("/begin_weight_update", "/end_weight_update"):
                for each in self.server.loading:
                    each.join()
                self.answer({"success": True})
                return
            self.server.calls.append((self.path, body, self.headers.get("Authorization")))
            self.server.on_call()
            refuse = self.server.refuse or len(self.server.calls) in self.server.refuse_calls
            if not refuse and "weight_version" in body:
                self.server.weight_version = body["weight_version"]
            self.answer({"success": not refuse, "message": "injected"})

        def do_GET(self):
            """The version that the engine claims to serve."""
            self.answer({"weight_version": self.server.weight_version})

        def answer(self, output):
            answer = json.dumps(output).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.calls, server.refuse, server.refuse_calls = [], False, ()
    server.weight_version, server.on_call, server.paused = "default", lambda: None, False
    server.loading = []  # loads of ranks that continue after the answer
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def with_engine(job, engine, work, action="pull_weights"):
    (work / "token").write_text("secret\n")
    (work / "token").chmod(0o600)
    settings = {
        "engines[0].url": f"http://127.0.0.1:{engine.server_port}",
        "engines[0].action": action,
        "engines[0].token_file": work / "token",
    }
    if action != "flush":
        settings["engines[0].local_checkpoint_dir"] = "/local/model"
    for key, value in settings.items():
        job.settings += ["--set", f"{key}={value}"]
    return job


def test_engines_are_notified_of_every_version(work, rng, engine):
    need("engines")
    make_run(work / "run", rng, 2)
    job = with_engine(Job(work, "hf_delta"), engine, work)
    result = run(*job.trainer("--replay", work / "run", "--json"))
    assert result.returncode == 0, result.stderr
    pulls = [body for path, body, _ in engine.calls if path == "/pull_weights"]
    assert [body["target_version"] for body in pulls] == [1, 2]
    assert all(body["source_dir"] == str(job.dir) for body in pulls)
    assert all(token == "Bearer secret" for _, _, token in engine.calls)
    summary = json.loads(result.stdout.splitlines()[-1])
    assert summary["engines"][0]["calls"] == 2 and summary["engines"][0]["failures"] == 0


def test_flush_files_are_named_to_the_engine(work, rng, engine):
    need("engines")
    make_run(work / "run", rng, 1)
    job = with_engine(Job(work, "flush"), engine, work, action="flush")
    assert run(*job.trainer("--replay", work / "run")).returncode == 0
    ((path, body, _),) = engine.calls
    assert path == "/update_weights_from_disk" and body["load_format"] == "delta"
    assert body["files"] and all((job.dir / "weight_v000001" / f).exists() for f in body["files"])


def test_an_engine_that_refuses_is_reported_and_the_run_continues(work, rng, engine):
    need("engines")
    make_run(work / "run", rng, 3)
    engine.refuse = True
    job = with_engine(Job(work, "hf_delta"), engine, work)
    result = run(*job.trainer("--replay", work / "run", "--json"))
    assert result.returncode == 1
    assert result.stderr.count(" driftless trainer.0: io: version ") == 3
    assert "injected" in result.stderr
    closing = result.stderr.splitlines()[-1]
    url = f"http://127.0.0.1:{engine.server_port}"
    assert f"not every engine took every version: {url} failed to take 3 of 3 versions" in closing
    summary = json.loads(result.stdout.splitlines()[-1])
    assert summary["version"] == 3 and not summary["ok"]
    assert summary["engines"] == [{"url": url, "calls": 3, "failures": 3}]


def test_one_version_that_an_engine_missed_is_in_the_closing_line_and_the_exit_code(
    work, rng, engine
):
    """Even if the last versions succeeded: nothing proves what it holds after a missed one."""
    need("engines")
    make_run(work / "run", rng, 3)
    job = with_engine(Job(work, "hf_delta"), engine, work)
    job.settings += ["--set", "engine_calls.retries=0"]
    engine.refuse_calls = {1}
    result = run(*job.trainer("--replay", work / "run"))
    assert result.returncode == 1
    assert "NOT all engines took every version" in result.stdout.splitlines()[-1]
    assert "failed to take 1 of 3 versions" in result.stderr.splitlines()[-1]


def test_an_engine_that_failed_to_load_serves_nothing_until_a_version_goes_through(
    work, rng, engine
):
    """It may hold parts of two versions."""
    need("engines")
    make_run(work / "run", rng, 3)
    job = with_engine(Job(work, "hf_delta"), engine, work)
    job.settings += ["--set", "engine_calls.retries=0"]
    engine.refuse_calls = {4}  # version 2 is pulled, and not loaded
    paused = []
    engine.on_call = lambda: paused.append(engine.paused)
    result = run(*job.trainer("--replay", work / "run"))
    assert result.returncode == 1 and "the engine is left paused" in result.stderr
    assert paused == [False, True, False, True, True, True]
    assert not engine.paused and engine.weight_version == "3"


def test_engines_without_a_checkpoint_directory_take_the_rollouts(work, rng, engine):
    need("engines")
    make_run(work / "run", rng, 1)
    job = with_engine(Job(work, "hf_delta"), engine, work, action="update_weights_from_disk")
    at = job.settings.index("engines[0].local_checkpoint_dir=/local/model")
    job.settings[at - 1 : at + 1] = [
        "--set", "receiver.target=checkpoint", "--set", "receiver.checkpoint_dir=/host/model",
    ]  # fmt: skip
    job.settings += ["--set", "engine_calls.timeout=1s"]
    alone = run(*job.trainer("--replay", work / "run"))
    assert alone.returncode == 1 and engine.calls == []
    assert "not notified to load its checkpoint" in alone.stderr


def test_an_engine_loads_its_checkpoint_once_the_rollout_has_patched_it(work, rng, engine):
    need("engines")
    make_run(work / "run", rng, 3)
    shutil.copytree(work / "run/step_000000", work / "host")
    held = []
    engine.on_call = lambda: held.append(read_checkpoint(work / "host"))
    job = with_engine(Job(work, "hf_delta"), engine, work, action="update_weights_from_disk")
    at = job.settings.index("engines[0].local_checkpoint_dir=/local/model")
    job.settings[at - 1 : at + 1] = [
        "--set", "receiver.target=checkpoint", "--set", f"receiver.checkpoint_dir={work / 'host'}",
    ]  # fmt: skip
    rollout = start([COMMAND, *map(str, job.rollout())])
    trained = run(*job.trainer("--replay", work / "run"))
    assert trained.returncode == 0 and finish(rollout).returncode == 0, trained.stderr
    assert [body["weight_version"] for _, body, _ in engine.calls] == ["1", "2", "3"]
    for version, found in enumerate(held, 1):
        assert found == read_checkpoint(work / f"run/step_{version:06d}"), version


def test_an_engine_does_not_load_what_a_rollout_of_another_run_patched(work, rng, engine):
    """The directory was emptied for a new run, and the old run's rollout still runs."""
    need("engines")
    make_run(work / "old", rng, 1)
    make_run(work / "new", rng, 1)
    shutil.copytree(work / "old/step_000000", work / "host")
    job = Job(work, "hf_delta")
    job.settings += [
        "--set", "receiver.target=checkpoint", "--set", f"receiver.checkpoint_dir={work / 'host'}",
    ]  # fmt: skip
    rollout = start([COMMAND, *map(str, job.rollout("--verbose"))])
    replay = job.trainer("--replay", work / "old", "--interval-ms", 600_000)
    trainer = start([COMMAND, *map(str, replay)])
    assert "version 1," in rollout.stdout.readline()
    trainer.kill()
    finish(trainer)
    for path in job.dir.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    engine_settings = with_engine(Job(work, "hf_delta"), engine, work, "update_weights_from_disk")
    job.settings += [*engine_settings.settings, "--set", "engine_calls.timeout=3s"]
    trained = run(*job.trainer("--replay", work / "new", "--set", "deadlines.connect=5s"))
    assert rollout.poll() is None
    assert engine.calls == [] and trained.returncode == 1
    assert "not notified to load its checkpoint" in trained.stderr


@pytest.mark.parametrize("path", ["own", "containers"])
def test_only_the_receiver_that_patches_a_checkpoint_counts_for_it(
    work, rng, engine, path
):
    """A rollout in memory has every version, too. The one that patches leaves, and comes back."""
    need("engines")
    driftless = binding.driftless()
    weights = binding.weights(rng)
    base = {n: Tensor(d, a.shape, a.tobytes()) for n, (d, a) in weights.items()}
    write_checkpoint(work / "host", base)
    seen_at = work / "host" if path == "own" else "/in/a/container"
    pair = binding.Pair(
        driftless, work / "road", weights, "road.layout=hf_delta", "engine_calls.timeout=1s",
        f"engines[0].url=http://127.0.0.1:{engine.server_port}",
        "engines[0].action=update_weights_from_disk", f"engines[0].local_checkpoint_dir={seen_at}",
    )  # fmt: skip
    job = driftless.Job(pair.config, "rollout", launched=False)

    def patcher():
        return driftless.Receiver(job, driftless.CheckpointTarget(work / "host"), id="patcher")

    def next_version(*receivers):
        nonlocal weights
        weights = binding.step(rng, weights)
        pair.publisher.publish(binding.Source(driftless, weights))
        for receiver in receivers:
            assert receiver.stage(60)
            receiver.commit()
        return pair.publisher.tell_engines()

    (refused,) = next_version(pair.receiver)
    assert "not notified to load its checkpoint" in refused and str(seen_at) in refused
    assert "1 receivers report, and none of them patches a checkpoint" in refused
    patches = patcher()
    assert next_version(pair.receiver, patches) == []
    patches.leave()
    patches.close()
    del patches  # and its lock
    (refused,) = next_version(pair.receiver)
    assert "'patcher', which patches" in refused and "is gone" in refused
    patches = patcher()
    assert next_version(pair.receiver, patches) == []
    assert [body["weight_version"] for _, body, _ in engine.calls] == ["2", "4"]
    assert [(each.versions, each.failures) for each in pair.publisher.engines] == [(4, 2)]
    job.close()


@pytest.mark.parametrize(
    "removes", [["notify.cleanup=true"], ["keep_versions=1", "anchors.every=1"]]
)
def test_an_engine_started_anew_is_not_paused_for_files_that_are_gone(work, rng, engine, removes):
    """It serves the base, and the error says what it needs."""
    need("engines")
    make_run(work / "run", rng, 3)
    job = with_engine(Job(work, "flush"), engine, work, action="flush")
    for setting in removes:
        job.settings += ["--set", setting]

    def act():
        body = engine.calls[-1][1]
        engine.refuse = not Path(body["model_path"]).exists()

    engine.on_call = act
    job.hold(3)
    metrics = ["--set", f"metrics.file={work}/trainer.jsonl"]
    trainer = start([COMMAND, *map(str, job.trainer("--replay", work / "run", *metrics))])

    def updated():
        lines = (work / "trainer.jsonl").read_text().splitlines(keepends=True)
        records = [json.loads(line) for line in lines if line.endswith("\n")]
        return any("engine" in record and record["version"] == 2 for record in records)

    wait_for((work / "trainer.jsonl").exists, "version 1")
    wait_for(updated, "version 2 in the engine")
    engine.weight_version = "default"
    job.go(3)
    result = finish(trainer)
    assert result.returncode == 1 and "publish a full version" in result.stderr
    assert not engine.paused


def test_a_version_that_every_engine_has_is_removed_if_configured(work, rng, engine):
    need("engines")
    make_run(work / "run", rng, 2)
    job = with_engine(Job(work, "hf_delta"), engine, work)
    job.settings += ["--set", "notify.cleanup=true"]
    assert run(*job.trainer("--replay", work / "run")).returncode == 0
    assert not list(job.dir.glob("weight_v*"))


def test_files_stay_until_every_rank_of_an_engine_has_read_them(work, rng, engine):
    """SGLang answers when its first rank has loaded; another rank reads later."""
    need("engines")
    make_run(work / "run", rng, 3)
    job = with_engine(Job(work, "flush"), engine, work, action="flush")
    job.settings += ["--set", "notify.cleanup=true"]
    found = []

    def load_late():
        _, body, _ = engine.calls[-1]
        files = [Path(body["model_path"]) / name for name in body["files"]]
        late = threading.Timer(0.3, lambda: found.append([path.exists() for path in files]))
        engine.loading.append(late)
        late.start()

    engine.on_call = load_late
    result = run(*job.trainer("--replay", work / "run"))
    assert result.returncode == 0, result.stderr
    for each in engine.loading:
        each.join()
    assert len(found) == 3 and all(map(all, found)), "the files were gone"
    assert not list(job.dir.glob("weight_v*"))


def test_a_restarted_trainer_brings_engines_to_the_newest_version(work, rng, engine):
    """They missed it, and no other version follows: a trainer that notified no engine proves
    nothing."""
    need("engines")
    make_run(work / "run", rng, 2)
    job = with_engine(Job(work, "hf_delta"), engine, work)
    job.settings += ["--set", "engine_calls.retries=0"]
    engine.refuse = True
    assert run(*job.trainer("--replay", work / "run")).returncode == 1
    engine.calls.clear()
    again = run(*job.trainer("--replay", work / "run"))
    assert again.returncode == 1 and engine.calls, again.stdout
    assert "NOT all engines took every version" in again.stdout.splitlines()[-1]
    engine.refuse = False
    assert run(*job.trainer("--replay", work / "run")).returncode == 0
    assert engine.weight_version == "2" and not engine.paused


def test_a_replay_whose_versions_were_removed_ends_with_the_last_step(work, rng, engine):
    need("engines")
    history = make_run(work / "run", rng, 2)
    job = with_engine(Job(work, "hf_delta"), engine, work)
    assert run(*job.trainer("--replay", work / "run", "--set", "notify.cleanup=true")).returncode == 0
    again = run(*job.trainer("--replay", work / "run"))
    assert again.returncode == 0, again.stderr
    assert run(*job.rollout("--save", work / "save", "--base", work / "run/step_000000")).returncode == 0
    assert read_checkpoint(work / "save/rollout_00") == history[2]

# SPDX-License-Identifier: Apache-2.0
"""driftless agent with real processes: a trainer, a host's agent, and workers that follow it
through shared memory; and kills of each of them."""

import http.server
import json
import os
import shutil
import signal
import threading
import uuid
from pathlib import Path

import numpy as np
import pytest

import jobs
from jobs import Files, ended, finish, make_run, mpirun_line, start, wait_for
from support import COMMAND, assert_refusal, read_checkpoint

SHM = Path("/dev/shm")
STEPS = 8


@pytest.fixture(autouse=True)
def no_processes_left():
    yield
    jobs.stop_started()


@pytest.fixture
def name():
    """A name of shared memory that no other test uses; its segments are removed at the end."""
    made = f"test-{uuid.uuid4().hex[:12]}"
    yield made
    shutil.rmtree(SHM / f"driftless-{os.geteuid()}-{made}", ignore_errors=True)


class Host(Files):
    """A job over files whose rollouts follow through an agent."""

    def __init__(self, work, name, road="flush", **settings):
        super().__init__(work, road)
        self.shm = SHM / f"driftless-{os.geteuid()}-{name}"
        self.set(**{"road.host_shm.name": name, "anchors.first": "true", **settings})

    def start_agent(self, *arguments):
        line = ["agent", "--config", self.config, "--threads", 1, *self.settings, "--json", *arguments]
        return start([COMMAND, *map(str, line)])

    def start_worker(self, number, *arguments):
        settings = [*self.settings, "--set", "road.kind=host_shm", "--set", "road.layout=auto"]
        settings += ["--set", "encoding=auto", "--set", f"receiver.id=worker{number}"]
        line = ["rollout", "--config", self.config, "--threads", 1, *settings, "--json", "--verbose"]
        return start([COMMAND, *map(str, [*line, "--save", self.save / str(number), *arguments])])

    def saved(self, number):
        return read_checkpoint(self.save / str(number) / "rollout_00")


def replay(host, history_path, *arguments):
    return host.start_trainer("--replay", history_path, "--rollouts", 1, *arguments)


@pytest.mark.parametrize("road", ["flush", "hf_delta"])
def test_workers_follow_through_the_agent(work, name, road):
    history = make_run(work / "run", np.random.default_rng(1), STEPS)
    host = Host(work, name, road, **{"agent.workers": 3, "metrics.file": work / "{role}.jsonl"})
    agent = host.start_agent()
    workers = [host.start_worker(i) for i in range(3)]
    trainer = replay(host, work / "run", "--interval-ms", 50)
    last = json.loads(finish(trainer).stdout.splitlines()[-1])
    assert trainer.returncode == 0
    for number, worker in enumerate(workers):
        assert ended(worker)["version"] == STEPS
        assert host.saved(number) == history[-1]
    summary = ended(agent)
    assert summary["version"] == STEPS and summary["workers"] == 3
    assert summary["versions"] == STEPS and summary["anchors"] == 1
    assert last["event"] == "summary"
    lines = [json.loads(line) for line in (work / "agent.jsonl").read_text().splitlines()]
    steps = [line for line in lines if not line["anchor"]]
    assert [line["version"] for line in steps] == list(range(1, STEPS + 1))
    assert all(line["fetch_ms"] >= 0 and line["process_ms"] > 0 for line in lines)
    assert sorted(path.name for path in host.shm.iterdir()) == ["end", "lock", "receivers"]
    assert not list((host.shm / "receivers").iterdir())


def test_an_agent_under_mpirun(work, name):
    jobs.need_mpirun()
    history = make_run(work / "run", np.random.default_rng(2), STEPS)
    host = Host(work, name, **{"agent.workers": 2})
    config = jobs.CONFIGS / "single_node.yaml"
    sets = ["--set", f"road.host_shm.name={name}", "--set", "agent.workers=2"]
    sets += ["--set", "anchors.first=true", "--set", "deadlines.connect=60s"]
    trainer = ["trainer", "--config", config, "--replay", work / "run", "--json", *sets]
    agent = ["agent", "--config", config, "--json", *sets]
    job = start(mpirun_line((2, trainer), (1, agent)))
    line = ["rollout", "--config", config, "--json", *sets, "--set", "road.kind=host_shm"]
    workers = [
        start([COMMAND, *map(str, [*line, "--save", host.save / str(i)])]) for i in range(2)
    ]
    result = finish(job)
    assert result.returncode == 0, result.stderr
    for number, worker in enumerate(workers):
        assert ended(worker)["version"] == STEPS
        assert host.saved(number) == history[-1]


def test_a_second_agent_is_refused_with_the_name_of_the_first(work, name):
    make_run(work / "run", np.random.default_rng(3), 1)
    host = Host(work, name)
    first = host.start_agent()
    wait_for(lambda: (host.shm / "lock").exists() and (host.shm / "lock").read_text(), "the agent")
    second = finish(host.start_agent())
    assert_refusal(second, 6, "busy", f"process {first.pid}", "road.host_shm.name")
    assert first.poll() is None


def published(host, version):
    """Whether this version or a later one is there: older ones are removed."""
    return lambda: any(path.name[1:] >= f"{version:06d}" for path in host.shm.glob("s[0-9]*"))


def test_an_agent_that_is_killed_and_started_again(work, name):
    history = make_run(work / "run", np.random.default_rng(4), STEPS)
    host = Host(work, name, **{"agent.workers": 2})
    host.hold(STEPS)
    workers = [host.start_worker(i) for i in range(2)]
    trainer = replay(host, work / "run", "--interval-ms", 150)
    for moment in (2, 4, 6):
        agent = host.start_agent()
        wait_for(published(host, moment), f"version {moment}")
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        assert published(host, moment)(), "its segments stay until the next agent starts"
    agent = host.start_agent()
    host.go(STEPS)
    for number, worker in enumerate(workers):
        assert ended(worker)["version"] == STEPS
        assert host.saved(number) == history[-1]
    assert ended(agent)["version"] == STEPS
    assert finish(trainer).returncode == 0
    assert [path.name for path in host.shm.iterdir() if path.name[0] in "sa"] == []


def test_a_killed_worker_delays_no_other_and_returns(work, name):
    history = make_run(work / "run", np.random.default_rng(5), STEPS)
    host = Host(work, name, **{"agent.workers": 2})
    host.hold(STEPS)
    agent = host.start_agent()
    steady, dying = host.start_worker(0), host.start_worker(1)
    trainer = replay(host, work / "run", "--interval-ms", 150)
    wait_for(published(host, 3), "version 3")
    dying.send_signal(signal.SIGKILL)
    dying.wait()
    again = host.start_worker(1)  # holds nothing: needs an anchor, which the agent fetches
    host.go(STEPS)
    assert ended(steady)["version"] == STEPS
    assert ended(again)["version"] == STEPS
    assert host.saved(0) == host.saved(1) == history[-1]
    assert ended(agent)["workers"] == 2
    assert finish(trainer).returncode == 0


def test_compact_reaches_workers_also_after_they_and_the_agent_are_started_again(work, name):
    base, steps = work / "run" / "step_000000", 14
    history = make_run(work / "run", np.random.default_rng(9), steps, rows=4000)
    host = Host(work, name, **{"road.layout": "frames", "encoding": "compact", "agent.workers": 2})
    host.set(**{"metrics.file": work / "{role}.jsonl", "keep_versions": 20})
    host.hold(steps - 1)
    agent = host.start_agent()
    workers = [host.start_worker(i, "--base", base) for i in range(2)]
    trainer = replay(host, work / "run", "--interval-ms", 250)
    wait_for(published(host, 3), "version 3")
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    agent = host.start_agent()
    wait_for(published(host, 6), "version 6")
    workers[1].send_signal(signal.SIGKILL)
    workers[1].wait()
    workers[1] = host.start_worker(1, "--base", base)
    host.go(steps - 1)
    for number, worker in enumerate(workers):
        assert ended(worker)["version"] == steps
        assert host.saved(number) == history[-1]
    assert ended(agent)["version"] == steps
    assert finish(trainer).returncode == 0
    lines = [json.loads(line) for line in (work / "trainer.jsonl").read_text().splitlines()]
    # Versions are encoded as `deltas` until the agent has announced that its workers decode
    # compact.
    assert lines[-1]["encoding"] == "compact"


def test_a_signal_ends_it_and_gives_the_memory_back(work, name):
    make_run(work / "run", np.random.default_rng(6), STEPS)
    host = Host(work, name)
    host.hold(3)
    agent = host.start_agent()
    worker = host.start_worker(0)
    trainer = replay(host, work / "run")
    wait_for(published(host, 2), "version 2")
    agent.send_signal(signal.SIGTERM)
    result = finish(agent)
    assert result.returncode == 128 + signal.SIGTERM
    assert [path.name for path in host.shm.iterdir() if path.name[0] in "sa"] == []
    assert worker.poll() is None and trainer.poll() is None


def test_once_hands_over_the_versions_that_exist(work, name):
    make_run(work / "run", np.random.default_rng(7), 3)
    host = Host(work, name)
    assert finish(host.start_trainer("--replay", work / "run", "--rollouts", 0)).returncode == 0
    (host.dir / "closed.json").unlink()  # reopens the run
    summary = ended(host.start_agent("--once"))
    assert summary["version"] == 3 and summary["versions"] == 3


def test_once_ends_though_a_worker_cannot_follow(work, name):
    """It has no base, and there is no anchor: it reports, requests an anchor, and waits."""
    make_run(work / "run", np.random.default_rng(7), 3)
    host = Host(work, name, **{"anchors.first": "false", "agent.workers": 1})
    assert finish(host.start_trainer("--replay", work / "run", "--rollouts", 0)).returncode == 0
    (host.dir / "closed.json").unlink()  # reopens the run
    host.set(**{"deadlines.fetch": "60s", "deadlines.connect": "3s"})
    agent, worker = host.start_agent("--once"), host.start_worker(0)
    result = finish(agent)
    assert result.returncode == 1 and worker.poll() is None
    assert "worker0 holds no version" in result.stderr and "requests an anchor" in result.stderr


def reported(host, version):
    """Whether the agent has reported this version to the trainer."""
    reports = [json.loads(path.read_text()) for path in host.dir.glob(".receivers/*.json")]
    return any(report["version"] == version and report["proof"] for report in reports)


@pytest.mark.parametrize("damage", ["a flipped bit", "a part cut short"])
def test_workers_arrive_at_a_last_version_that_is_damaged(work, name, damage):
    """There is no next version to wait for: the agent requests an anchor."""
    history = make_run(work / "run", np.random.default_rng(19), 3)
    host = Host(work, name, **{"anchors.first": "false", "deadlines.fetch": "2s"})
    host.hold(3)
    trainer = replay(host, work / "run")
    wait_for((host.dir / "run.json").exists, "the announcement")
    agent = host.start_agent()
    worker = host.start_worker(0, "--base", work / "run/step_000000")
    wait_for(lambda: reported(host, 2), "version 2 in the worker")
    jobs.stop(agent)
    host.go(3)
    wait_for((host.version_dir(3) / "DONE").exists, "version 3")
    part = max(host.version_dir(3).glob("*.safetensors"), key=lambda path: path.stat().st_size)
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content if damage == "a flipped bit" else content[: len(content) // 2])
    agent.send_signal(signal.SIGCONT)
    assert ended(worker)["version"] == 3
    assert host.saved(0) == history[3]
    assert ended(agent)["version"] == 3
    result = finish(trainer)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["rollouts"][0]["holds_last"]


def test_an_error_about_room_names_the_setting_to_raise(work, name):
    make_run(work / "run", np.random.default_rng(8), 2, rows=40_000, fraction=0.2)
    host = Host(work, name, **{"road.host_shm.size": "64KiB"})
    assert finish(host.start_trainer("--replay", work / "run", "--rollouts", 0)).returncode == 0
    result = finish(host.start_agent())
    assert_refusal(result, 5, "no_space", "road.host_shm.size")


# --- checkpoints that engines reload -------------------------------------------------------------


class Engine(http.server.ThreadingHTTPServer):
    """Answers the calls of vLLM or SGLang for an engine that reloads files. `loaded`: the tensors
    that it read, at the time of each call; `broken`: how often each call fails."""

    def __init__(self, model_path, port=0):
        self.model_path, self.version, self.loaded = str(model_path), "default", []
        self.answering = threading.Event()  # cleared: calls get no answer
        self.answering.set()
        self.started = str(model_path)  # SGLang reports it beside the path that was loaded last
        self.paused, self.calls, self.broken = False, [], {}
        self.late, self.loading = [], []  # reads of a second rank, which SGLang does not wait for
        super().__init__(("127.0.0.1", port), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def die(self):
        self.shutdown()
        self.server_close()

    def load_late(self, path):
        def load():
            self.late.append(read_checkpoint(Path(path)) if Path(path).exists() else None)

        self.loading.append(threading.Timer(0.5, load))
        self.loading[-1].start()

    def meet(self):
        for each in self.loading:
            each.join()

    def load(self, path):
        tensors = read_checkpoint(Path(path))
        known = dict(self.loaded[-1]) if self.loaded else {}
        self.loaded.append({**known, **tensors})


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def reply(self, content, status=200):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        engine = self.server
        path = self.path.split("?")[0]
        engine.calls.append(path)
        engine.answering.wait(60)
        took = {"scheduler_e2e": engine.server_address[1] + 0.25}  # identifies this process
        content = {"model_path": engine.model_path, "weight_version": engine.version}
        if path == "/server_info":
            content = {"model_path": engine.started, "tp_size": 1, "startup_time": took}
        self.reply(content)

    def do_POST(self):
        engine = self.server
        path = self.path.split("?")[0]
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.loads(data) if data else {}
        engine.calls.append(path)
        engine.answering.wait(60)
        if engine.broken.get(path, 0) > 0:
            engine.broken[path] -= 1
            return self.reply({"message": "broken"}, 500)
        if path in ("/pause", "/pause_generation"):
            engine.paused = True
        if path in ("/resume", "/continue_generation"):
            engine.paused = False
        if path == "/collective_rpc":
            assert engine.paused and body["method"] == "reload_weights"
            engine.load(body["kwargs"]["weights_path"])
        if path == "/update_weights_from_disk":
            assert engine.paused
            engine.load(body["model_path"])
            engine.load_late(body["model_path"])
            engine.model_path, engine.version = body["model_path"], body["weight_version"]
        if path in ("/begin_weight_update", "/end_weight_update"):
            engine.meet()
        if path == "/update_weight_version":
            engine.version = body["new_version"]
        return self.reply({"success": True, "results": [None], "message": "done"})


def checkpoint_host(work, name, *engines, **settings):
    shutil.copytree(work / "run/step_000000", work / "local")
    host = Host(work, name, **{"agent.hand_over": "checkpoint"})
    host.set(**{"agent.checkpoint_dir": work / "local", "engine_calls.retry_wait": "20ms", **settings})
    for number, (kind, engine) in enumerate(engines):
        url = engine if isinstance(engine, str) else engine.url
        host.set(**{f"engines[{number}].url": url, f"engines[{number}].kind": kind})
    return host


def test_engines_that_read_files_hold_every_version(work, name):
    history = make_run(work / "run", np.random.default_rng(9), STEPS)
    vllm, sglang = Engine(work / "run/step_000000"), Engine(work / "run/step_000000")
    vllm.broken = {"/pause": 1, "/resume": 2, "/collective_rpc": 1}
    sglang.broken = {"/pause_generation": 1, "/update_weights_from_disk": 1, "/flush_cache": 2}
    metrics = {"metrics.file": work / "{role}.jsonl"}
    host = checkpoint_host(work, name, ("vllm", vllm), ("sglang", sglang), **metrics)
    agent = host.start_agent()
    trainer = replay(host, work / "run", "--interval-ms", 300)
    summary = ended(agent)
    lines = [json.loads(line) for line in (work / "agent.jsonl").read_text().splitlines()]
    handed = [line for line in lines if "process_ms" in line]
    assert handed and all(line["process_ms"] > line["fetch_ms"] for line in handed)
    assert finish(trainer).returncode == 0
    assert [engine["version"] for engine in summary["engines"]] == [STEPS, STEPS]
    assert [(engine["engine"], engine["kind"], engine["proven"]) for engine in summary["engines"]] == [
        (vllm.url, "vllm", "files"), (sglang.url, "sglang", "files"),
    ]  # fmt: skip
    for line in (summary, *summary["engines"]):
        assert len(line["run"]) == 32 and line["host"] and line["time"].endswith("Z") and line["digest"]
    assert read_checkpoint(work / "local") == history[-1]
    steps = {tuple(sorted(step.items())) for step in history}
    for engine in (vllm, sglang):
        assert not engine.paused and engine.version == str(STEPS)
        assert engine.loaded[-1] == history[-1]
        for loaded in engine.loaded:
            assert tuple(sorted(loaded.items())) in steps, "parts of two versions"
    assert not (work / "local.changed").exists(), "nothing is left behind"


def test_a_trainer_makes_an_engine_load_the_checkpoint_that_the_agent_patches(work, name):
    """The agent's reports name the checkpoint, and count once its own engines have the version."""
    history = make_run(work / "run", np.random.default_rng(19), 2)
    ours, notified = Engine(work / "run/step_000000"), Engine(work / "run/step_000000")
    host = checkpoint_host(work, name, ("vllm", ours))
    host.set(**{"road.layout": "hf_delta", "encoding": "xor"})
    host.set(**{"engines[1].url": notified.url, "engines[1].action": "update_weights_from_disk"})
    host.set(**{"engines[1].local_checkpoint_dir": work / "local", "engine_calls.timeout": "20s"})
    agent = host.start_agent()
    trainer = finish(replay(host, work / "run"))
    assert trainer.returncode == 0, trainer.stderr
    ended(agent)
    assert notified.loaded == history[1:] and notified.version == "2" and not notified.paused


def test_an_engine_that_outlives_a_run_gets_the_next_one(work, name):
    """Run A ended at the same version number: the label proves nothing to run B's agent."""
    engines = []
    for number, seed in enumerate((15, 16)):
        here = work / str(number)
        here.mkdir()
        history = make_run(here / "run", np.random.default_rng(seed), 2)
        if not engines:
            base = here / "run/step_000000"
            engines = [("vllm", Engine(base)), ("sglang", Engine(base))]
        host = checkpoint_host(here, f"{name}-{number}", *engines)
        agent = host.start_agent()
        trainer = replay(host, here / "run")
        summary = ended(agent)
        assert finish(trainer).returncode == 0
        assert [engine["version"] for engine in summary["engines"]] == [2, 2]
        for _, engine in engines:
            assert engine.loaded[-1] == history[-1], f"run {number}"
            assert engine.version == "2" and not engine.paused
    shutil.rmtree(SHM / f"driftless-{os.geteuid()}-{name}-0", ignore_errors=True)
    shutil.rmtree(SHM / f"driftless-{os.geteuid()}-{name}-1", ignore_errors=True)


def test_a_dead_engine_delays_no_other_and_is_reported_to_the_trainer(work, name):
    """The agent reports only versions that all its engines confirmed, so the trainer exits with
    1."""
    history = make_run(work / "run", np.random.default_rng(10), STEPS)
    good = Engine(work / "run/step_000000")
    host = checkpoint_host(work, name, ("vllm", "http://127.0.0.1:9"), ("vllm", good))
    host.set(**{"engine_calls.retries": "1", "deadlines.connect": "6s"})
    agent = host.start_agent()
    trainer = finish(replay(host, work / "run", "--interval-ms", 50))
    result = finish(agent)
    assert result.returncode == 1, "one engine does not have the last version"
    assert "http://127.0.0.1:9 did not take version" in result.stderr
    assert good.loaded[-1] == history[-1] and not good.paused
    assert trainer.returncode == 1 and "does not hold version" in trainer.stderr, trainer.stderr


def test_an_engine_that_refuses_is_reported_at_the_version_it_confirmed(work, name):
    make_run(work / "run", np.random.default_rng(17), 4)
    engine = Engine(work / "run/step_000000")
    host = checkpoint_host(work, name, ("vllm", engine), **{"engine_calls.retries": "0"})
    host.set(**{"deadlines.connect": "6s"})
    host.hold(3)
    agent = host.start_agent()
    trainer = replay(host, work / "run")
    wait_for(lambda: engine.version == "2", "version 2 in the engine")
    engine.broken = {"/collective_rpc": 1000}
    host.go(3)
    result = finish(trainer)
    # vLLM failed while loading version 3, and may hold parts of it.
    assert result.returncode == 1, result.stderr
    assert "does not hold version 4: it held version 2, and has proven nothing" in result.stderr
    (rollout,) = json.loads(result.stdout.splitlines()[-1])["rollouts"]
    assert rollout["version"] == 2 and not rollout["same"] and not rollout["holds_last"]
    assert finish(agent).returncode == 1


def test_files_stay_as_they_are_until_every_rank_has_read_them(work, name):
    """SGLang answers when its first rank has loaded; another rank reads later."""
    history = make_run(work / "run", np.random.default_rng(18), 4)
    engine = Engine(work / "run/step_000000")
    host = checkpoint_host(work, name, ("sglang", engine), keep_versions="20")
    trainer = replay(host, work / "run", "--interval-ms", 50)
    assert ended(host.start_agent())["engines"][0]["version"] == 4
    assert finish(trainer).returncode == 0
    engine.meet()
    assert None not in engine.late, "the files were gone"
    held = {}
    for tensors in engine.late:
        held |= tensors
        assert held in history, "parts of two versions"
    assert held == history[-1]


def test_a_server_whose_last_directory_is_gone_is_updated(work, name):
    """The directory from which it was started has the shapes; a directory of changed tensors that
    it loaded later, and that was removed, is not needed."""
    history = make_run(work / "run", np.random.default_rng(17), 2)
    engine = Engine(work / "run/step_000000")
    engine.model_path, engine.version = str(work / "driftless-changed-gone"), "7"
    host = checkpoint_host(work, name, ("sglang", engine), **{"engine_calls.retries": "0"})
    agent = host.start_agent()
    replay(host, work / "run")
    assert ended(agent)["engines"][0]["version"] == 2
    assert engine.loaded[-1] == history[-1] and not engine.paused


def test_an_engine_of_another_model_gets_no_weights(work, name):
    make_run(work / "run", np.random.default_rng(11), 2)
    make_run(work / "other", np.random.default_rng(12), 0, rows=80)
    engine = Engine(work / "other/step_000000")
    host = checkpoint_host(work, name, ("sglang", engine), **{"engine_calls.retries": "0"})
    host.set(**{"deadlines.connect": "8s"})  # so long the agent waits for the engine
    agent = host.start_agent()
    replay(host, work / "run")
    result = finish(agent)
    assert result.returncode == 1
    assert "embed.weight" in result.stderr and "[80, 32]" in result.stderr
    assert not {"/pause_generation", "/update_weights_from_disk"} & set(engine.calls)


def test_a_second_agent_on_the_same_checkpoint_is_refused(work, name):
    make_run(work / "run", np.random.default_rng(13), 1)
    host = checkpoint_host(work, name)
    first = host.start_agent()
    wait_for(lambda: (work / "local.agent.pid").exists(), "the agent")
    second = finish(host.start_agent())
    assert_refusal(second, 6, "busy", f"process {first.pid}", "agent.checkpoint_dir")
    assert first.poll() is None


def test_a_killed_agent_leaves_a_whole_checkpoint(work, name):
    history = make_run(work / "run", np.random.default_rng(14), STEPS, rows=20_000)
    host = checkpoint_host(work, name)
    trainer = replay(host, work / "run", "--interval-ms", 100)
    for moment in range(2, 6):
        agent = host.start_agent()
        wait_for(lambda moment=moment: host.version_dir(moment).exists(), f"version {moment}")
        agent.send_signal(signal.SIGKILL)
        agent.wait()
    agent = host.start_agent()
    assert ended(agent)["version"] == STEPS
    assert read_checkpoint(work / "local") == history[-1]
    assert finish(trainer).returncode == 0


def test_an_agent_that_is_killed_is_named_by_the_trainer(work, name):
    make_run(work / "run", np.random.default_rng(18), 6)
    engine = Engine(work / "run/step_000000")
    host = checkpoint_host(work, name, ("vllm", engine))
    host.set(**{"deadlines.connect": "5s", "receiver.id": "agent-of-host-3"})
    host.hold(3)
    agent = host.start_agent()
    trainer = host.start_trainer("--replay", work / "run")
    wait_for(lambda: reported(host, 2), "version 2 at the trainer")
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    host.go(3)
    result = finish(trainer)
    assert result.returncode == 1, result.stdout
    assert "agent-of-host-3 is at version" in result.stderr
    assert not json.loads(result.stdout.splitlines()[-1])["ok"]

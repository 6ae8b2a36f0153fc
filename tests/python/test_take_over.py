# SPDX-License-Identifier: Apache-2.0
"""A new run from the same base, and an engine that holds versions of the run before: it is refused,
with the key to set; with that key a full version takes the engine over, once."""

import http.server
import json
import shutil
import threading
import time
import uuid

import numpy as np
import pytest

import binding
import jobs
from support import COMMAND, Tensor, read_checkpoint, write_checkpoint
from test_agent import Engine

driftless = binding.driftless()
from driftless.engines import vllm  # noqa: E402
from driftless.engines.rank_receiver import RankReceiver  # noqa: E402
from driftless.engines.target import HeldTarget  # noqa: E402


@pytest.fixture(autouse=True)
def no_processes_left():
    yield
    jobs.stop_started()


def as_tensors(weights):
    return {name: Tensor(dtype, array.shape, array.tobytes()) for name, (dtype, array) in weights.items()}


class Run:
    """A trainer in this process that starts from the base. `left_out`: tensors that it does not
    publish."""

    def __init__(self, place, seed, base, left_out=()):
        place.mkdir()
        self.place, self.rng, self.left_out = place, np.random.default_rng(seed), left_out
        self.weights = base
        self.config = f"road: {{kind: shared_fs, shared_fs: {{ dir: {place}/road }}}}"
        settings = driftless.Config.parse(self.config, [])
        self.job = driftless.Job(settings, "trainer", launched=False)
        self.publisher = driftless.Publisher(self.job, self.source())
        self.id = self.publisher.run

    def source(self):
        kept = {name: each for name, each in self.weights.items() if name not in self.left_out}
        return binding.Source(driftless, kept)

    def publish(self, anchor=False):
        self.weights = binding.step(self.rng, self.weights)
        self.publisher.publish(self.source())
        if anchor:
            self.publisher.publish_anchor()
        return self

    def close(self):
        self.publisher.close()
        self.job.close()


@pytest.fixture
def base(work, rng):
    made = binding.weights(rng)
    write_checkpoint(work / "base", as_tensors(made))
    return made


@pytest.fixture
def run_of(work, base):
    made = []

    def make(seed, left_out=()):
        made.append(Run(work / f"run{len(made)}", seed, base, left_out))
        return made[-1]

    yield make
    for run in made:
        run.close()


# --- one rank ------------------------------------------------------------------------------------


@pytest.fixture
def rank(work, base):
    made = RankReceiver(0, lambda chunk_bytes: HeldTarget(driftless.OwnedTarget(str(work / "base"))))
    yield made
    made.close()


def bring(rank, run, take_over=""):
    """Updates to the run's newest version; returns the last reply."""
    opened = rank.open(run.config, take_over=take_over)
    if opened["state"] == "closed":
        return opened
    rank.stage(timeout_s=10, ticket="t")
    staged = rank.wait(30)
    if staged["staged_version"] is None:
        return staged
    return rank.commit(staged["staged_version"], ticket="t")


def target_holds(target, run):
    kept = {spec.name for spec in target.layout.tensors}
    return binding.same(target, {name: run.weights[name] for name in kept})


def holds(rank, run):
    return target_holds(rank.target.native, run)


def test_a_rank_is_taken_over_by_a_full_version_and_can_go_back(rank, run_of):
    """Both runs are at version 1, so the numbers prove nothing."""
    first, second = run_of(1).publish(), run_of(2).publish()
    before = bring(rank, first)
    assert before["ok"] and before["run"] == first.id
    refused = bring(rank, second)
    assert not refused["ok"] and f"agent.take_over: {second.id}" in refused["error"]
    assert (refused["run"], refused["version"]) == (first.id, 1) and holds(rank, first)

    waiting = bring(rank, second, take_over=second.id)
    assert not waiting["ok"] and "only a full version of run" in waiting["waits"], waiting
    assert (waiting["run"], waiting["follows"]) == (first.id, second.id) and holds(rank, first)

    second.publisher.publish_anchor()
    after = bring(rank, second, take_over=second.id)
    assert after["ok"] and (after["run"], after["version"]) == (second.id, 1)
    assert after["digest"] != before["digest"] and holds(rank, second)

    back = rank.rollback(1)
    assert back["ok"] and (back["run"], back["digest"]) == (first.id, before["digest"])
    assert holds(rank, first)
    assert bring(rank, second)["run"] == second.id and holds(rank, second)
    second.publish()
    assert bring(rank, second)["version"] == 2 and holds(rank, second)


def test_a_key_of_another_run_admits_no_run(rank, run_of):
    first, second, third = run_of(1).publish(), run_of(2).publish(anchor=True), run_of(3)
    assert bring(rank, first)["ok"]
    refused = bring(rank, second, take_over=third.id)
    assert not refused["ok"] and "wrong_run" in refused["error"] and holds(rank, first)


def test_a_run_that_was_left_does_not_come_back(rank, run_of):
    """Otherwise two agents, each with its key, would take the engine from each other forever."""
    first, second = run_of(1).publish(anchor=True), run_of(2).publish(anchor=True)
    assert bring(rank, first)["ok"] and bring(rank, second, take_over=second.id)["ok"]
    refused = bring(rank, first, take_over=first.id)
    assert not refused["ok"] and "replaced by another run before" in refused["error"]
    assert holds(rank, second)


def test_tensors_of_the_run_before_that_no_version_replaces_are_named(rank, run_of):
    first = run_of(1).publish()
    second = run_of(2, left_out=["norm.weight"]).publish(anchor=True)
    assert bring(rank, first)["ok"]
    refused = bring(rank, second, take_over=second.id)
    assert not refused["ok"] and "'norm.weight'" in refused["error"], refused
    assert "restart the engine" in refused["error"] and holds(rank, first)


@pytest.mark.parametrize("by", ["delta", "full version"])
def test_tensors_that_were_never_received_need_not_be_replaced(rank, run_of, by):
    """The first run's deltas do not have the frozen tensor, but its anchors do."""
    full = by == "full version"
    first, second = run_of(1), run_of(2, left_out=["layers.2.frozen"]).publish(anchor=True)
    first.publish(anchor=full)
    if full:
        first.publish()
        shutil.rmtree(first.place / "road/weight_v000001")  # forces the use of the anchor
    assert bring(rank, first)["ok"]
    answer = bring(rank, second, take_over=second.id)
    if full:
        assert not answer["ok"] and "'layers.2.frozen'" in answer["error"], answer
        return
    assert answer["ok"] and answer["run"] == second.id and holds(rank, second), answer


def test_a_run_of_more_tensors_takes_over(rank, run_of):
    first, second = run_of(1, left_out=["embed.weight"]).publish(), run_of(2).publish(anchor=True)
    assert bring(rank, first)["ok"]
    assert bring(rank, second, take_over=second.id)["run"] == second.id and holds(rank, second)


# --- an agent and its engine ---------------------------------------------------------------------


class Worker(vllm.WorkerExtension):
    """vLLM's worker, with all that the extension uses."""

    def __init__(self, rank, base):
        self.rank, self.weight_transfer_engine = rank, None
        made = RankReceiver(rank, lambda chunk_bytes: HeldTarget(driftless.OwnedTarget(str(base))))
        self.__dict__["_driftless_made"] = made


class Server(http.server.HTTPServer):
    """vLLM with a worker that reads the road itself; one call at a time."""

    def __init__(self, base):
        self.workers = [Worker(0, base)]
        self.label, self.calls = "default", []
        super().__init__(("127.0.0.1", 0), Calls)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def start_anew(self, base):
        self.workers, self.label = [Worker(0, base)], "default"
        for worker in self.workers:
            process = uuid.uuid4().hex
            status = worker._driftless_answer
            worker._driftless_answer = lambda *given, status=status, process=process: {
                **status(*given), "process": process
            }

    def holds(self, run):
        targets = [worker._driftless_made.target.native for worker in self.workers]
        return all(target_holds(target, run) for target in targets)

    def identities(self):
        reply = [worker.driftless_status("n") for worker in self.workers]
        return {(each["run"], each["version"]) for each in reply}


class Calls(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.respond({"weight_version": self.server.label})

    def do_POST(self):
        server, path = self.server, self.path.split("?")[0]
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        server.calls.append(body.get("method", path))
        results = []
        if path == "/collective_rpc":
            results = [getattr(each, body["method"])(**body["kwargs"]) for each in server.workers]
        if path == "/update_weight_version":
            server.label = body["new_version"]
        self.respond({"success": True, "results": results})

    def respond(self, content):
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def server(work, base):
    made = Server(work / "base")
    yield made
    made.shutdown()
    for worker in made.workers:
        worker.driftless_close("n")
    made.server_close()


@pytest.fixture
def agent_of():
    names = []

    def run(run, engine, *sets, kind="vllm", once=True):
        names.append(f"test-{uuid.uuid4().hex[:12]}")
        config = run.place / f"agent{len(names)}.yaml"
        engines = [{"url": engine.url, "kind": kind}]
        files = {"dir": f"{run.place}/road"}
        road = {"kind": "shared_fs", "shared_fs": files, "host_shm": {"name": names[-1]}}
        agent = {"stage_timeout": "60s"}
        calls = {"retries": 4, "retry_wait": "100ms"}
        deadlines = {"connect": "60s", "fetch": "60s"}
        config.write_text(json.dumps({"road": road, "agent": agent, "engines": engines, "engine_calls": calls, "deadlines": deadlines}))
        line = [COMMAND, "agent", "--config", config, "--json", *(["--once"] if once else [])]
        started = jobs.start([*map(str, line), *(word for each in sets for word in ("--set", each))])
        return jobs.finish(started) if once else started

    yield run
    for name in names:
        for path in jobs_memory(name):
            shutil.rmtree(path, ignore_errors=True)


def jobs_memory(name):
    from test_agent import SHM

    return SHM.glob(f"driftless-*-{name}")


def test_an_agent_names_the_key_and_the_key_takes_the_engine_over(server, run_of, agent_of):
    first, second = run_of(1).publish().publish(), run_of(2).publish(anchor=True)
    assert agent_of(first, server).returncode == 0
    assert server.identities() == {(first.id, 2)} and server.label == "2"

    refused = agent_of(second, server)
    assert refused.returncode == 1 and "wrong_run" in refused.stderr, refused.stderr
    assert f"agent.take_over: {second.id}" in refused.stderr and "restart the engine" in refused.stderr
    assert server.identities() == {(first.id, 2)} and server.holds(first) and server.label == "2"

    taken = agent_of(second, server, f"agent.take_over={second.id}")
    assert taken.returncode == 0, taken.stderr
    assert server.identities() == {(second.id, 1)} and server.holds(second) and server.label == "1"
    second.publish()
    assert agent_of(second, server).returncode == 0, "the key is not needed any more"
    assert server.holds(second) and server.label == "2"


def test_an_agent_in_this_process_brings_the_engine_to_the_run(server, run_of):
    """driftless.Agent, without the command."""
    run = run_of(1).publish()
    name = f"test-{uuid.uuid4().hex[:12]}"
    road = {"kind": "shared_fs", "shared_fs": {"dir": f"{run.place}/road"}, "host_shm": {"name": name}}
    engines = [{"url": server.url, "kind": "vllm"}]
    agent = {"stage_timeout": "60s"}
    deadlines = {"connect": "60s", "fetch": "60s"}
    text = json.dumps({"road": road, "engines": engines, "agent": agent, "deadlines": deadlines})
    records, failures = [], []
    with driftless.Job(driftless.Config.parse(text), "rollout", launched=False) as job:
        made = driftless.Agent(job, on_record=records.append, on_failure=failures.append)
        limit = time.monotonic() + 300
        while server.label != "1" and time.monotonic() < limit:
            assert not made.step()
        run.publish()
        while server.label != "2" and time.monotonic() < limit:
            assert not made.step()
        assert server.identities() == {(run.id, 2)} and server.holds(run), failures
        ended = made.end()
        assert ended["version"] == 2 and ended["engines"][0]["version"] == 2, ended
        with pytest.raises(driftless.errors.InvalidArgumentError, match="the agent is closed"):
            made.step()
    assert {record["version"] for record in records} == {1, 2} and not failures, (records, failures)
    assert any(record.get("engine") == server.url for record in records), records
    one_host = driftless.Config.parse(json.dumps({"road": {"kind": "host_shm", "host_shm": {"name": name}}}))
    with driftless.Job(one_host, "rollout", launched=False) as job:
        with pytest.raises(driftless.errors.InvalidArgumentError, match="is what an agent offers"):
            driftless.Agent(job)
    for path in jobs_memory(name):
        shutil.rmtree(path, ignore_errors=True)


def test_an_agent_of_another_run_does_not_close_the_engine(server, run_of, agent_of):
    """The engine belongs to another agent, which continues."""
    first, second = run_of(1).publish(), run_of(2).publish(anchor=True)
    assert agent_of(first, server).returncode == 0
    server.calls.clear()
    assert agent_of(second, server).returncode == 1
    assert set(server.calls) <= {"driftless_status"}, server.calls


def test_a_label_of_another_run_is_no_proof_at_the_end(server, run_of, agent_of):
    """While the first run's agent waited, the engine was taken over by another run, at the same
    version number."""
    first, second = run_of(1).publish(), run_of(2).publish(anchor=True)
    agent = agent_of(first, server, once=False)
    jobs.wait_for(lambda: server.label == "1", "the first run's version")
    jobs.wait_for(lambda: held_by_receivers(first) == {1}, "the agent's report")
    assert agent_of(second, server, f"agent.take_over={second.id}").returncode == 0
    assert server.label == "1" and server.holds(second)
    first.publisher.declare_end()
    result = jobs.finish(agent)
    assert result.returncode == 1 and "ended at version 1" in result.stderr, result.stderr
    assert server.holds(second)


def held_by_receivers(run):
    return {reply.version for reply in run.publisher.receivers() if reply.proof}


def test_the_version_of_a_server_before_its_restart_is_not_reported(
    server, work, base, run_of, agent_of
):
    """It restarts with another base, and refuses the run."""
    run = run_of(1).publish()
    agent = agent_of(run, server, once=False)
    jobs.wait_for(lambda: held_by_receivers(run) == {1}, "the agent's report")
    write_checkpoint(work / "other", as_tensors(binding.weights(np.random.default_rng(7))))
    server.start_anew(work / "other")
    run.publish()
    jobs.wait_for(lambda: held_by_receivers(run) == set(), "a report of no version")
    assert agent.poll() is None


def test_once_without_a_version_is_no_success(server, run_of, agent_of):
    ended = agent_of(run_of(1), server, "deadlines.connect=1s")
    assert ended.returncode == 1 and "nothing was handed over" in ended.stderr, ended.stderr


def test_a_checkpoint_of_the_run_before_is_handed_over(work, base, run_of, agent_of):
    """Both runs are at version 2, so the directory's number proves nothing."""
    first = run_of(1).publish().publish()
    second = run_of(2).publish().publish(anchor=True)
    engine = Engine(work / "base")
    shutil.copytree(work / "base", work / "local")
    files = ["agent.hand_over=checkpoint", f"agent.checkpoint_dir={work}/local"]
    assert agent_of(first, engine, *files, kind="sglang").returncode == 0
    assert engine.loaded[-1] == as_tensors(first.weights)

    loads = len(engine.loaded)
    refused = agent_of(second, engine, *files, kind="sglang")
    assert refused.returncode not in (0, 1) and f"agent.take_over: {second.id}" in refused.stderr
    assert len(engine.loaded) == loads and read_checkpoint(work / "local") == as_tensors(first.weights)

    files.append(f"agent.take_over={second.id}")
    taken = agent_of(second, engine, *files, kind="sglang")
    assert taken.returncode == 0, taken.stderr
    assert engine.loaded[-1] == read_checkpoint(work / "local") == as_tensors(second.weights)
    assert engine.version == "2"

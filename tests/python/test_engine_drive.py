# SPDX-License-Identifier: Apache-2.0
"""The engine driver in Python: an `LLM` of this process, and the replies of a rank."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

import binding
from support import Tensor, write_checkpoint

driftless = binding.driftless()
from driftless import errors  # noqa: E402
from driftless import _native  # noqa: E402
from driftless.engines import drive, sglang_disk, vllm  # noqa: E402
from driftless.engines.rank_receiver import RankReceiver  # noqa: E402
from driftless.engines.target import HeldTarget  # noqa: E402

RUN = "a" * 32


def replica(**parallel):
    """A worker of one data-parallel replica."""
    made = vllm.WorkerExtension()
    made.rank, made.weight_transfer_engine = 0, None
    made.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(**parallel))
    made.__dict__["_driftless_made"] = RankReceiver(0, lambda chunk_bytes: None)
    return made


def test_a_replica_whose_replies_vllm_drops_raises():
    """vLLM calls all its data-parallel replicas and returns only the first one's reply, unless one
    raises: otherwise a failed commit of another one would count as done."""
    assert replica(data_parallel_index=0).driftless_status("n")["ok"]
    unanswered = [
        {"data_parallel_index": 1},
        {"data_parallel_rank": 1},  # older releases
        {"data_parallel_index": 3, "data_parallel_hybrid_lb": True, "data_parallel_rank_local": 1},
    ]
    for parallel in unanswered:
        for call in ("open", "stage", "status", "close"):
            with pytest.raises(errors.UnsupportedError, match="data-parallel"):
                getattr(replica(**parallel), f"driftless_{call}")(nonce="n")
    servers_of_their_own = [
        {"data_parallel_index": 1, "data_parallel_external_lb": True},
        {"data_parallel_index": 2, "data_parallel_hybrid_lb": True, "data_parallel_rank_local": 0},
    ]
    for parallel in servers_of_their_own:
        assert replica(**parallel).driftless_status("n")["ok"]


@pytest.fixture
def followed(work, rng):
    """A run with a whole base, and a rank that follows it and holds nothing yet."""
    config = binding.config(driftless, work / "road")
    with driftless.Job(config, "trainer", launched=False) as job:
        publisher = driftless.Publisher(job, binding.Source(driftless, binding.weights(rng)))
        publisher.publish_anchor()
        rank = RankReceiver(0, lambda chunk_bytes: HeldTarget(driftless.OwnedTarget()))
        assert rank.open(f"road: {{kind: shared_fs, shared_fs: {{ dir: {work}/road }}}}")["ok"]
        yield rank
        rank.close()


def test_a_rank_that_held_nothing_has_committed_the_base(followed):
    followed.stage()
    assert followed.wait(30)["staged_version"] == 0
    answer = followed.commit(0)
    assert answer["ok"] and answer["state"] == "committed" and answer["digest"]


def test_a_reply_names_the_weights_and_the_process(followed):
    followed.stage()
    followed.wait(30)
    reply = followed.commit(0, "n")
    assert reply["nonce"] == "n" and reply["process"].endswith(f"-{os.getpid()}")
    state = followed.target.native.state
    assert (reply["run"], reply["version"], reply["digest"]) == (state.run, 0, state.digest)
    assert reply["follows"] == reply["run"] and len(reply["run"]) == 32


def test_a_commit_that_comes_late_is_refused(followed):
    followed.stage(ticket="t-1")
    followed.wait(30)
    late = followed.commit(0, "n", "t-0")
    assert not late["ok"] and late["state"] == "staged" and "stage again" in late["error"]
    assert followed.commit(0, "n", "t-1")["state"] == "committed"


class Failing(HeldTarget):
    """An engine that fails to load written values, a given number of times."""

    failures = 0

    def written(self):
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the loader failed")


def test_an_exception_of_python_is_reported_and_undone(work, rng):
    config = binding.config(driftless, work / "road")
    weights = binding.weights(rng)
    write_checkpoint(work / "base", {n: Tensor(d, a.shape, a.tobytes()) for n, (d, a) in weights.items()})
    with driftless.Job(config, "trainer", launched=False) as job:
        publisher = driftless.Publisher(job, binding.Source(driftless, weights))
        rank = RankReceiver(0, lambda chunk_bytes: Failing(driftless.OwnedTarget(str(work / "base"))))
        assert rank.open(f"road: {{kind: shared_fs, shared_fs: {{ dir: {work}/road }}}}")["ok"]
        publisher.publish(binding.Source(driftless, binding.step(rng, weights)))
        for failures, version in ((1, 0), (2, -1), (0, 1)):
            rank.target.failures = failures
            assert rank.stage()["ok"] and rank.wait(30)["staged_version"] == 1, rank.status()
            output = rank.commit(1)
            assert output["version"] == version and output["ok"] == (version == 1), output
            assert output["ok"] or "RuntimeError: the loader failed" in output["error"]
        rank.close()


def test_a_staging_ends_on_a_thread_that_calls_back(followed):
    calls_back = []
    followed.on_staged(lambda reply: calls_back.append((reply, threading.get_ident())))
    followed.stage("n")
    assert followed.wait(30)["state"] == "staged"
    ((reply, thread),) = calls_back
    assert reply["nonce"] == "n" and reply["staged_version"] == 0
    assert thread != threading.get_ident()


@pytest.mark.parametrize("how", ["dropped", "kept"])
def test_an_interpreter_ends_while_a_thread_stages(work, rng, how):
    """The interpreter does not wait for the thread, and the thread does not crash it."""
    config = binding.config(driftless, work / "road")
    program = f"""
import sys
sys.path.insert(0, {str(binding.PACKAGE)!r})
import driftless
from driftless.engines.rank_receiver import RankReceiver
from driftless.engines.target import HeldTarget
rank = RankReceiver(0, lambda chunk_bytes: HeldTarget(driftless.OwnedTarget()))
rank.on_staged(print)
said = rank.open("road: {{kind: shared_fs, shared_fs: {{ dir: {work}/road }}}}")
assert said["ok"], said
assert rank.stage(timeout_s={0.2 if how == "dropped" else 600})["state"] == "staging"
if {how == "dropped"}:
    del rank
"""
    with driftless.Job(config, "trainer", launched=False) as job:
        publisher = driftless.Publisher(job, binding.Source(driftless, binding.weights(rng)))
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert time.monotonic() - began < 200
        publisher.close()


class Llm:
    """vLLM's `LLM` with two ranks that follow a run. `fate(rank, what)`: "refused" or "torn"."""

    def __init__(self):
        self.ranks = [{"version": 0, "run": "", "state": "closed"} for _ in range(2)]
        self.published, self.label, self.in_session, self.calls = 1, "default", False, []
        self.fate = lambda rank, what: None
        self.shares = None  # per rank, added to its reply
        self.process = "p"

    def collective_rpc(self, method, kwargs):
        what = method.removeprefix("driftless_")
        self.calls.append(what)
        return [self.obey(number, what, kwargs) for number in range(2)]

    def obey(self, number, what, given):
        rank = self.ranks[number]
        ok = True
        if what == "open":
            rank["state"] = "idle"
        elif what == "stage":
            rank["ticket"] = given["ticket"]
            newer = self.published > rank["version"]
            rank["staged"] = self.published if newer else None
            rank["state"] = "staged" if newer else "idle"
        elif what == "rollback":
            rank["staged"] = None
            if rank["version"] != given["version"]:
                ok = self.fate(number, what) is None and rank.get("before") == given["version"]
                rank["version"] = given["version"] if ok else rank["version"]
                rank["run"] = RUN if ok and rank["version"] else rank["run"] if not ok else ""
        elif what == "shares":
            ok = self.fate(number, what) is None
        version = rank["version"]
        digest = "" if version < 0 or rank["state"] == "closed" else f"{version:032x}"
        return {
            "nonce": given["nonce"], "rank": number, "process": f"{self.process}{number}", "ok": ok,
            "error": None if ok else "no", "state": rank["state"], "version": version,
            "staged_version": rank.get("staged"), "run": rank["run"], "digest": digest,
            "follows": RUN if rank["state"] != "closed" else "", "session": True,
            **(self.shares[number] if what == "shares" and self.shares else {}),
        }  # fmt: skip

    def start_weight_update(self):
        assert not self.in_session
        self.in_session = True

    def update_weights(self, request):
        info = request["update_info"]
        for number, rank in enumerate(self.ranks):
            fate = self.fate(number, "commit")
            if fate == "refused" or rank.get("ticket") != info["ticket"]:
                continue
            rank["before"], rank["run"], rank["state"] = rank["version"], RUN, "committed"
            rank["version"] = -1 if fate == "torn" else info["version"]
            rank["staged"] = None

    def finish_weight_update(self, weight_version=None):
        assert self.in_session
        self.in_session = False
        self.label = weight_version or self.label

    def reset_prefix_cache(self):
        self.calls.append("clear")

    def update_weight_version(self, version):
        self.label = version

    def get_weight_version(self):
        return self.label


def test_an_llm_of_this_process():
    llm = Llm()
    driver = vllm.follow(llm, "job")
    assert driver.version == 0 and llm.label == "default"
    done = driver.update(5)
    assert (done.from_version, done.version, llm.label) == (0, 1, "1")
    assert [reply["version"] for reply in done.replies] == [1, 1]
    assert set(done.timings) == {"staged_ms", "pause_ms", "commit_ms", "resume_ms"}
    assert driver.update(5) is None, "nothing newer"
    llm.published = 2
    driver.start_staging(5)
    assert driver.staged(5) == 2
    assert driver.update(5, started=True).version == driver.version == 2
    assert llm.calls.count("stage") == 3, "update() uses the staging that start_staging() began"
    assert [reply["version"] for reply in driver.ask("driftless_status")] == [2, 2]


def half(number, digest, manifest):
    share = ["w", 4, 8, f"{number:032x}", f"{digest:032x}", f"{manifest:032x}"]
    return {"shares": [share], "unproven": [], "absent": []}


def test_the_ranks_weights_are_proven_before_an_update():
    llm = Llm()
    llm.shares = [half(0, 3, 8), half(1, 4, 8)]
    with pytest.raises(drive.EngineError, match="tensor 'w'.*ranks 0, 1.*restart it") as raised:
        vllm.follow(llm, "job")
    assert raised.value.versions == [0, 0] and "stage" not in llm.calls
    llm.shares = [half(0, 0, 0), half(1, 0, 0)]  # shares of the base, whose digest is 0 here
    driver = vllm.follow(llm, "job")
    assert driver.prove()["verdict"] == "proven"
    asked = llm.calls.count("shares")
    assert driver.update(5).version == 1 and llm.calls.count("shares") == asked, "once"


def test_a_server_that_replaces_another_is_proven_too():
    llm = Llm()
    llm.shares = [half(0, 0, 0), half(1, 0, 0)]
    driver = vllm.follow(llm, "job")
    llm.process, llm.shares = "q", [half(0, 3, 8), half(1, 4, 8)]
    assert driver.update(5).version == 1, "its first answer"
    llm.published = 2
    for call in (lambda: driver.update(5), lambda: driver.start_staging(5)):
        with pytest.raises(drive.EngineError, match="the weights are unproven"):
            call()
    assert [rank["version"] for rank in llm.ranks] == [1, 1]


def test_an_engine_that_refuses_a_proof_reports_why():
    """Its ranks answer with an error and without shares, or do not know the call."""
    llm = Llm()
    driver = vllm.follow(llm, "job")
    with pytest.raises(errors.UnsupportedError, match="rank 0 reports no shares"):
        driver.prove()
    llm.fate = lambda rank, what: "refused" if what == "shares" else None
    output = driver.prove()
    assert output["verdict"] == "cannot tell" and output["why"].startswith("rank 0: 'no'"), output


def test_if_one_rank_refuses_the_others_undo_their_commit():
    llm = Llm()
    driver = vllm.follow(llm)
    llm.fate = lambda rank, what: "refused" if (rank, what) == (1, "commit") else None
    with pytest.raises(drive.EngineError, match="was refused") as raised:
        driver.update(5)
    assert raised.value.versions == [0, 0] and not raised.value.left_paused
    assert llm.label == "default", "no label without a proven commit"


@pytest.mark.parametrize("torn", ([1], [0, 1]))
def test_torn_ranks_are_no_version(torn):
    """Even if all of them report the same."""
    llm = Llm()
    driver = vllm.follow(llm)
    llm.fate = lambda rank, what: "torn" if rank in torn else None
    with pytest.raises(drive.EngineError, match="left paused") as raised:
        driver.update(5)
    assert raised.value.left_paused and -1 in raised.value.versions
    assert llm.label == "default"
    with pytest.raises(drive.EngineError, match="left paused"):
        vllm.follow(llm)


def test_an_engines_exception_is_reported_with_its_text():
    llm = Llm()
    driver = vllm.follow(llm)

    def dead(*_, **__):
        raise RuntimeError("the worker is gone")

    llm.collective_rpc = dead
    with pytest.raises(drive.EngineError, match="the worker is gone"):
        driver.update(5)
    with pytest.raises(errors.IoError, match="the worker is gone"):
        driver.ask()


# --- a rank ---------------------------------------------------------------------------------------


# --- an SGLang that loads files -------------------------------------------------------------------


class SglangServer:
    """Loads the tensors of a directory, and keeps all others."""

    def __init__(self, path, weights):
        self.weights = {name: array.tobytes() for name, (_, array) in weights.items()}
        self.directories, self.loaded, self.paused = {}, [], False
        self.model_path, self.label, self.started = str(path), "default", 1.5
        self.spoil = None  # a tensor that a load skips before it fails

    def call(self, url, path, body, timeout_s):
        given = json.loads(body or "{}")
        if path == "/update_weights_from_disk":
            new = self.directories[given["model_path"]]
            if self.spoil:
                self.weights[self.spoil] = bytes(len(self.weights[self.spoil]))
                raise driftless.errors.EngineError("500: the load failed")
            self.weights.update(new)
            self.loaded.append(set(new))
            self.model_path, self.label = given["model_path"], given["weight_version"]
        elif path == "/update_weight_version":
            self.label = given["new_version"]
        elif path in ("/pause_generation", "/continue_generation"):
            self.paused = path == "/pause_generation"
        return json.dumps({"success": True, "model_path": self.model_path,
                           "weight_version": self.label, "startup_time": self.started})  # fmt: skip


@pytest.fixture
def disk(work, rng, monkeypatch):
    """A run over a directory, and a server that was started from its base."""
    first = binding.weights(rng)
    tensors = {n: Tensor(d, a.shape, a.tobytes()) for n, (d, a) in first.items()}
    base = write_checkpoint(work / "base", tensors)
    config = driftless.Config.parse(f"road: {{kind: shared_fs, shared_fs: {{ dir: {work / 'road'} }}}}")
    job = driftless.Job(config, "trainer", launched=False)
    publisher = driftless.Publisher(job, binding.Source(driftless, first))
    server = SglangServer(base, first)
    calls = SimpleNamespace(sglang_call=server.call, EngineDriver=_native.EngineDriver)
    monkeypatch.setattr(sglang_disk, "_native", calls)

    def write(self, path, names):
        server.directories[str(path)] = {n: self.target.tensor(n).tobytes() for n in names}

    monkeypatch.setattr(sglang_disk.DiskFollower, "_write", write)

    def publish(weights):
        publisher.publish(binding.Source(driftless, weights))
        return {name: array.tobytes() for name, (_, array) in weights.items()}

    text = f"road: {{kind: shared_fs, shared_fs: {{ dir: {work / 'road'} }}}}\n"
    yield SimpleNamespace(
        first=first, server=server, publish=publish,
        follow=lambda: sglang_disk.DiskFollower("http://engine", text, base),
    )  # fmt: skip
    job.close()


def test_a_server_gets_every_tensor_once_and_then_what_changed(disk, rng):
    with disk.follow() as follower:
        for version in (1, 2):
            held = disk.publish(binding.step(rng, disk.first))
            assert follower.update(5).version == version
            assert disk.server.weights == held and disk.server.label == str(version)
    assert disk.server.loaded[0] == set(disk.first)
    assert "layers.2.frozen" not in disk.server.loaded[1]


@pytest.mark.parametrize("follower", ["the same", "another"])
def test_a_partly_failed_load_is_overwritten(disk, rng, follower):
    """A load fails midway, and so does its undo: parts of that version are in tensors that the next
    version does not change. The server's label and path do not show it."""
    with disk.follow() as first:
        if follower == "the same":
            disk.publish(binding.step(rng, disk.first))
            first.update(5)
        disk.server.spoil = "layers.2.frozen"
        disk.publish(binding.step(rng, disk.first))
        with pytest.raises(driftless.Error):
            first.update(5)
        disk.server.spoil = None
        with contextlib.nullcontext(first) if follower == "the same" else disk.follow() as other:
            held = disk.publish(binding.step(rng, disk.first))
            other.update(5)
            assert disk.server.weights == held


def test_a_version_of_the_same_number_that_another_loaded_is_not_taken_for_ours(disk, rng):
    with disk.follow() as follower:
        disk.publish(binding.step(rng, disk.first))
        follower.update(5)
        foreign = {name: bytes(len(held)) for name, held in disk.server.weights.items()}
        disk.server.weights, disk.server.model_path = foreign, "/of/another/run"  # label "1", too
        held = disk.publish(binding.step(rng, disk.first))
        assert follower.update(5).version == 2
        assert disk.server.weights == held


def test_a_server_that_holds_something_else_gets_every_tensor(disk, rng):
    """It outlived a run, was started from elsewhere, or another client has loaded into it since."""
    other = binding.step(rng, binding.weights(rng))
    foreign = {name: array.tobytes() for name, (_, array) in other.items()}
    disk.server.weights = dict(foreign)
    disk.server.label = "8"
    with disk.follow() as follower:
        held = disk.publish(binding.step(rng, disk.first))
        assert follower.update(5).version == 1
        assert disk.server.weights == held and disk.server.label == "1"
        disk.server.weights, disk.server.label = dict(foreign), "7"
        held = disk.publish(binding.step(rng, disk.first))
        assert follower.update(5).version == 2
        assert disk.server.weights == held and disk.server.label == "2"
    disk.server.weights, disk.server.label = dict(foreign), "default"
    disk.server.model_path, disk.server.started = "/elsewhere", 2.5
    with disk.follow() as follower:
        held = disk.publish(binding.step(rng, disk.first))
        assert follower.update(5).version == 3
        assert disk.server.weights == held and disk.server.label == "3"

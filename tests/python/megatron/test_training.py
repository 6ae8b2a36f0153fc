# SPDX-License-Identifier: Apache-2.0
"""Real megatron-core trains on the CPU, and after every step the rollouts hold its weights."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jobs
import pytest
from megatron_jobs import GATHERED, STEPS, Job, ended, shown

import tiny_config

LAYOUTS = {
    "tp2_pp2": {"tp": 2, "pp": 2},
    "tp2_dp2": {"tp": 2},
    "tp2_dp2_overlap": {"tp": 2, "overlap": True},
    "pp2_vpp2": {"pp": 2, "vpp": 2},
    "moe_ep2": {"ep": 2, "moe": True},
    "moe_ep2_pp2": {"ep": 2, "pp": 2, "moe": True},
}


# Together these have tensor, pipeline and expert parallelism.
SHORT = ("tp2_pp2", "moe_ep2_pp2")
LONG = [pytest.param(name, marks=pytest.mark.long) for name in LAYOUTS if name not in SHORT]


@pytest.mark.parametrize("layout", [*SHORT, *LONG])
def test_rollouts_hold_the_weights_after_every_step(work, layout):
    """Over two roads at once: 2 rollouts under the same mpirun, and 2 that use only files."""
    job = Job(work, **LAYOUTS[layout])
    job.over_rma(*GATHERED)
    job.over_disk(*GATHERED)
    rollouts = job.start_disk_rollouts("disk0", "disk1")
    job.run(rma_rollouts=2)
    ended(*rollouts)
    config = tiny_config.hf_config(job.job)
    for session, names in ((0, ("rma4", "rma5")), (1, ("disk0", "disk1"))):
        versions = job.versions(session)
        assert [v["version"] for v in versions] == list(range(1, STEPS + 1))
        assert all(v["changed"] > 0 for v in versions)
        # The first one may be dense: data-parallel ranks that start differently agree after a step.
        assert all(v["encoding"].startswith("deltas") for v in versions[1:])
        job.check(session, names, config)


def test_under_torchrun_the_publishers_agree_without_mpi(work):
    job = Job(work, tp=2, pp=2, steps=2)
    job.over_disk(outside_mpi=False, rollouts=("disk0",))
    rollouts = job.start_disk_rollouts("disk0")
    job.run_torchrun(trainers=4)
    ended(*rollouts)
    assert [v["version"] for v in job.versions()] == [1, 2]
    job.check(0, ["disk0"], tiny_config.hf_config(job.job))


# --- engines -------------------------------------------------------------------------------------


@pytest.fixture
def engine():
    """An engine that records its calls; `refuse` makes it answer with an error."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            there = sorted(path.name for path in Path(body.get("source_dir", "/")).glob("weight_v*"))
            self.server.calls.append((self.path, body, there))
            self.server.label = body.get("weight_version", self.server.label)
            self.answer({"success": not self.server.refuse, "message": "injected"})

        def do_GET(self):
            self.answer({"weight_version": self.server.label})

        def answer(self, output):
            answer = json.dumps(output).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.calls, server.refuse, server.label = [], False, "default"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def notified_by_megatron(work, engine, *more):
    """Two ranks over files in the interchange layout; the configuration has the `engines`, a flag
    has the checkpoint on their host."""
    job = Job(work, pp=2, steps=3)
    config = work / "engines.yaml"
    config.write_text(
        f"road: {{ kind: shared_fs, shared_fs: {{ dir: {work}/road }}, layout: hf_delta }}\nthreads: 1\n"
        f"engines:\n  - {{ url: 'http://127.0.0.1:{engine.server_port}', action: pull_weights }}\n"
        "notify: { cleanup: true }\nengine_calls: { retries: 0 }\n"
    )
    flags = ["--update-weight-config", str(config), "--update-weight-mode", "delta",
             "--update-weight-local-checkpoint-dir", "/host/model", *more]  # fmt: skip
    job.job["sessions"].append({"flags": flags, "rollouts": []})
    return job


def test_engines_are_notified_of_every_version_and_versions_are_removed(work, engine):
    job = notified_by_megatron(work, engine)
    result = job.run(trainers=2)
    pulls = [(body, there) for path, body, there in engine.calls if path == "/pull_weights"]
    assert [body["target_version"] for body, _ in pulls] == [1, 2, 3]
    # At the call the version is visible; after the acknowledgement it is removed.
    assert [there for _, there in pulls] == [[f"weight_v{n:06d}"] for n in (1, 2, 3)]
    assert all(body["local_checkpoint_dir"] == "/host/model" for body, _ in pulls)
    assert not list((work / "road").glob("weight_v*"))
    assert "ended at version 3; all engines took every version" in result.stdout


def test_an_engine_that_fails_is_in_the_closing_line_and_the_exit_code(work, engine):
    engine.refuse = True
    job = notified_by_megatron(work, engine)
    result = jobs.finish(job.start(trainers=2), 240)
    # Training continued to its end: every step was published.
    assert [v["version"] for v in job.versions()] == [1, 2, 3], shown(result)
    assert result.stderr.count("the engine refused: 'injected'") == 3
    url = f"http://127.0.0.1:{engine.server_port}"
    assert f"NOT all engines took every version: {url} failed to take 3 of 3" in result.stdout
    assert result.returncode != 0

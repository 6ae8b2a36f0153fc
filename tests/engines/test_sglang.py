# SPDX-License-Identifier: Apache-2.0
"""Real SGLang follows a run: by our receiver in its workers, by files with the changed tensors, and
by calls of the trainer that load a checkpoint."""

import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engines import Spec
from environments import HERE, environment, python_of
from follows import assert_at, assert_weights, follow_versions
from hosts import Host

VERSIONS = 10
FLOAT, TWO = Spec("sglang", "qwen3", 1, "float32"), Spec("sglang", "qwen3", 2, "float32")
SPECS = [FLOAT, Spec("sglang", "qwen3", 1, "bfloat16"), Spec("sglang", "qwen3", 2, "bfloat16"), TWO]


SMOKE = pytest.param(FLOAT, marks=pytest.mark.smoke)


@pytest.mark.parametrize("spec", [SMOKE, *SPECS[1:]], ids=str)
def test_ten_versions(started, run_of, spec):
    engine = started.get(spec)
    follow_versions(engine, run_of(spec.kind), VERSIONS)


@pytest.fixture
def again(started, run_of):
    """An engine of the tests above, back at the base and following another run."""

    def make(spec):
        engine, run = started.get(spec), run_of(spec.kind)
        engine.to_base(run.model.checkpoint(0))
        assert engine.follow(run.config) == 0
        return engine, run

    return make


@pytest.mark.parametrize("point", ("before", "during"))
@pytest.mark.parametrize("rank", (0, 1))
@pytest.mark.parametrize("spec", [TWO], ids=str)
def test_a_rank_that_fails_its_commit(again, spec, rank, point):
    engine, run = again(spec)
    run.publish()
    assert engine.update()["version"] == 1
    run.publish()
    engine.probe("fault", rank=rank, point=point)
    with pytest.raises(RuntimeError, match="version 2 was refused: .*; all ranks hold version 1 .* again"):
        engine.update()
    assert_at(engine, run.model, 1)
    assert engine.update()["version"] == 2
    assert_at(engine, run.model, 2)


@pytest.mark.parametrize("spec", [TWO], ids=str)
def test_changed_tensors_by_files(again, place, spec):
    """Without our receiver: a directory with only the changed tensors."""
    engine, run = again(spec)
    options = {"url": engine.url, "config": run.config, "base": run.model.checkpoint(0)}
    log = place / "sglang_disk.log"
    disk = Host(python_of("sglang"), HERE / "sglang_disk_host.py", options, environment(), log)
    try:
        for version in range(1, VERSIONS + 1):
            run.publish()
            assert disk.do("update")["version"] == version
            assert engine.weight_version() == str(version)
            assert_weights(engine, run.model, version)
        assert disk.do("update", timeout_s=0) is None
        assert "no /pull_weights" in disk.do("pull")
    finally:
        disk.stop()


def patch(receiver, version):
    assert receiver.stage(60.0)
    receiver.commit()
    assert receiver.version == version


def busy(engine, prompts, until):
    """Sends requests all the time; returns the number of answers."""
    answered = 0
    while not until.is_set():
        answered += len(engine.generate(prompts[:1], 8))
    return answered


@pytest.mark.parametrize("spec", [FLOAT, TWO], ids=str)
def test_it_loads_the_checkpoint_that_a_rollout_patches(started, run_of, place, spec):
    """Without our code in the engine, and with requests under way: the trainer pauses it, makes it
    load and flush, and resumes it."""
    engine = started.get(spec)
    host = Path(tempfile.mkdtemp(dir=place, prefix="host-")) / "model"
    settings = {"url": engine.url, "action": "update_weights_from_disk", "local_checkpoint_dir": host}
    run = run_of(
        spec.kind, "road.layout=hf_delta", *(f"engines[0].{key}={value}" for key, value in settings.items())
    )
    shutil.copytree(run.model.checkpoint(0), host)
    engine.to_base(run.model.checkpoint(0))
    driftless = run.driftless
    over = threading.Event()
    config = driftless.Config.parse(run.config, ["road.layout=hf_delta"])
    with driftless.Job(config, "rollout", launched=False) as job, ThreadPoolExecutor(1) as pool:
        receiver = driftless.Receiver(job, driftless.CheckpointTarget(str(host)))
        asked = pool.submit(busy, engine, run.model.prompts, over)
        try:
            for version in range(1, VERSIONS + 1):
                run.publish()
                patch(receiver, version)
                assert run.publisher.tell_engines() == []
                assert engine.weight_version() == str(version)
        finally:
            over.set()
        assert asked.result(120) > 0
        assert_weights(engine, run.model, VERSIONS)
        # It does not serve a version that it cannot load: it stays paused until the next version.
        hidden = host.with_name("hidden")
        run.publish(1)
        patch(receiver, VERSIONS + 1)
        host.rename(hidden)
        (failed,) = run.publisher.tell_engines()
        assert "the engine is left paused" in failed
        hidden.rename(host)
        run.publish(2)
        patch(receiver, VERSIONS + 2)
        assert run.publisher.tell_engines() == []
        assert engine.weight_version() == str(VERSIONS + 2)
        assert_weights(engine, run.model, 2)
        receiver.leave()

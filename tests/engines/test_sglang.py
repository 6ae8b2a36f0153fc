# SPDX-License-Identifier: Apache-2.0
"""Real SGLang follows a run: by the receiver inside, and by files with the changed tensors."""

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
    """Without our receiver inside: a directory with only what changed."""
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

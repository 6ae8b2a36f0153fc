# SPDX-License-Identifier: Apache-2.0
"""An older release of real vLLM follows a run: it has no start and finish of updates, no foreign
backends, and no label of its weights."""

import pytest
from engines import Spec
from follows import assert_at, follow_versions
from hosts import HostError

SPEC = Spec("vllm_older", "qwen3")
VERSIONS = 4


def test_four_versions(started, run_of):
    engine, run = started.get(SPEC), run_of(SPEC.kind)
    follow_versions(engine, run, VERSIONS)
    (reply,) = engine.replies()
    assert not reply["session"] and list(reply["ways"]) == ["plan"], "in place, by the extension"


@pytest.mark.parametrize("point", ("before", "during"))
def test_a_failed_commit_leaves_the_old_version(started, run_of, point):
    engine, run = started.get(SPEC), run_of(SPEC.kind)
    engine.to_base(run.model.checkpoint(0))
    assert engine.follow(run.config) == 0
    run.publish()
    assert engine.update()["version"] == 1
    run.publish()
    engine.rpc("probe_fault", rank=0, point=point)
    with pytest.raises(HostError, match="version 2 was refused: .*; all ranks hold version 1 .* again"):
        engine.update()
    assert_at(engine, run.model, 1)
    assert engine.update()["version"] == 2, "the same version, without the fault"
    assert_at(engine, run.model, 2)

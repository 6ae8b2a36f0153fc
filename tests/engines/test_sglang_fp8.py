# SPDX-License-Identifier: Apache-2.0
"""Real SGLang in FP8 blocks, with linears as on a Hopper GPU, follows a trainer in bfloat16 in
place. SGLang's own functions show which rule its requantization leaves unchanged."""

import json
import subprocess

import pytest
from engines import Spec
from environments import HERE, environment, python_of
from follows import assert_at, follow_versions
from test_live_digest import flip, mended, verify

VERSIONS = 10
SPEC = Spec("sglang", "qwen3_blocks.linear", 2, fp8="plain")


def test_ten_versions_in_place(started, run_of):
    engine, run = started.get(SPEC), run_of(SPEC.kind, "anchors.every=1")
    follow_versions(engine, run, VERSIONS)
    for reply in engine.replies():
        assert set(reply["ways"]) <= {"direct", "plan"}, reply
    code, output = verify(engine)
    assert code == 0 and output["verdict"] == "proven", output


@pytest.mark.parametrize("parameter", ["weight", "weight_scale_inv"])
def test_a_flipped_bit_of_codes_or_scales(started, run_of, parameter):
    engine, run = started.get(SPEC), run_of(SPEC.kind, "anchors.every=1")
    engine.to_base(run.model.checkpoint(0))
    engine.follow(run.config)
    run.publish()
    engine.update()
    assert_at(engine, run.model, 1)
    name = f"model.layers.1.self_attn.qkv_proj.{parameter}"
    flip(engine, 1, name, 1)
    code, output = verify(engine)
    assert code == 1 and output["verdict"] == "differs" and name in output["why"], output
    mended(engine, run)


@pytest.mark.parametrize("rule", ["ue8m0", "linear"])
def test_its_requantization(models, rule):
    """Nothing changes with the closed rule; most codes change with the rule linear."""
    model = models[f"qwen3_blocks.{rule}"]
    line = [python_of("sglang"), HERE / "sglang_rules.py", model.checkpoint(1)]
    done = subprocess.run(line, capture_output=True, text=True, env=environment(), timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 14, sorted(found)
    changed = [sum(column) for column in zip(*found.values(), strict=True)]
    if rule == "ue8m0":
        assert changed == [0, 0, 0]
    else:
        assert changed[0] > 100_000 and changed[1] > 10, changed

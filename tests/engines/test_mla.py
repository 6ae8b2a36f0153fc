# SPDX-License-Identifier: Apache-2.0
"""A DeepSeek-shaped model: tensors that real vLLM and SGLang compute from kv_b_proj after loading
are computed again. Their loaders also combine several tensors, and copy in a thread pool."""

import pytest
from engines import Spec
from follows import assert_weights

SPECS = [Spec("vllm", "deepseek", 1), Spec("vllm", "deepseek", 2), Spec("sglang", "deepseek")]
# SGLang's are attributes, which worker_probe.py sums up; vLLM's are parameters.
DERIVED = ("w_kc", "w_vc", "W_UV", "W_UK_T")
VERSIONS = 3


def derived(engine):
    return [
        {name: text for name, text in rank.items() if name.rpartition(".")[2] in DERIVED}
        for rank in engine.checksums()
    ]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_derived_tensors_follow_the_weights(started, run_of, spec):
    engine, run = started.get(spec), run_of("deepseek")
    engine.to_base(run.model.checkpoint(0))
    assert engine.follow(run.config) == 0
    before = derived(engine)
    assert all(len(rank) >= 4 for rank in before), before
    for version in range(1, VERSIONS + 1):
        run.publish()
        done = engine.update()
        assert done["version"] == version
        assert all("refused" not in reply["ways"] for reply in done["replies"]), done["replies"]
        # Their attention for this model does not run on every CPU (engines.py).
        assert_weights(engine, run.model, version, tokens=False)
        after = derived(engine)
        assert all(new != old for new, old in zip(after, before, strict=True)), version
        before = after

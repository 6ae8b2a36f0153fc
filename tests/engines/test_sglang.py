"""Real SGLang follows a run: by the receiver inside, and by files with the changed tensors."""

import pytest
from engines import Spec
from follows import assert_weights, follow_versions

VERSIONS = 10
ONE = Spec("sglang", "qwen3", 1, "float32")
TWO = Spec("sglang", "qwen3", 2, "bfloat16")
SPECS = [ONE, Spec("sglang", "qwen3", 1, "bfloat16"), Spec("sglang", "qwen3", 2, "float32"), TWO]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_ten_versions(started, run_of, spec):
    engine = started.get(spec)
    follow_versions(engine, run_of(spec.kind), VERSIONS)

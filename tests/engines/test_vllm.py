"""Real vLLM follows a run: offline and served, one rank and two."""

import pytest
from engines import Spec
from follows import follow_versions

VERSIONS = 10
# The last one is the engine of test_vllm_faults.py, too.
OFFLINE = [Spec("vllm", kind, tp) for tp in (1, 2) for kind in ("qwen3_tied", "qwen3_moe", "qwen3")]
SERVED = [Spec("vllm_server", "qwen3_moe", 1), Spec("vllm_server", "qwen3", 2)]


@pytest.mark.parametrize("spec", SERVED + OFFLINE, ids=str)
def test_ten_versions(started, run_of, spec):
    engine = started.get(spec)
    follow_versions(engine, run_of(spec.kind), VERSIONS)

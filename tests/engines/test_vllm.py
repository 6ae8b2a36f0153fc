# SPDX-License-Identifier: Apache-2.0
"""Real vLLM follows a run: offline and as a server, with one rank and two."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from engines import Spec
from follows import assert_at, follow_versions
from hosts import HostError

VERSIONS = 10
# test_vllm_faults.py uses the last engine, too.
OFFLINE = [Spec("vllm", kind, tp) for tp in (1, 2) for kind in ("qwen3_tied", "qwen3_moe", "qwen3")]
SERVED = [
    Spec("vllm_server", "qwen3_tied", 1),
    Spec("vllm_server", "qwen3_moe", 1),
    Spec("vllm_server", "qwen3", 2),
]


SMOKE = pytest.param(SERVED[0], marks=pytest.mark.smoke)


@pytest.mark.parametrize("spec", [SMOKE, *SERVED[1:], *OFFLINE], ids=str)
def test_ten_versions(started, run_of, spec):
    engine = started.get(spec)
    follow_versions(engine, run_of(spec.kind), VERSIONS)


@pytest.mark.parametrize("spec", SERVED, ids=str)
def test_requests_in_flight_go_on(started, run_of, spec):
    """Requests are paused, not ended, and report which version made which token. Later requests use
    the new weights only, whatever the prefix cache held."""
    engine, run = started.get(spec), run_of(spec.kind)
    engine.to_base(run.model.checkpoint(0))
    engine.follow(run.config)
    prompt, wanted = run.model.prompts[0], run.model.tokens
    with ThreadPoolExecutor() as pool:
        for version in (1, 2):
            long = [pool.submit(engine.ask, prompt, 110) for _ in range(2)]
            run.publish()
            engine.update()
            answers = [future.result(120) for future in long]
            assert all(len(answer["token_ids"]) == 110 for answer in answers)
            assert all(answer["weight_versions"] for answer in answers)
            assert engine.generate([prompt], len(wanted[0][0])) == [wanted[version][0]]
    assert_at(engine, run.model, 2)


STOCK = Spec("vllm", "qwen3", 1, load_layout=False)


@pytest.mark.parametrize("spec", [STOCK], ids=str)
def test_packed_weights_are_not_written_in_place(started, run_of, spec):
    """vLLM's stock CPU layout: packed linears, emptied parameters, a packed copy of lm_head. The
    engine follows by vLLM's own reload."""
    engine, run = started.get(spec), run_of(spec.kind)
    empty = [name for name, sum_ in engine.checksums()[0].items() if sum_.startswith("0 ")]
    assert empty, "this engine packs its weights"
    assert engine.follow(run.config) == 0
    (reply,) = engine.replies()
    assert list(reply["ways"]) == ["whole"]
    for version in range(1, 4):
        run.publish()
        assert engine.update()["version"] == version
        assert_at(engine, run.model, version)
    run.publish()
    engine.rpc("probe_fault", rank=0, point="reload")
    with pytest.raises(HostError, match="injected.*; all ranks hold version 3 .* again"):
        engine.update()
    assert_at(engine, run.model, 3)
    assert engine.update()["version"] == 4
    assert_at(engine, run.model, 4)

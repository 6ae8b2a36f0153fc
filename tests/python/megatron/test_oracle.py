# SPDX-License-Identifier: Apache-2.0
"""Our export is the model: `transformers` computes the same logits from it."""

import json
import subprocess

import pytest
from megatron_jobs import HERE, PACKAGE, environment, venv_python

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_tied", "qwen3_moe", "glm4_moe", "deepseek_v3")
LAYOUTS = (
    [],
    ["--tp", "2", "--pp", "2"],
    ["--tp", "4", "--vpp", "2", "--pp", "2", "--spec", "local"],
    ["--tp", "2", "--ep", "4", "--etp", "1", "--pp", "4"],
)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """Logits of all families, computed once."""
    work = tmp_path_factory.mktemp("oracle")
    line = [venv_python(), HERE / "oracle.py", work]
    result = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-6000:]
    (found,) = [line for line in result.stdout.splitlines() if line.startswith("ORACLE ")]
    return json.loads(found.removeprefix("ORACLE "))


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_gives_the_same_logits_and_one_wrong_row_shows(oracle, family):
    found = oracle[family]
    assert found["problems"] == {}
    assert found["differs_in_config"] == []
    assert found["close"], found["farthest"]
    assert not found["control_close"]


@pytest.mark.parametrize("layout", LAYOUTS, ids=" ".join)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_map_has_the_names_and_shapes_that_transformers_saves(oracle, work, family, layout):
    path = work / "config.json"
    path.write_text(json.dumps(oracle[family]["config"]))
    line = [venv_python(), "-m", "driftless", "map", path, "--json", *layout]
    result = subprocess.run(
        line, env=environment(PYTHONPATH=str(PACKAGE)), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    tensors = {}
    for stage in json.loads(result.stdout)["stages"]:
        for item in stage["items"]:
            for tensor in item["hf"]:
                assert tensor["name"] not in tensors
                tensors[tensor["name"]] = tensor["shape"]
    assert tensors == oracle[family]["saved"]

# SPDX-License-Identifier: Apache-2.0
"""An unchanged Megatron-LM script under `python -m driftless.megatron`, if there is a checkout of
Megatron-LM.

    DRIFTLESS_MEGATRON_LM=/path/to/Megatron-LM
"""

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import jobs
import pytest
from megatron_jobs import HERE, Job, ended, environment, mpirun

import tiny_config

CHECKOUT = os.environ.get("DRIFTLESS_MEGATRON_LM", "")
pytestmark = pytest.mark.skipif(
    not Path(CHECKOUT, "pretrain_gpt.py").is_file(),
    reason="DRIFTLESS_MEGATRON_LM names no checkout of NVIDIA/Megatron-LM",
)
STEPS = 3
CONFIG = tiny_config.HF | {
    "vocab_size": 128,  # with the end of a document
    "num_hidden_layers": 2,
    "head_dim": 16,
    "tie_word_embeddings": False,
    "model_type": "qwen3",
}
ARGUMENTS = """
 --num-layers 2 --hidden-size 64 --num-attention-heads 4 --group-query-attention
 --num-query-groups 2
 --ffn-hidden-size 96 --seq-length 16 --max-position-embeddings 16 --micro-batch-size 2
 --global-batch-size 8 --lr 3e-6 --min-lr 1e-6 --lr-decay-style constant --clip-grad 1.0 --bf16
 --swiglu --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights
 --position-embedding-type rope --qk-layernorm --attention-dropout 0 --hidden-dropout 0
 --transformer-impl local --use-cpu-initialization --distributed-backend gloo
 --no-gradient-accumulation-fusion --no-masked-softmax-fusion --no-bias-dropout-fusion
 --no-bias-swiglu-fusion --no-rope-fusion --no-persist-layer-norm --tokenizer-type NullTokenizer
 --make-vocab-size-divisible-by 160 --mock-data --split 99,1,0 --eval-iters 0
 --eval-interval 1000 --log-interval 1 --num-workers 0 --use-distributed-optimizer
"""
EXPERTS = """
 --num-experts 4 --expert-model-parallel-size 2 --moe-router-load-balancing-type none
 --moe-router-topk 2
 --moe-ffn-hidden-size 32 --moe-token-dispatcher-type alltoall
"""
LAYOUTS = {
    "tp2_pp2": (4, "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2", {}),
    "ep2": (2, EXPERTS, {"model_type": "qwen3_moe", "num_experts": 4}),
}


def _vocab_flag(checkout):
    """--vocab-size for 128 tokens: in some releases of Megatron-LM NullTokenizer adds an
    end-of-document token, in newer ones it counts that token within the given size."""
    path = Path(checkout, "megatron/core/tokenizers/text/libraries/null_tokenizer.py")
    if not path.is_file():  # releases without this file always add one
        return CONFIG["vocab_size"] - 1
    spec = importlib.util.spec_from_file_location("null_tokenizer", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    added = module.NullTokenizer(CONFIG["vocab_size"]).vocab_size - CONFIG["vocab_size"]
    return CONFIG["vocab_size"] - added


@pytest.fixture(scope="module")
def index_builder():
    """Megatron compiles a helper at its first start, with the first python3-config on the PATH.
    Compiling it in advance avoids races between ranks, and a helper for another Python."""
    path = Path(CHECKOUT, "megatron/core/datasets")
    line = ["make", "-s", "LIBEXT=" + _suffix(), "-C", str(path)]
    result = subprocess.run(line, env=_environment(), capture_output=True, text=True)
    if result.returncode != 0:
        pytest.skip(f"Megatron's dataset helper does not compile: {result.stderr.strip()[-300:]}")


def _environment(**more):
    from megatron_jobs import venv_python

    path = f"{Path(venv_python()).parent}:/usr/bin:{os.environ['PATH']}"
    return environment(PATH=path, NO_VCS_VERSION="1", **more)


def _suffix():
    from megatron_jobs import venv_python

    code = "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"
    return subprocess.check_output([venv_python(), "-c", code], text=True).strip()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_unchanged_script_gains_weight_updates_by_flags(work, layout, index_builder):
    ranks, parallel, more = LAYOUTS[layout]
    job = Job(work)
    job.over_disk()
    (flags,) = [session["flags"] for session in job.job["sessions"]]
    rollouts = job.start_disk_rollouts("disk0")
    line = mpirun(
        (
            ranks,
            job.python,
            HERE / "pretrain.py",
            f"{CHECKOUT}/pretrain_gpt.py",
            *ARGUMENTS.split(),
            *parallel.split(),
            "--vocab-size",
            _vocab_flag(CHECKOUT),
            "--train-iters",
            STEPS,
            *flags,
        )
    )
    training = jobs.start(line, env=_environment(SHARDS=str(work / "shards")))
    result = jobs.finish(training, 300)
    assert result.returncode == 0, result.stderr[-6000:] + result.stdout[-3000:]
    ended(*rollouts)
    assert result.stdout.count(" driftless trainer.0: version ") == STEPS
    config = CONFIG | more
    version = max(int(p.name[-6:]) for p in (work / "acks").glob("disk0_*"))
    assert version == STEPS
    for ack in (work / "acks").glob("disk0_*"):
        number = int(ack.name[-6:])
        if number > 0:
            wanted = job.expected(f"step{number}", config)
            from megatron_jobs import assert_same

            assert_same(job.rollout("disk0", number)["tensors"], wanted, f"version {number}")
    told = json.loads((job.road / "base/config.json").read_text())
    assert told["model_type"] == config["model_type"] and told["vocab_size"] == 128

# SPDX-License-Identifier: Apache-2.0
"""ModuleTarget against vLLM's own load_checkpoint_weight_patches, on a real vLLM model on the CPU.

  PYTHONPATH=build/python VENV/bin/python tests/bench/module_target_bench.py

VENV has vLLM for the CPU. Both write the same versions into the same model: first vLLM, whose result is
the reference for ours, bit for bit; then the inverse; then ours. Times are of the engine's pause: ours
is commit(); vLLM's is the whole call, because it has no other phase.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the model is in this process
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from safetensors.torch import save_file

import driftless
from driftless.engines import ModuleTarget
from made_steps import Source, step


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=16384)
    parser.add_argument("--percent", type=float, default=1.0)
    parser.add_argument("--versions", type=int, default=5)
    parser.add_argument("--work", default="/dev/shm")
    return parser.parse_args()


def shapes(a):
    head, heads, kv, ffn = 128, a.hidden // 64, a.hidden // 128, 3 * a.hidden
    yield "model.embed_tokens.weight", (a.vocab, a.hidden)
    yield "model.norm.weight", (a.hidden,)
    yield "lm_head.weight", (a.vocab, a.hidden)
    for i in range(a.layers):
        at = f"model.layers.{i}."
        yield at + "self_attn.q_proj.weight", (heads * head, a.hidden)
        yield at + "self_attn.k_proj.weight", (kv * head, a.hidden)
        yield at + "self_attn.v_proj.weight", (kv * head, a.hidden)
        yield at + "self_attn.o_proj.weight", (a.hidden, heads * head)
        yield at + "self_attn.q_norm.weight", (head,)
        yield at + "self_attn.k_norm.weight", (head,)
        yield at + "mlp.gate_proj.weight", (ffn, a.hidden)
        yield at + "mlp.up_proj.weight", (ffn, a.hidden)
        yield at + "mlp.down_proj.weight", (a.hidden, ffn)
        yield at + "input_layernorm.weight", (a.hidden,)
        yield at + "post_attention_layernorm.weight", (a.hidden,)


def write_checkpoint(a, path, weights):
    path.mkdir()
    save_file(weights, path / "model.safetensors")
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": a.hidden,
        "intermediate_size": 3 * a.hidden,
        "num_hidden_layers": a.layers,
        "num_attention_heads": a.hidden // 64,
        "num_key_value_heads": a.hidden // 128,
        "head_dim": 128,
        "vocab_size": a.vocab,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "attention_bias": False,
        "torch_dtype": "float16",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (path / "config.json").write_text(json.dumps(config))


def open_model(path):
    """The model of a real vLLM engine that keeps the layout in which it loads."""
    import vllm._custom_ops

    vllm._custom_ops._supports_onednn = False  # otherwise linears are packed, and their weights emptied
    from vllm import LLM

    engine = LLM(
        model=str(path),
        skip_tokenizer_init=True,
        dtype="float16",
        enforce_eager=True,
        max_model_len=256,
    )
    found = []
    engine.apply_model(found.append)
    return engine, found[0]


def compare(a, model, weights, target, receiver, publisher, generator):
    from vllm.model_executor.model_loader.checkpoint_weight_patch import (
        CheckpointWeightPatch,
        load_checkpoint_weight_patches,
    )

    rows = []
    for _ in range(a.versions):
        changes = step(weights, a.percent, generator)
        publisher.publish(Source(weights))
        new = [CheckpointWeightPatch(n, s, v.dtype, v, at) for n, s, at, v, _ in changes]
        old = [CheckpointWeightPatch(n, s, v.dtype, v, at) for n, s, at, _, v in changes]
        begin = time.perf_counter()
        load_checkpoint_weight_patches(model, new)
        theirs = (time.perf_counter() - begin) * 1e3
        expected = {n: p.detach().clone() for n, p in model.named_parameters()}
        load_checkpoint_weight_patches(model, old)
        target.vouch()
        begin = time.perf_counter()
        assert receiver.stage(60)
        stage = (time.perf_counter() - begin) * 1e3
        begin = time.perf_counter()
        receiver.commit()
        ours = (time.perf_counter() - begin) * 1e3
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, expected[name]), name
        rows.append((theirs, ours, stage))
        line = f"  vLLM {theirs:8.1f} ms   pause {ours:8.2f} ms   staged in {stage:.1f} ms"
        print(line, flush=True)
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def main():
    a = arguments()
    work = Path(tempfile.mkdtemp(prefix="driftless-bench-", dir=a.work))
    generator = torch.Generator().manual_seed(1)
    try:
        weights = {n: torch.randn(s, generator=generator).half() * 0.02 for n, s in shapes(a)}
        write_checkpoint(a, work / "base0", weights)
        engine, model = open_model(work / "base0")
        config = driftless.Config.parse(f"road:\n  kind: shared_fs\n  shared_fs:\n    dir: {work}/road\n")
        trainer = driftless.Job(config, "trainer", launched=False)
        rollout = driftless.Job(config, "rollout", launched=False)
        publisher = driftless.Publisher(trainer, Source(weights))
        results = {}
        for phase, allow in (("plan", ("direct", "plan")), ("masked", ("masked",))):
            base = work / f"base{publisher.version}"
            if not base.exists():
                write_checkpoint(a, base, weights)
            target = ModuleTarget(model, base, version=publisher.version, allow=allow)
            print(f"{phase}: {target.describe().splitlines()[0]}; digest proven: {target.proven}")
            receiver = driftless.Receiver(rollout, target, id=phase)
            theirs, ours, stage = compare(
                a, model, weights, target, receiver, publisher, generator
            )
            results[phase] = {
                "vllm_ms": round(theirs, 1),
                "pause_ms": round(ours, 2),
                "stage_ms": round(stage, 1),
                "times_faster": round(theirs / ours, 1),
            }
            receiver.close()
        elements = sum(p.numel() for p in model.parameters())
        print(json.dumps({"elements": elements, "percent": a.percent, **results}))
        rollout.leave()
        trainer.leave()
        del engine
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()

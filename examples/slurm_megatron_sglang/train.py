# SPDX-License-Identifier: Apache-2.0
"""megatron-core trains a Qwen3, and publishes a version after every optimizer step.

    srun ... train.py --tp 2 --pp 2 --steps 100 --update-weight-...      docs/start/megatron.md

The sizes of the model come from the config.json of --update-weight-hf-checkpoint. Your own
training script needs only the lines with driftless in them, or no change
(`python -m driftless.megatron SCRIPT`).
"""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed import finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.module import Float16Module

import driftless.megatron

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTH, BATCH = 32, 2


def settings(hf, args):
    return TransformerConfig(
        num_layers=hf["num_hidden_layers"], hidden_size=hf["hidden_size"],
        num_attention_heads=hf["num_attention_heads"], num_query_groups=hf["num_key_value_heads"],
        kv_channels=hf["head_dim"], ffn_hidden_size=hf["intermediate_size"],
        layernorm_epsilon=hf["rms_norm_eps"], normalization="RMSNorm", qk_layernorm=True,
        gated_linear_unit=True, activation_func=torch.nn.functional.silu, add_bias_linear=False,
        attention_dropout=0.0, hidden_dropout=0.0, bf16=True, params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16, tensor_model_parallel_size=args.tp,
        pipeline_model_parallel_size=args.pp, use_cpu_initialization=DEVICE == "cpu",
        gradient_accumulation_fusion=False, bias_dropout_fusion=False, masked_softmax_fusion=False,
        persist_layer_norm=False,
    )  # fmt: skip


def build(hf, args):
    config = settings(hf, args)
    model = GPTModel(
        config, get_gpt_layer_local_spec(qk_layernorm=True, normalization="RMSNorm"),
        vocab_size=hf["vocab_size"], max_sequence_length=hf["max_position_embeddings"],
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(), position_embedding_type="rope",
        rotary_base=hf["rope_parameters"]["rope_theta"],
        share_embeddings_and_output_weights=hf["tie_word_embeddings"],
    )  # fmt: skip
    model = Float16Module(config, model.to(DEVICE))
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
    model = DistributedDataParallel(config, ddp, model)
    how = OptimizerConfig(lr=1e-5, bf16=True, params_dtype=torch.bfloat16, clip_grad=1.0,
                          use_distributed_optimizer=True)  # fmt: skip
    optimizer = get_megatron_optimizer(how, [model], use_gloo_process_groups=DEVICE == "cpu")
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    return model, optimizer


def forward(vocabulary, model):
    """Replace this by your batch and loss: completions, rewards. It trains on noise."""
    tokens = torch.randint(vocabulary, (BATCH, LENGTH), device=DEVICE)
    places = torch.arange(LENGTH, device=DEVICE).expand(BATCH, -1)
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=DEVICE).triu(1)[None, None]
    losses = model(tokens, places, mask, labels=tokens)
    return losses, lambda values: (values.float().mean(), {})


def main():
    parser = driftless.megatron.add_arguments(argparse.ArgumentParser())
    for name, default in (("--tp", 2), ("--pp", 2), ("--steps", 100)):
        parser.add_argument(name, type=int, default=default)
    args = parser.parse_args()
    hf = json.loads(Path(args.update_weight_hf_checkpoint, "config.json").read_text())

    driftless.megatron.torch_environment()  # sets RANK, WORLD_SIZE and so on from srun
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    parallel_state.initialize_model_parallel(
        args.tp, args.pp, create_gloo_process_groups=DEVICE == "cpu"
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    torch.manual_seed(1)
    model, optimizer = build(hf, args)  # load your Megatron checkpoint after this line
    driftless.megatron.attach([model], optimizer, args)

    step = get_forward_backward_func()
    for _ in range(args.steps):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        step(forward_step_func=forward, data_iterator=hf["vocab_size"], model=model,
             num_microbatches=2, seq_length=LENGTH, micro_batch_size=BATCH,
             forward_only=False)  # fmt: skip
        optimizer.step()
    dist.barrier()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Small models in real megatron-core, and their config.json, for the tests' training jobs."""

import os

import torch
import torch.distributed as dist
from megatron.core import parallel_state as ps
from megatron.core import tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed import finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_decoder_block_spec,
    get_gpt_layer_local_spec,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import MLATransformerConfig, TransformerConfig
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.module import Float16Module

from tiny_config import ROPE_THETA, VOCAB, hf_config

SEQUENCE, BATCH = 16, 2
RATE, DENSE_RATE = 3e-6, 3e-3  # a few percent of bf16 weights change with a step; most of them
GPU = os.environ.get("DRIFTLESS_TEST_GPU") == "1"
DEVICE = "cuda" if GPU else "cpu"


def transformer_config(job, dtype):
    hf = hf_config(job)
    common = {
        "num_layers": hf["num_hidden_layers"],
        "hidden_size": hf["hidden_size"],
        "num_attention_heads": hf["num_attention_heads"],
        "ffn_hidden_size": hf["intermediate_size"],
        "layernorm_epsilon": hf["rms_norm_eps"],
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "add_bias_linear": False,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "tensor_model_parallel_size": job["tp"],
        "pipeline_model_parallel_size": job["pp"],
        "virtual_pipeline_model_parallel_size": job["vpp"] if job.get("vpp", 1) > 1 else None,
        "expert_model_parallel_size": job["ep"],
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "fp16": dtype == torch.float16,
        "use_cpu_initialization": not GPU,
        "gradient_accumulation_fusion": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "persist_layer_norm": False,
        "sequence_parallel": job["tp"] > 1 and _experts(hf) > 0,
    }
    if hf["model_type"] == "deepseek_v3":
        return MLATransformerConfig(**common, **_experts_config(hf), **_latent_config(hf))
    return TransformerConfig(
        **common,
        **_experts_config(hf),
        num_query_groups=hf["num_key_value_heads"],
        kv_channels=hf["head_dim"],
        qk_layernorm=hf["model_type"] in ("qwen3", "qwen3_moe", "glm4_moe"),
        add_qkv_bias=hf["model_type"] in ("qwen2", "glm4_moe"),
    )


def _latent_config(hf):
    return {
        "q_lora_rank": hf["q_lora_rank"],
        "kv_lora_rank": hf["kv_lora_rank"],
        "qk_head_dim": hf["qk_nope_head_dim"],
        "qk_pos_emb_head_dim": hf["qk_rope_head_dim"],
        "v_head_dim": hf["v_head_dim"],
        "qk_layernorm": True,
        "rope_type": "rope",
        "rotary_base": ROPE_THETA,
        "rotary_scaling_factor": 1.0,
        "apply_rope_fusion": False,
    }


def _experts(hf):
    return hf.get("num_experts") or hf.get("n_routed_experts") or 0


def _experts_config(hf):
    if not _experts(hf):
        return {}
    dense = hf["first_k_dense_replace"] if "n_routed_experts" in hf else len(hf["mlp_only_layers"])
    found = {
        "num_moe_experts": _experts(hf),
        "moe_ffn_hidden_size": hf["moe_intermediate_size"],
        "moe_router_topk": hf["num_experts_per_tok"],
        "moe_router_load_balancing_type": "none",
        "moe_router_score_function": "softmax",
        "moe_layer_freq": [int(n >= dense) for n in range(hf["num_hidden_layers"])],
        "moe_token_dispatcher_type": "alltoall",
    }
    if "n_routed_experts" in hf:
        found |= {
            "moe_router_score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "moe_router_topk_scaling_factor": hf["routed_scaling_factor"],
            "moe_shared_expert_intermediate_size": hf["n_shared_experts"]
            * hf["moe_intermediate_size"],
        }
    return found


class LatentAttention(DotProductAttention):
    """megatron-core has no attention with values narrower than keys, except by
    TransformerEngine."""

    def __init__(self, *args, k_channels=None, v_channels=0, **kwargs):
        super().__init__(*args, **kwargs)
        self.hidden_size_per_partition = self.num_attention_heads_per_partition * v_channels


def make_chunk(job, config, vp_stage=None):
    hf = hf_config(job)
    if _experts(hf):
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False,
                                          normalization="RMSNorm", vp_stage=vp_stage)  # fmt: skip
        for layer in spec.layer_specs if hf["model_type"] == "deepseek_v3" else ():
            layer.submodules.self_attention.submodules.core_attention = LatentAttention
    else:
        spec = get_gpt_layer_local_spec(qk_layernorm=config.qk_layernorm, normalization="RMSNorm")
    where = {} if vp_stage is None else {"vp_stage": vp_stage, "ignore_virtual": False}
    model = GPTModel(
        config=config,
        transformer_layer_spec=spec,
        # padded: the rows past it belong to no tensor
        vocab_size=-(-hf["vocab_size"] // 256) * 256,
        max_sequence_length=hf["max_position_embeddings"],
        pre_process=ps.is_pipeline_first_stage(**where),
        post_process=ps.is_pipeline_last_stage(**where),
        position_embedding_type="rope",
        rotary_base=ROPE_THETA,
        rotary_percent=hf.get("partial_rotary_factor", 1.0),
        share_embeddings_and_output_weights=hf["tie_word_embeddings"],
        parallel_output=True,
        vp_stage=vp_stage,
    )
    for parameter in model.parameters():
        tensor_parallel.set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)
    return model


class Trainer:
    """Model, optimizer and one step of training, on this rank."""

    def __init__(self, job):
        self.job = job
        vpp, dtype = job.get("vpp", 1), getattr(torch, job.get("dtype", "bfloat16"))
        ps.initialize_model_parallel(
            job["tp"],
            job["pp"],
            virtual_pipeline_model_parallel_size=vpp if vpp > 1 else None,
            expert_model_parallel_size=job["ep"],
            expert_tensor_parallel_size=1 if _experts(hf_config(job)) else None,
            create_gloo_process_groups=not GPU,
        )
        tensor_parallel.model_parallel_cuda_manual_seed(123)
        torch.manual_seed(7)
        self.config = transformer_config(job, dtype)
        chunks = [make_chunk(job, self.config, v if vpp > 1 else None) for v in range(vpp)]
        chunks = [chunk.cuda() for chunk in chunks] if GPU else chunks
        if dtype != torch.float32:
            chunks = [Float16Module(self.config, chunk) for chunk in chunks]
        overlap = job.get("overlap", False)
        ddp = DistributedDataParallelConfig(
            use_distributed_optimizer=job.get("distributed", True),
            overlap_grad_reduce=overlap,
            overlap_param_gather=overlap,
            grad_reduce_in_fp32=True,
            bucket_size=20000 if overlap else None,
        )
        self.model = [
            DistributedDataParallel(self.config, ddp, chunk, disable_bucketing=number > 0)
            for number, chunk in enumerate(chunks)
        ]
        optimizer_config = self.optimizer_config(dtype, overlap)
        self.optimizer = get_megatron_optimizer(
            optimizer_config, self.model, use_gloo_process_groups=not GPU
        )
        self.config.finalize_model_grads_func = finalize_model_grads
        self.config.grad_scale_func = self.optimizer.scale_loss
        if overlap:
            several = len(self.model) > 1
            sync = [chunk.no_sync for chunk in self.model]
            start = [chunk.start_param_sync for chunk in self.model]
            self.config.no_sync_func = sync if several else sync[0]
            self.config.param_sync_func = start if several else start[0]
        self.forward_backward = get_forward_backward_func()
        self.steps = 0

    def optimizer_config(self, dtype, overlap):
        return OptimizerConfig(
            optimizer="adam",
            lr=self.job.get("lr", RATE),
            bf16=dtype == torch.bfloat16,
            fp16=dtype == torch.float16,
            params_dtype=dtype,
            initial_loss_scale=256.0,
            use_distributed_optimizer=self.job.get("distributed", True),
            overlap_param_gather=overlap,
            clip_grad=1.0,
        )

    def set_rate(self, dense):
        """`dense`: a rate at which a step changes most weights."""
        rate = DENSE_RATE if dense else self.job.get("lr", RATE)
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def step(self, poison=False):
        """One optimizer step over two microbatches; `poison` makes its gradients infinite."""
        for chunk in self.model:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        dp = ps.get_data_parallel_rank()
        sequence, batch = self.job.get("sequence", SEQUENCE), self.job.get("batch", BATCH)
        generator = torch.Generator().manual_seed(1000 * dp + self.steps)

        def forward(_, model):
            tokens = torch.randint(0, VOCAB, (batch, sequence), generator=generator).to(DEVICE)
            positions = torch.arange(sequence, device=DEVICE).expand(batch, -1)
            ones = torch.ones(sequence, sequence, dtype=torch.bool, device=DEVICE)
            mask = torch.triu(ones, 1)[None, None]
            output = model(tokens, positions, mask, labels=tokens)

            def loss(values):
                mean = values.float().mean() * (float("inf") if poison else 1.0)
                return mean, {"loss": mean.detach()}

            return output, loss

        several = len(self.model) > 1
        self.forward_backward(
            forward_step_func=forward,
            data_iterator=[None] * len(self.model) if several else None,
            model=self.model if several else self.model[0],
            num_microbatches=4 if several else 2,
            seq_length=sequence,
            micro_batch_size=batch,
            forward_only=False,
        )
        self.steps += 1
        return self.optimizer.step()

    def sync_parameters(self):
        """With overlapped gathers: completes this step's weights on every rank."""
        for chunk in self.model:
            if chunk.ddp_config.overlap_param_gather:
                chunk.start_param_sync(force_sync=True)


def place():
    """This rank's place, for the reference export."""
    return {
        "tp": ps.get_tensor_model_parallel_rank(),
        "pp": ps.get_pipeline_model_parallel_rank(),
        "dp": ps.get_data_parallel_rank(),
        "ep": ps.get_expert_model_parallel_rank(),
        "edp": ps.get_expert_data_parallel_rank(),
        "rank": dist.get_rank(),
    }

# SPDX-License-Identifier: Apache-2.0
"""A vLLM plugin for the tests: FP8 blocks on a CPU in plain torch, which needs no AMX. It keeps
weights as vLLM's kernels for GPUs do, by vLLM's own functions. DRIFTLESS_TEST_FP8 chooses the
layout:

    plain     linears and experts as loaded (CUTLASS, Triton)
    e8m0      linears requantized to powers of two (DeepGEMM)
    w31       experts with gate and up swapped (FlashInfer CUTLASS)
"""

import os

import torch

BLOCK = 128


def dequantized(codes, scales):
    whole = scales.repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)
    return codes.float() * whole[..., : codes.shape[-2], : codes.shape[-1]]


def register():
    """vLLM calls it in every process before it loads the model, possibly twice."""
    mode = os.environ.get("DRIFTLESS_TEST_FP8")
    if not mode:
        return
    from vllm.model_executor.kernels import linear
    from vllm.model_executor.layers.quantization.fp8 import Fp8Config
    from vllm.platforms import PlatformEnum

    dtypes = [torch.float32, torch.bfloat16, torch.half]
    Fp8Config.get_supported_act_dtypes = classmethod(lambda _: dtypes)
    linear._POSSIBLE_FP8_BLOCK_KERNELS[PlatformEnum.CPU] = [linear_kernel(mode == "e8m0")]
    register_experts(mode)


def linear_kernel(requantizes):
    from vllm.model_executor.kernels.linear.scaled_mm.BlockScaledMMLinearKernel import (
        Fp8BlockScaledMMLinearKernel,
    )
    from vllm.model_executor.layers.quantization.utils.fp8_utils import (
        requant_weight_ue8m0_inplace,
    )

    class PlainKernel(Fp8BlockScaledMMLinearKernel):
        apply_input_quant = False
        use_deep_gemm_e8m0 = requantizes

        @classmethod
        def is_supported(cls, compute_capability=None):
            return True, None

        def process_weights_after_loading(self, layer):
            super().process_weights_after_loading(layer)
            if requantizes:
                requant_weight_ue8m0_inplace(layer.weight.data, layer.weight_scale_inv.data)

        def apply_block_scaled_mm(self, A, B, As, Bs):  # noqa: N803
            return A @ dequantized(B, Bs).to(A.dtype).T

    return PlainKernel


def register_experts(mode):
    from vllm.model_executor.layers.fused_moe.oracle import fp8

    backend = fp8.Fp8MoeBackend.FLASHINFER_CUTLASS if mode == "w31" else fp8.Fp8MoeBackend.TRITON
    kernel = experts_kernel(mode == "w31")
    fp8._get_priority_backends = lambda *_: [
        backend, fp8.Fp8MoeBackend.VLLM_CUTLASS, fp8.Fp8MoeBackend.BATCHED_VLLM_CUTLASS
    ]  # fmt: skip
    fp8.backend_to_kernel_cls = lambda _: [kernel]


def experts_kernel(swapped):
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUExpertsFp8

    class PlainExperts(CPUExpertsFp8):
        @staticmethod
        def _supports_current_device():
            return True

        def apply(self, output, hidden_states, w1, w2, topk_weights, topk_ids, *_, **__):
            output.zero_()
            w1, w2 = dequantized(w1, self.w1_scale), dequantized(w2, self.w2_scale)
            for expert in range(len(w1)):
                token, slot = (topk_ids == expert).nonzero(as_tuple=True)
                gate, up = (hidden_states[token].float() @ w1[expert].T).chunk(2, -1)
                if swapped:
                    gate, up = up, gate
                made = (torch.nn.functional.silu(gate) * up) @ w2[expert].T
                made *= topk_weights[token, slot, None]
                output.index_add_(0, token, made.to(output.dtype))

    return PlainExperts

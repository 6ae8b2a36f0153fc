# SPDX-License-Identifier: Apache-2.0
"""A toy engine that keeps its weights as real ones do: fused, sliced, transposed, stacked, tied,
converted. It also writes some of them by every other means. It only loads, and computes nothing."""

import os

import torch

# The device of the weights: cpu, or cuda.
DEVICE = os.environ.get("DRIFTLESS_TOY_DEVICE", "cpu")

HIDDEN, HEADS, FFN, EXPERTS, VOCAB, LAYERS = 32, 64, 48, 4, 96, 2

# One odd parameter for each means of writing.
ODD = (
    "setitem",  # p[a:b] = t, which is a copy
    "index_put",
    "index_copy",
    "add",
    "temporary",
    "clone",
    "rebind",
    "new_data",
    "fill_then_copy",
    "copy_then_fill",
    "broadcast",
    "item",
    "quantized",
    "converted",
    "bytes",
)


def checkpoint_shapes(odd=ODD):
    """name -> (torch dtype, shape)."""
    bf16 = torch.bfloat16
    shapes = {"embed.weight": (bf16, (VOCAB, HIDDEN)), "norm.weight": (bf16, (HIDDEN,))}
    for i in range(LAYERS):
        at = f"layers.{i}."
        shapes[at + "q.weight"] = (bf16, (HEADS, HIDDEN))
        shapes[at + "k.weight"] = (bf16, (HEADS // 2, HIDDEN))
        shapes[at + "v.weight"] = (bf16, (HEADS // 2, HIDDEN))
        shapes[at + "o.weight"] = (bf16, (HIDDEN, HEADS))
        shapes[at + "gate.weight"] = (bf16, (FFN, HIDDEN))
        shapes[at + "up.weight"] = (bf16, (FFN, HIDDEN))
        shapes[at + "down.weight"] = (bf16, (HIDDEN, FFN))
        shapes[at + "norm.weight"] = (bf16, (HIDDEN,))
        for e in range(EXPERTS):
            shapes[at + f"experts.{e}.up.weight"] = (bf16, (FFN, HIDDEN))
            shapes[at + f"experts.{e}.down.weight"] = (bf16, (HIDDEN, FFN))
    shapes["fp8.weight"] = (torch.float8_e4m3fn, (HIDDEN, HIDDEN))
    shapes["fp8.weight_scale"] = (torch.float32, (HIDDEN // 8, HIDDEN // 8))
    shapes["counts"] = (torch.int64, (40,))
    shapes["unused.weight"] = (bf16, (7,))
    for means in odd:
        shape = {"broadcast": (1, HIDDEN), "item": (1,)}.get(means, (16, HIDDEN))
        dtype = torch.float32 if means == "converted" else bf16
        shapes[f"odd.{means}"] = (dtype, shape)
    return shapes


def parameter(*shape, dtype=torch.bfloat16):
    return torch.nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)


class Layer(torch.nn.Module):
    def __init__(self, tp):
        super().__init__()
        self.qkv = parameter(2 * HEADS // tp, HIDDEN)
        self.o = parameter(HIDDEN, HEADS // tp)
        self.gate_up = parameter(2 * FFN // tp, HIDDEN)
        self.down = parameter(HIDDEN, FFN // tp)
        self.norm = parameter(HIDDEN, dtype=torch.float32)
        self.experts_up = parameter(EXPERTS, HIDDEN, FFN // tp)  # transposed
        self.experts_down = parameter(EXPERTS, HIDDEN, FFN // tp)


class ToyEngine(torch.nn.Module):
    def __init__(self, rank=0, tp=1, odd=ODD):
        super().__init__()
        self.rank, self.tp = rank, tp
        self.embed = torch.nn.Embedding(VOCAB, HIDDEN, dtype=torch.bfloat16)
        self.embed.weight.requires_grad_(False)
        self.head = torch.nn.Linear(HIDDEN, VOCAB, bias=False, dtype=torch.bfloat16)
        self.head.weight = self.embed.weight  # tied
        self.head_copy = parameter(VOCAB, HIDDEN)  # and a second copy
        self.norm = parameter(HIDDEN, dtype=torch.float32)
        self.layers = torch.nn.ModuleList(Layer(tp) for _ in range(LAYERS))
        self.fp8 = parameter(HIDDEN, HIDDEN, dtype=torch.float8_e4m3fn)
        self.fp8_scale = parameter(HIDDEN // 8, HIDDEN // 8, dtype=torch.float32)
        self.register_buffer("counts", torch.zeros(40, dtype=torch.int64))
        self.odd = torch.nn.ParameterDict()
        for means in odd:
            dtype = torch.float8_e4m3fn if means == "quantized" else torch.bfloat16
            self.odd[means] = parameter(16, HIDDEN, dtype=dtype)
        self.odd_scale = parameter(1, dtype=torch.float32)

    # Engines call this.
    def load_weights(self, weights):
        for name, tensor in weights:
            if name.startswith("layers."):
                _, number, rest = name.split(".", 2)
                self.load_layer(self.layers[int(number)], rest, tensor)
            elif name.startswith("odd."):
                getattr(self, "load_" + name[4:])(self.odd[name[4:]], tensor)
            else:
                self.load_plain(name, tensor)

    def load_plain(self, name, tensor):
        if name == "embed.weight":
            self.embed.weight.data.copy_(tensor)
            self.head_copy.data.copy_(tensor)
        elif name == "norm.weight":
            self.norm.data.copy_(tensor)
        elif name == "fp8.weight":
            self.fp8.data.copy_(tensor)
        elif name == "fp8.weight_scale":
            self.fp8_scale.data.copy_(tensor)
        elif name == "counts":
            self.counts.copy_(tensor)

    def rows(self, tensor):
        size = tensor.shape[0] // self.tp
        return tensor.narrow(0, self.rank * size, size)

    def columns(self, tensor):
        size = tensor.shape[1] // self.tp
        return tensor.narrow(1, self.rank * size, size)

    def load_layer(self, layer, name, tensor):
        half = HEADS // self.tp
        quarter = half // 2
        parts = {
            "q.weight": (layer.qkv, 0, half),
            "k.weight": (layer.qkv, half, quarter),
            "v.weight": (layer.qkv, half + quarter, quarter),
            "gate.weight": (layer.gate_up, 0, FFN // self.tp),
            "up.weight": (layer.gate_up, FFN // self.tp, FFN // self.tp),
        }
        if name in parts:
            into, at, size = parts[name]
            into.data.narrow(0, at, size).copy_(self.rows(tensor))
        elif name == "norm.weight":
            layer.norm.data.copy_(tensor.to(layer.norm.dtype))
        elif name == "o.weight":
            layer.o.data.copy_(self.columns(tensor))
        elif name == "down.weight":
            layer.down.data.copy_(self.columns(tensor))
        elif name.endswith("up.weight"):
            layer.experts_up.data[int(name.split(".")[1])].copy_(self.rows(tensor).t())
        else:
            layer.experts_down.data[int(name.split(".")[1])].copy_(self.columns(tensor))

    def load_setitem(self, into, tensor):
        into.data[2:10] = tensor[2:10]
        into.data[:2] = tensor[:2]
        into.data[10:] = tensor[10:]

    def load_index_put(self, into, tensor):
        into.data[torch.arange(16)] = tensor.to(into.device)

    def load_index_copy(self, into, tensor):
        into.data.index_copy_(0, torch.arange(16, device=into.device), tensor.to(into.device))

    def load_add(self, into, tensor):
        into.data.zero_()
        into.data.add_(tensor.to(into.device))

    def load_temporary(self, into, tensor):
        between = torch.empty_like(into.data)
        between.copy_(tensor)
        into.data.copy_(between)

    def load_clone(self, into, tensor):
        into.data.copy_(tensor.clone())

    def load_rebind(self, into, tensor):
        other = tensor.to(into.device, copy=True)
        self.odd["rebind"] = torch.nn.Parameter(other, requires_grad=False)

    def load_new_data(self, into, tensor):
        into.data = tensor.to(into.device, copy=True)

    def load_fill_then_copy(self, into, tensor):
        into.data.fill_(1)
        into.data.copy_(tensor)

    def load_copy_then_fill(self, into, tensor):
        into.data.copy_(tensor)
        into.data[:4].zero_()

    def load_broadcast(self, into, tensor):
        into.data.copy_(tensor)

    def load_item(self, into, tensor):
        into.data.fill_(tensor.item())

    def load_quantized(self, into, tensor):
        values = tensor.float().nan_to_num(0, 1, -1)
        scale = values.abs().max() / 448
        self.odd_scale.data.copy_(scale.reshape(1))
        into.data.copy_((values / scale.clamp(min=1e-9)).to(torch.float8_e4m3fn))

    def load_converted(self, into, tensor):
        into.data.copy_(tensor)

    def load_bytes(self, into, tensor):
        into.data.view(torch.uint8).copy_(tensor.view(torch.uint8))


def state_bits(module):
    """Every parameter and buffer, by name, as bytes. The bits of a NaN that torch rounded depend on
    processor and strides, so all NaNs count as equal there."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    bits = {}
    for name, tensor in tensors.items():
        held = tensor.detach().cpu().contiguous()
        if name.endswith("converted"):
            held = torch.where(held.isnan(), torch.full_like(held, float("nan")), held)
        bits[name] = held.view(torch.uint8).numpy().tobytes()
    return bits


def fresh(weights, rank=0, tp=1, odd=ODD):
    engine = ToyEngine(rank, tp, odd).to(DEVICE)
    with torch.no_grad():
        engine.load_weights(weights.items())
    return engine

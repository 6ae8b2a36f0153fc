# SPDX-License-Identifier: Apache-2.0
"""`driftless doctor` runs this in the Python under test: prints one JSON object. Imports none of
the packages that it reports, because torch alone takes seconds."""

import ast
import importlib.metadata
import importlib.util
import json
import os
import sys
from pathlib import Path

# Fields of megatron-core's TransformerConfig that the maps need to identify a model.
NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "kv_channels",
          "ffn_hidden_size", "num_moe_experts", "normalization", "gated_linear_unit",
          "add_bias_linear", "layernorm_zero_centered_gamma", "qk_layernorm")  # fmt: skip


def release(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def folder(package):
    """The folder of a package, without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) if places else None


def source(path):
    try:
        return ast.parse(path.read_text(errors="replace"))
    except (OSError, SyntaxError):
        return ast.parse("")


def fields(path):
    """The annotated names of every class in a file."""
    found = set()
    for node in ast.walk(source(path)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return found


def megatron():
    core = folder("megatron.core")
    if core is None:
        return {}
    numbers = {}
    for node in ast.walk(source(core / "package_info.py")):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            numbers[getattr(node.targets[0], "id", "")] = str(node.value.value)
    parts = [numbers.get(name, "0") for name in ("MAJOR", "MINOR", "PATCH")]
    known = fields(core / "transformer/transformer_config.py")
    known |= fields(core / "model_parallel_config.py")
    missing = [name for name in NEEDED if name not in known]
    text = release("megatron-core") or ".".join(parts)
    return {"megatron": text, "missing_flags": ", ".join(missing)}


def torch():
    text = release("torch")
    place = folder("torch")
    if not text or place is None:
        return text
    constants = {}
    for node in ast.walk(source(place / "version.py")):
        if isinstance(node, (ast.AnnAssign, ast.Assign)) and isinstance(node.value, ast.Constant):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            constants[getattr(target, "id", "")] = node.value.value
    cuda, hip = constants.get("cuda"), constants.get("hip")
    return f"{text}, for {'CUDA ' + cuda if cuda else 'ROCm ' + hip if hip else 'the CPU'}"


def nixl():
    """The C library and its plugins, in a package or where the loader looks."""
    places = [p for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p]
    for entry in [p for p in sys.path if p]:
        places += [f"{entry}/.{name}.mesonpy.libs" for name in ("nixl_cu13", "nixl_cu12", "nixl")]
    places += ["/opt/nvidia/nvda_nixl/lib", "/usr/local/lib", "/usr/lib"]
    places += [f"{place}/{os.uname().machine}-linux-gnu" for place in places[-3:]]
    for place in map(Path, places):
        library = place / "libnixl_capi.so"
        if not library.is_file():
            continue
        plugins = Path(os.environ.get("NIXL_PLUGIN_DIR", place / "plugins"))
        names = [file.name[len("libplugin_") : -len(".so")] for file in plugins.glob("libplugin_*.so")]
        return {"nixl": str(library), "nixl_plugins": ", ".join(sorted(names))}
    return {}


print(json.dumps({
    "python": f"{sys.executable}: {sys.version.split()[0]}",
    "driftless": release("driftless"),
    "torch": torch(),
    "releases": {name: release(name) for name in ("transformers", "vllm", "sglang")},
    **megatron(), **nixl(),
}))  # fmt: skip

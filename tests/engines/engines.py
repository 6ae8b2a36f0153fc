# SPDX-License-Identifier: Apache-2.0
"""The engines that the tests start, and the calls that each answers."""

import contextlib
import secrets
import sys
import urllib.error
from dataclasses import dataclass

import pytest
from environments import HERE, REPOSITORY, allow, environment, python_of
from hosts import Host, Server

sys.path.append(str(REPOSITORY / "tests/python"))
from model_hub import add_to_cache  # noqa: E402
from ports import free_port  # noqa: E402

LIMITS = {"max_model_len": 128, "max_num_seqs": 4}
VLLM = {
    "VLLM_CPU_KVCACHE_SPACE": 1,
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": 1,
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_SERVER_DEV_MODE": 1,
}


@dataclass(frozen=True)
class Spec:
    engine: str  # vllm, vllm_older, vllm_server, sglang
    kind: str
    tp: int = 1
    dtype: str = "float32"
    load_layout: bool = True  # vLLM: keep parameters as loaded
    experts: bool = False  # each rank holds whole experts (EP), as many ranks as tp
    fp8: str = ""  # how FP8 blocks run on the CPU (vllm_plain_fp8.py; SGLang: "plain", stand_in)
    hub: bool = False  # started by a name in the model hub's cache

    @property
    def maker(self):
        """The engine's kind, as drivers and agents call it."""
        return "sglang" if self.engine == "sglang" else "vllm"

    @property
    def exact(self):
        """Whether tokens equal those of transformers in float32; narrower dtypes round
        differently."""
        return self.dtype == "float32"

    def __str__(self):
        stock = "" if self.load_layout else "-stock"
        experts = f"-ep{self.tp}" if self.experts else ""
        hub = "-hub" if self.hub else ""
        fp8 = f"-{self.fp8}" if self.fp8 else ""
        return f"{self.engine}-{self.kind}-tp{self.tp}{experts}-{self.dtype}{stock}{fp8}{hub}"


# A server of each engine, of two ranks.
SERVERS = [Spec("vllm_server", "qwen3", 2), Spec("sglang", "qwen3", 2, "float32")]


class Pool:
    """Engines by specification. `line`: the order in which the tests use them. A request for one
    also starts the next one, and ends those before it."""

    def __init__(self, place, models, entry_points, line):
        self.place, self.models, self.entry_points = place, models, entry_points
        self.line, self.running = line, {}

    def get(self, spec):
        number = self.line.index(spec)
        for past in self.line[:number]:
            self.drop(past)
        engine = self._start(spec)
        if number + 1 < len(self.line) and not engine.ready:
            with contextlib.suppress(pytest.skip.Exception):  # skips the tests of that engine only
                self._start(self.line[number + 1])
        return engine.wait_ready()

    def drop(self, spec):
        engine = self.running.pop(spec, None)
        if engine is not None:
            engine.stop()

    def stop(self):
        for spec in list(self.running):
            self.drop(spec)

    def _start(self, spec):
        if spec not in self.running:
            self.running[spec] = STARTS[spec.engine](self, spec)
        return self.running[spec]

    def log(self, spec):
        return self.place / f"{spec}.log"


def address_of(pool):
    """The address at which a server of this pool listens: of another host, if it is for one."""
    return getattr(pool, "address", "127.0.0.1")


def on_host(pool, line):
    return pool.on_host(line) if hasattr(pool, "on_host") else line


# --- vLLM -----------------------------------------------------------------------------------------


def vllm_environment(pool, spec):
    keep = {"DRIFTLESS_VLLM_KEEP_LOAD_LAYOUT": 1} if spec.load_layout else {}
    hub = {"HF_HUB_CACHE": pool.place / "hub"} if spec.hub else {}
    fp8 = {"DRIFTLESS_TEST_FP8": spec.fp8} if spec.fp8 else {}
    return environment(pool.entry_points, **VLLM, **keep, **hub, **fp8)


def model_of(pool, spec):
    """The model argument of a server: the checkpoint, or its name in a cache of the model hub."""
    checkpoint = pool.models[spec.kind].checkpoint(0)
    if not spec.hub:
        return checkpoint
    name = f"driftless/{spec.kind}"
    add_to_cache(pool.place / "hub", name, checkpoint)
    return name


def vllm_options(pool, spec):
    return {
        "model": pool.models[spec.kind].checkpoint(0),
        "dtype": spec.dtype,
        "tensor_parallel_size": spec.tp,
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "use_tqdm_on_load": False,
        "worker_extension_cls": "worker_probe.Probe",
        **LIMITS,
    }


def start_vllm(pool, spec):
    options = vllm_options(pool, spec) | {"weight_transfer_config": {"backend": "driftless"}}
    env = vllm_environment(pool, spec)
    return Offline(python_of("vllm"), "vllm_host.py", options, env, pool.log(spec))


def start_vllm_older(pool, spec):
    """A release that accepts only its own backends: it uses the worker extension alone."""
    options, env = vllm_options(pool, spec), vllm_environment(pool, spec)
    return Older(python_of("vllm_older"), "vllm_host.py", options, env, pool.log(spec))


def tokens_of_transformers(model, version):
    return model.tokens[version]


class Offline(Host):
    """An `LLM` in a process of its own."""

    reference_tokens = staticmethod(tokens_of_transformers)

    def to_base(self, path):
        """Loads the base's weights again, and resets the workers' receivers."""
        self.rpc("probe_base", path=path)
        self.do("clear")

    def follow(self, config):
        return self.do("follow", source=allow(config))["version"]

    def update(self, **arguments):
        return self.do("update", **arguments)

    def replies(self):
        return self.do("replies")

    def weight_version(self):
        return self.do("weight_version")

    def rpc(self, method, **arguments):
        return self.do("rpc", method=method, **arguments)

    def checksums(self):
        return self.rpc("probe_checksums")

    def fresh_checksums(self, path):
        return self.rpc("probe_fresh", path=path)

    def generate(self, prompts, tokens):
        return self.do("generate", prompts=prompts, tokens=tokens)


class Older(Offline):
    def weight_version(self):
        """This release has no label; takes the workers' version."""
        (version,) = {reply["version"] for reply in self.replies()}
        return str(version)


def start_vllm_server(pool, spec):
    port = free_port()
    line = [
        python_of("vllm"), "-m", "vllm.entrypoints.openai.api_server",
        "--model", model_of(pool, spec), "--dtype", spec.dtype,
        "--host", address_of(pool), "--port", port, "--tensor-parallel-size", spec.tp,
        "--enforce-eager", "--skip-tokenizer-init", "--enable-scale-out",
        "--no-use-tqdm-on-load",
        "--max-model-len", LIMITS["max_model_len"], "--max-num-seqs", LIMITS["max_num_seqs"],
        "--worker-extension-cls", "worker_probe.Probe",
        "--weight-transfer-config", '{"backend":"driftless"}',
        *(["--enable-expert-parallel"] if spec.experts else []),
    ]  # fmt: skip
    return VllmServer(on_host(pool, line), pool.log(spec), port, address=address_of(pool),
                      env=vllm_environment(pool, spec))  # fmt: skip


class VllmServer(Server):
    reference_tokens = staticmethod(tokens_of_transformers)

    def follow(self, config):
        from driftless.engines import vllm

        self.driver = vllm.follow(self.url, allow(config))
        return self.driver.version

    def update(self, timeout_s=300, started=False):
        done = self.driver.update(timeout_s, started)
        return done and {"version": done.version, "replies": done.replies, "timings": done.timings}

    def replies(self):
        return self.driver.ask("driftless_status")

    def weight_version(self):
        return self.call("/weight_info", method="GET")["weight_version"]

    def rpc(self, method, **arguments):
        """Also works if replies are out of step: late answers arrive with the next calls."""
        wanted, found, ranks = secrets.token_hex(8), {}, 1
        asked = {"method": method, "arguments": arguments, "nonce": wanted}
        for _ in range(8):
            try:
                got = self.call("/collective_rpc", {"method": "probe", "kwargs": asked})["results"]
            except urllib.error.HTTPError:  # a failure of an earlier call was in the queue
                got = []
            ranks = max(ranks, len(got))
            answers = {rank: answer for rank, answer in enumerate(got) if isinstance(answer, dict)}
            found |= {rank: a for rank, a in answers.items() if a.get("nonce") == wanted}
            if got and len(found) == ranks:
                assert not any("error" in answer for answer in found.values()), found
                return [found[rank]["value"] for rank in range(ranks)]
            asked = {"method": "probe_nothing", "arguments": {}, "nonce": ""}
        raise AssertionError(f"{method}: only {sorted(found)} of {ranks} ranks answered")

    def checksums(self):
        return self.rpc("probe_checksums")

    def fresh_checksums(self, path):
        return self.rpc("probe_fresh", path=path)

    def to_base(self, path):
        """Loads the base's weights again, and resets the workers' receivers. Sets the label first,
        because an agent may update them as soon as they hold the base."""
        self.call("/update_weight_version", {"new_version": "base"})
        self.rpc("probe_base", path=path)
        self.call("/reset_prefix_cache")

    def ask(self, prompt, tokens):
        options = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True, "detokenize": False}
        body = {"token_ids": prompt, "sampling_params": options}
        return self.call("/inference/v1/generate", body)["choices"][0]

    def generate(self, prompts, tokens):
        return [self.ask(prompt, tokens)["token_ids"] for prompt in prompts]


# --- SGLang ---------------------------------------------------------------------------------------


def start_sglang(pool, spec):
    port = free_port()
    line = [
        python_of("sglang"), "-m", "sglang.launch_server",
        "--model-path", pool.models[spec.kind].checkpoint(0), "--dtype", spec.dtype,
        "--host", address_of(pool), "--port", port, "--tp", spec.tp, "--device", "cpu",
        "--attention-backend", "torch_native", "--cuda-graph-backend-decode", "disabled",
        "--cuda-graph-backend-prefill", "disabled", "--skip-tokenizer-init", "--sleep-on-idle",
        "--mem-fraction-static", 0.2, "--max-total-tokens", 4096, "--skip-server-warmup",
        "--custom-weight-loader", "driftless.engines.sglang.load", "sglang_probe.load",
        *(["--ep-size", spec.tp] if spec.experts else []),
    ]  # fmt: skip
    env = environment(
        HERE / "stand_in",
        SGLANG_USE_CPU_ENGINE=1,
        SGLANG_CPU_OMP_THREADS_BIND="|".join(map(str, range(spec.tp))),
        **({"DRIFTLESS_TEST_FP8": spec.fp8} if spec.fp8 else {}),
    )
    # /health generates a token. SGLang's attention for DeepSeek cannot do that on a CPU: it takes
    # keys of the heads' size from a cache of latent keys ("Expected size for first two dimensions
    # of batch2 tensor").
    health = "/model_info" if spec.kind == "deepseek" else "/health"
    engine = SglangServer(on_host(pool, line), pool.log(spec), port, health,
                          address=address_of(pool), env=env, cwd=REPOSITORY)  # fmt: skip
    engine.exact = spec.exact
    return engine


class SglangServer(Server):
    def follow(self, config):
        from driftless.engines import sglang

        self.driver = sglang.follow(self.url, allow(config))
        return self.driver.version

    def update(self, timeout_s=300, started=False):
        done = self.driver.update(timeout_s, started)
        return done and {"version": done.version, "replies": done.replies, "timings": done.timings}

    def replies(self):
        return self.driver.ask("driftless_status")

    def weight_version(self):
        return self.call("/model_info", method="GET")["weight_version"]

    def to_base(self, path):
        """Loads the base's weights again, and resets the workers' receivers. Sets the label first,
        because an agent may update them as soon as they hold the base."""
        self.driver = None
        named = {"new_version": "base", "abort_all_requests": False}
        self.call("/update_weight_version", named)
        assert self.probe("base", path=path) == [{}] * len(self.checksums())
        self.call("/flush_cache")

    def reference_tokens(self, model, version):
        """If tokens differ from those of transformers: the tokens after SGLang's own full load of
        the version. assert_weights() has already compared the bits."""
        if self.exact:
            return model.tokens[version]
        path = model.checkpoint(version)
        body = {"model_path": path, "weight_version": str(version), "flush_cache": True}
        assert self.call("/update_weights_from_disk", body)["success"]
        return self.generate(model.prompts, len(model.tokens[0][0]))

    def probe(self, what, **arguments):
        """Calls sglang_probe.load on every rank."""
        import sglang_probe

        def call(path, body=None):
            return self.call(path, body, method="GET" if body is None else "POST")

        return sglang_probe.ask(call, {"what": what, **arguments})

    def checksums(self):
        return self.probe("checksums")

    def fresh_checksums(self, path):
        return self.probe("fresh", path=path)

    def generate(self, prompts, tokens):
        options = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        bodies = [{"input_ids": prompt, "sampling_params": options} for prompt in prompts]
        return [self.call("/generate", body)["output_ids"] for body in bodies]


STARTS = {
    "vllm": start_vllm,
    "vllm_older": start_vllm_older,
    "vllm_server": start_vllm_server,
    "sglang": start_sglang,
}

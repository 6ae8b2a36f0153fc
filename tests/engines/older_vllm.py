# SPDX-License-Identifier: Apache-2.0
"""The backend with the interfaces of older vLLM releases: a constructor with two arguments (0.16 to
0.21) or three (0.22 to 0.24), and `receive_weights(info, load_weights)`. Needs torch and
transformers only: this script defines the base classes. test_vllm_older.py has a real release.

    python older_vllm.py CONFIG MODEL VERSION two|three      prints the checksums
"""

import json
import sys
import types
from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass
class Info:
    pass


class Older(ABC):
    init_info_cls = update_info_cls = None

    def __init__(self, config, parallel_config):
        self.config, self.parallel_config = config, parallel_config

    def parse_update_info(self, given):
        return self.update_info_cls(**given)

    @abstractmethod
    def init_transfer_engine(self, info): ...
    @abstractmethod
    def receive_weights(self, info, load_weights): ...
    @abstractmethod
    def shutdown(self): ...
    @staticmethod
    @abstractmethod
    def trainer_send_weights(iterator, args): ...


class OlderWithModel(Older):
    def __init__(self, config, parallel_config, model):
        super().__init__(config, parallel_config)
        self.model = model


def pretend(engine):
    base = types.ModuleType("vllm.distributed.weight_transfer.base")
    base.WeightTransferEngine = engine
    base.WeightTransferInitInfo = base.WeightTransferUpdateInfo = Info
    parents = ("vllm", "vllm.distributed", "vllm.distributed.weight_transfer")
    sys.modules |= {name: types.ModuleType(name) for name in parents} | {base.__name__: base}


def main(config, path, version, arguments):
    pretend(OlderWithModel if arguments == "three" else Older)
    import worker_probe
    from driftless.engines import transformers, vllm
    from driftless.engines.vllm_backend import DriftlessTransferEngine

    model = transformers.load_model(path)
    parallel = types.SimpleNamespace(rank=0)
    model_config = types.SimpleNamespace(model=path)

    class Worker(vllm.WorkerExtension):
        rank = 0
        vllm_config = types.SimpleNamespace(model_config=model_config, additional_config={})
        model_runner = types.SimpleNamespace(get_model=lambda: model)
        weight_transfer_engine = DriftlessTransferEngine(
            None, parallel, *([model] if arguments == "three" else [])
        )

    worker, engine = Worker(), Worker.weight_transfer_engine
    info = engine.parse_update_info({"version": version, "nonce": "n"})
    try:
        engine.receive_weights(info, load_weights=print)
        raise SystemExit("the error must name the extension")
    except RuntimeError as problem:
        assert "worker-extension-cls" in str(problem)
    opened = worker.driftless_open(config, "o")
    assert opened["ok"] and opened["nonce"] == "o" and not opened["session"], opened
    worker.driftless_stage("s", 30)
    engine.receiver.wait(30)
    # A worker that has prepared a reload passes the model's own loader.
    engine.receive_weights(info, load_weights=types.MethodType(print, model))
    refused = worker.driftless_status("r")
    assert refused["version"] == 0 and "is_checkpoint_format=False" in refused["error"], refused
    engine.receive_weights(info, load_weights=print)
    assert worker.driftless_status("t")["version"] == version
    engine.shutdown()
    print(json.dumps([worker_probe.checksums(model), worker_probe.checksums(fresh(version, path))]))


def fresh(version, path):
    from driftless.engines import transformers

    return transformers.load_model(path.replace("v00", f"v{version:02d}"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])

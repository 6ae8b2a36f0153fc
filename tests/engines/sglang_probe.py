# SPDX-License-Identifier: Apache-2.0
"""Queries of the tests to SGLang's workers, in the same way as driftless: a loader gets a command,
and answers in files."""

import base64
import json
import struct
import tempfile
import time
import traceback
import urllib.error
from pathlib import Path

PATIENCE = 50  # tenths of a second


def ask(call, command):
    """One answer of every rank. `call(path, body)`: POST to the server; GET without a body."""
    ranks = int(call("/server_info").get("tp_size", 1))
    with tempfile.TemporaryDirectory(prefix="driftless-probe-") as directory:
        payload = base64.b64encode(pickled({**command, "answers": directory})).decode()
        body = {"load_format": "sglang_probe.load", "flush_cache": False, "selector": "target"}
        call("/pause_generation", {"mode": "in_place"})
        begin(call)
        try:
            call(
                "/update_weights_from_tensor",
                {**body, "serialized_named_tensors": [payload] * ranks},
            )
        finally:
            end(call)
            call("/continue_generation", {})
        files = [Path(directory) / f"rank{rank}.json" for rank in range(ranks)]
        return [json.loads(file.read_text()) for file in files]


def begin(call):
    """Opens a session. Waits for a session of the agent, and ends one that was left open."""
    for _ in range(PATIENCE):
        try:
            return call("/begin_weight_update", {})
        except urllib.error.HTTPError:
            time.sleep(0.1)
    call("/end_weight_update", {})
    return call("/begin_weight_update", {})


def end(call):
    """Ends the session. The agent may have ended it already: the workers had answered by then, or
    the call before this one failed."""
    try:
        call("/end_weight_update", {})
    except urllib.error.HTTPError:
        pass


def pickled(command):
    """A list of one pair (a name and a uint8 tensor) as SGLang's unpickler accepts it."""
    name = b"driftless.command"
    values = b"".join(b"K" + bytes([value]) for value in json.dumps(command).encode())
    tensor = b"ctorch\nByteTensor\n](" + values + b"e\x85R"
    return b"\x80\x02](X" + struct.pack("<I", len(name)) + name + tensor + b"\x86e."


def load(model, named_tensors):
    from sglang.srt.distributed import parallel_state

    command = json.loads(bytes(named_tensors[0][1].tolist()))
    try:
        answer = obey(model, command)
    except Exception:
        answer = traceback.format_exc()
    rank = parallel_state.get_tp_group().rank_in_group
    Path(command["answers"], f"rank{rank}.json").write_text(json.dumps(answer))


def obey(model, command):
    import worker_probe

    if command["what"] == "checksums":
        return worker_probe.checksums(model)
    if command["what"] == "fresh":
        return worker_probe.checksums(fresh(model, command["path"]))
    if command["what"] == "base":
        receiver = model.__dict__.pop("_driftless_receiver", None)
        return worker_probe.back_to_base(model, receiver, command["path"])
    if command["what"] == "flip":
        from sglang.srt.distributed import parallel_state

        if parallel_state.get_tp_group().rank_in_group == command["rank"]:
            worker_probe.flip(model, command["parameter"], command.get("place"))
        return {}
    if command["what"] == "untouched":
        return worker_probe.untouched(*(fresh(model, path) for path in command["paths"]))
    if command["what"] == "fault":
        from sglang.srt.distributed import parallel_state

        if parallel_state.get_tp_group().rank_in_group == command["rank"]:
            receiver = model.__dict__["_driftless_receiver"]
            worker_probe.install(receiver, command["point"], model, command.get("path", ""))
        return {}
    raise ValueError(command)


def fresh(model, path):
    """A second model that SGLang's own loader makes from `path`, in this process."""
    from sglang.srt.configs.device_config import DeviceConfig
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_loader import get_model

    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    config, device = ModelConfig(path, dtype=dtype), DeviceConfig("cpu")
    return get_model(model_config=config, load_config=LoadConfig(), device_config=device)

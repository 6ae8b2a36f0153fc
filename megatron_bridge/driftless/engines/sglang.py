"""SGLang: the receiver inside its workers, and a driver for a server.

    python -m sglang.launch_server ... --custom-weight-loader driftless.engines.sglang.load

SGLang calls load() on every TP rank when /update_weights_from_tensor names it. The tensor is no
weight: it carries a command (JSON in uint8), so that staging and commits need nothing of SGLang but
this. Answers come by files in a directory that the driver made, because SGLang has no way back from
a loader; so the driver runs on the engine's host, as its user. A command names what the engine's
operator allowed at start, and holds neither paths nor settings (allowed.py).

    follower = follow("http://127.0.0.1:30000", "host_shm:NAME")
    while training:
        follower.update(60)          # staged while requests run; all ranks, or none

A loader that raises takes the server down with it. load() never does; and the ranks agree among
themselves before a commit counts.
"""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import shutil
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import errors
from . import allowed, drive
from .follower import Follower, Reply, checkpoint_directory, text_of
from .http_calls import request

LOADER = "driftless.engines.sglang.load"
TENSOR_NAME = "driftless.command"
ANSWER_TIMEOUT_S = 60.0


# --- in the workers -------------------------------------------------------------------------------


def load(model: Any, named_tensors: Sequence[tuple[str, Any]]) -> None:
    """Obeys the commands that the tensors carry. Whatever happens is in the answers."""
    for _, tensor in named_tensors:
        try:
            command = json.loads(bytes(tensor.cpu().tolist()))
            Ranks.here().obey(model, command)
        except Exception as problem:  # noqa: BLE001  an exception would end the server
            print(f"driftless: a command could not be answered: {text_of(problem)}", flush=True)


class Ranks:
    """The TP ranks of the engine, as this one sees them."""

    def __init__(self, rank: int, size: int, group: Any) -> None:
        self.rank, self.size, self.group = rank, size, group

    @staticmethod
    def here() -> Ranks:
        from sglang.srt.distributed import parallel_state

        group = parallel_state.get_tp_group()
        return Ranks(group.rank_in_group, group.world_size, group.cpu_group)

    def obey(self, model: Any, command: dict[str, Any]) -> None:
        follower = self.follower_of(model, command)
        nonce = str(command.get("nonce", ""))
        answers: Answers = follower.answers  # type: ignore[attr-defined]
        with answers.turn:  # the thread that stage() starts answers after this
            reply = self.run(follower, command, nonce)
            if command["phase"] == "commit":
                reply = self.agree(follower, reply, nonce)
            answers.write(reply)

    def follower_of(self, model: Any, command: dict[str, Any]) -> Follower:
        made = model.__dict__.get("_driftless_follower")
        if made is None:

            def make_target(chunk_bytes: int) -> Any:
                from . import ModuleTarget

                given = allowed.settings()
                return ModuleTarget(model, base=given.get("base") or base_of_server(),
                                    run=given.get("run"), version=given.get("version", 0),
                                    chunk_bytes=chunk_bytes)  # fmt: skip

            made = model.__dict__["_driftless_follower"] = Follower(self.rank, make_target)
        if command["phase"] == "open":
            shm = allowed.shm_dir(allowed.settings())
            answers = made.answers = Answers(allowed.answer_directory(command["answers"], shm))
            made.on_staged = answers.write_in_turn
        return made

    def run(self, follower: Follower, command: dict[str, Any], nonce: str) -> Reply:
        phase = command["phase"]
        if phase == "open":
            try:
                found = allowed.source_of(command.get("source"), allowed.settings())
            except errors.Error as problem:
                return follower.refuse_open(text_of(problem), nonce)
            return follower.open(found.config, found.sets, nonce)
        if phase == "stage":
            return follower.stage(nonce, float(command["timeout_s"]))
        if phase == "commit":
            return follower.commit(int(command["version"]), nonce)
        if phase == "rollback":
            return follower.rollback(int(command["version"]), nonce)
        if phase == "close":
            return follower.close(nonce)
        return follower.status(nonce)

    def agree(self, follower: Follower, reply: Reply, nonce: str) -> Reply:
        """All ranks have committed, or all go back. Every rank comes here, whatever it did."""
        if self.size == 1:
            return reply
        import torch.distributed

        before = follower.before
        everyone: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(everyone, (reply["ok"], reply["version"]), self.group)
        if len({version for _, version in everyone}) == 1:
            return reply
        if before is not None and reply["state"] == "committed":
            back = follower.rollback(before, nonce)
            back["error"] = back["error"] or "taken back: another rank could not commit"
            back["ok"] = False
            return back
        return reply


def base_of_server() -> str:
    """The checkpoint that this server was started with."""
    try:
        from sglang.srt.runtime_context import get_server_args
    except ImportError:  # older releases
        from sglang.srt.server_args import get_global_server_args as get_server_args
    return checkpoint_directory(get_server_args().model_path)


class Answers:
    """Where a rank's newest answer is: whole, and never older than one before."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.turn = directory, threading.Lock()

    def write(self, reply: Reply) -> None:
        with contextlib.suppress(OSError):  # the driver is gone: nobody asks
            path = self.directory / f"rank{reply['rank']}.json"
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps(reply))
            fresh.replace(path)

    def write_in_turn(self, reply: Reply) -> None:
        with self.turn:
            self.write(reply)


# --- driving it -----------------------------------------------------------------------------------


def follow(url: str, source: str | None = None, shm_dir: str | None = None) -> drive.Driver:
    """A driver whose engine follows `source`: an agent of its host ("host_shm:NAME"), or a
    configuration that its operator allowed (allowed.py). `shm_dir`: the engine's host_shm_dir."""
    driver = drive.Driver(Server(url, shm_dir))
    driver.open(source)
    return driver


class Server:
    """A server on this host. Requests in flight are retracted during a commit: they go on with the
    new weights, their caches computed again."""

    def __init__(
        self, url: str, shm_dir: str | None = None, timeout_s: float = 120.0
    ) -> None:
        self.url, self.timeout_s = url.rstrip("/"), timeout_s
        self.ranks = int(self.get("/server_info").get("tp_size", 1))
        self.paused = self.in_session = False
        self._token = secrets.token_hex(16)
        self._answers = allowed.make_answer_directory(
            self._token, shm_dir or allowed.shm_dir(allowed.settings())
        )
        weakref.finalize(self, shutil.rmtree, self._answers, ignore_errors=True)

    def call(self, method: str, **arguments: Any) -> Sequence[Reply]:
        phase, nonce = method.removeprefix("driftless_"), arguments["nonce"]
        if phase == "status":  # the files are the newest answers, and cost the engine nothing
            return [{**reply, "nonce": nonce} for reply in self.answers(None)]
        command = {"phase": phase, **arguments}
        if phase == "open":
            command["answers"] = self._token
        self.send(command)
        return self.answers(nonce)

    def pause(self) -> None:
        self.post("/pause_generation", {"mode": "retract"})
        self.paused = True

    def begin(self) -> None:
        try:
            self.post("/begin_weight_update", {})
        except errors.IoError:  # a session of before that nobody ended
            self.post("/end_weight_update", {})
            self.post("/begin_weight_update", {})
        self.in_session = True

    def write(self, version: int, nonce: str) -> None:
        self.send({"phase": "commit", "version": version, "nonce": nonce})
        self.answers(nonce)

    def finish(self, version: int) -> None:
        self.post("/end_weight_update", {})
        self.in_session = False
        named = {"new_version": str(version), "abort_all_requests": False}
        self.post("/update_weight_version", named)

    def clear_cache(self) -> None:
        self.post("/flush_cache", {})

    def resume(self) -> None:
        self.post("/continue_generation", {})
        self.paused = False

    def info(self) -> dict[str, Any]:
        return self.get("/model_info")

    def send(self, command: dict[str, Any], loader: str = LOADER) -> None:
        """To the loader of every rank. Outside a commit the engine stands still for as long as it
        takes to start a thread."""
        alone = not self.paused
        if alone:
            self.post("/pause_generation", {"mode": "in_place"})
        try:
            self._send(command, loader)
        finally:
            if alone:
                self.post("/continue_generation", {})

    def _send(self, command: dict[str, Any], loader: str) -> None:
        payload = base64.b64encode(pickled_command(command)).decode()
        if not self.in_session:
            self.post("/begin_weight_update", {})
        try:
            body = {"load_format": loader, "flush_cache": False, "selector": "target"}
            body["serialized_named_tensors"] = [payload] * self.ranks
            self.post("/update_weights_from_tensor", body)
        finally:
            if not self.in_session:
                self.post("/end_weight_update", {})

    def answers(self, nonce: str | None) -> list[Reply]:
        """The newest of every rank; with a nonce: to that command."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            found = [read_answer(self._answers, rank) for rank in range(self.ranks)]
            if all(one is not None and nonce in (None, one["nonce"]) for one in found):
                return [one for one in found if one is not None]
            if time.monotonic() > deadline:
                raise errors.DeadlineExceededError(
                    f"not all of {self.ranks} ranks of {self.url} answered: was the server started "
                    f"with --custom-weight-loader {LOADER}, on this host?"
                )
            time.sleep(0.005)

    def get(self, path: str) -> dict[str, Any]:
        return request(self.url + path, None, "GET", self.timeout_s)

    def post(self, path: str, body: Any) -> dict[str, Any]:
        plain = path == "/flush_cache"  # SGLang answers this one in plain text
        answer = request(self.url + path, body, "POST", self.timeout_s, plain=plain)
        if answer.get("success") is False:
            raise errors.IoError(f"POST {self.url}{path}: {answer.get('message', answer)}")
        return answer


def read_answer(directory: Path, rank: int) -> Reply | None:
    try:
        return json.loads((directory / f"rank{rank}.json").read_text())
    except (OSError, ValueError):
        return None


def pickled_command(command: dict[str, Any]) -> bytes:
    """What SGLang's unpickler takes for [(TENSOR_NAME, a uint8 tensor)], without torch. Tensors
    that torch pickles for another process are names of shared memory, which ends with the
    sender."""
    data = json.dumps(command).encode()
    name = TENSOR_NAME.encode()
    values = b"".join(b"K" + bytes([value]) for value in data)
    tensor = b"ctorch\nByteTensor\n" + b"](" + values + b"e" + b"\x85R"
    return b"\x80\x02](" + b"X" + struct.pack("<I", len(name)) + name + tensor + b"\x86e."

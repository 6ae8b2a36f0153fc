# SPDX-License-Identifier: Apache-2.0
"""SGLang: the receiver inside its workers, and a driver for a server.

    python -m sglang.launch_server ... --custom-weight-loader driftless.engines.sglang.load

SGLang calls load() on every rank of every pipeline stage when /update_weights_from_tensor names it.
The tensor is no weight: it carries a command (JSON as uint8), so staging and commits need no other
interface of SGLang. SGLang returns nothing from a loader, so answers are files in a directory that
the driver makes; the driver therefore runs on the engine's host, as the same user. A command
carries only names that the engine's operator allowed at start, never paths or settings
(allowed.py).

    driver = follow("http://127.0.0.1:30000", "host_shm:NAME")
    while training:
        driver.update(60)          # stages while requests run; commits on all ranks, or on none

An exception in a loader ends the server, so load() never raises. Ranks do not wait for each other:
the driver compares the answers of all ranks, and takes a commit back if they differ.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from .. import _native
from . import allowed, drive
from .rank_receiver import RankReceiver, Reply, text_of
from .target import EngineTarget, checkpoint_directory

if TYPE_CHECKING:
    from .load_layout import LoadLayout

LOADER = "driftless.engines.sglang.load"
# SGLang's tag for the memory of its weights.
WEIGHTS = "weights"


# --- in the workers -------------------------------------------------------------------------------


def load(model: Any, named_tensors: Sequence[tuple[str, Any]]) -> None:
    """Executes the commands in the tensors. Failures are in the answers."""
    for _, tensor in named_tensors:
        try:
            command = json.loads(bytes(tensor.cpu().tolist()))
            obey(model, command, global_rank())
        except Exception as problem:  # noqa: BLE001  an exception would end the server
            print(f"driftless: a command could not be answered: {text_of(problem)}", flush=True)


def global_rank() -> int:
    """The rank among all tensor-parallel ranks of all pipeline stages."""
    import torch.distributed

    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def obey(model: Any, command: dict[str, Any], rank: int) -> None:
    receiver = receiver_of(model, rank)
    # The reply to a pure query goes to its caller, not to the driver.
    if command["phase"] in ("shares", "read") or command.get("quiet"):
        where = allowed.answer_directory(command["answers"], allowed.shm_dir(allowed.settings()))
        Answers(where).write(query(receiver, command, str(command.get("nonce", ""))))
        return
    if "answers" in command:
        answer_to(receiver, command["answers"])
    answers: Answers = receiver.answers  # type: ignore[attr-defined]
    with answers.turn:  # the thread of stage() writes its answer after this one
        answers.write(run(receiver, command, str(command.get("nonce", ""))))


def query(receiver: RankReceiver, command: dict[str, Any], nonce: str) -> Reply:
    if command["phase"] == "status":
        return receiver.status(nonce)
    if command["phase"] == "shares":
        return receiver.shares(bool(command.get("sweep")), nonce)
    places = int(command.get("first", 0)), int(command.get("units", 0))
    return receiver.read(str(command.get("tensor", "")), *places, nonce)


def receiver_of(model: Any, rank: int) -> RankReceiver:
    made = model.__dict__.get("_driftless_receiver")
    if made is None:

        given = allowed.settings()

        def make_target(chunk_bytes: int) -> EngineTarget:
            from . import ModuleTarget

            return ModuleTarget(model, base=given.get("base") or base_of_server(),
                                run=given.get("run"), version=given.get("version", 0),
                                chunk_bytes=chunk_bytes, placement=experts,
                                load_layout=load_layout(model), rank=rank)  # fmt: skip

        made = model.__dict__["_driftless_receiver"] = RankReceiver(rank, make_target, given)
        with contextlib.suppress(ImportError):  # older releases
            from sglang.srt.utils.torch_memory_saver_adapter import TorchMemorySaverAdapter

            note_releases(TorchMemorySaverAdapter.__subclasses__(), made, keeps_weights)
    return made


def load_layout(model: Any) -> LoadLayout:
    """SGLang marks a scale if it requantized its weights to powers of two (DeepGEMM). It keeps
    weights of that rule unchanged, and no others."""

    def only_rule(parameter: str) -> str:
        owner, _, _ = parameter.rpartition(".")
        parameters = model.get_submodule(owner)._parameters.values()
        return "ue8m0" if any(getattr(p, "format_ue8m0", False) for p in parameters) else ""

    from .load_layout import LoadLayout

    return LoadLayout(only_rule=only_rule)


def note_releases(
    savers: Sequence[type], receiver: RankReceiver, kept: Callable[[], bool]
) -> None:
    """Notifies the receiver when SGLang releases the memory of its weights
    (/release_memory_occupation), and when SGLang has allocated it again. `savers`: the classes that
    do this; `kept`: whether SGLang also restores the values."""
    for saver in savers:
        receivers = saver.__dict__.get("_driftless_receivers")
        if receivers is None:
            receivers = saver._driftless_receivers = WeakSet()  # type: ignore[attr-defined]
            saver.pause = _notifying(saver.pause, receivers, kept)  # type: ignore[attr-defined]
            saver.resume = _notifying(saver.resume, receivers, None)  # type: ignore[attr-defined]
        receivers.add(receiver)


def _notifying(method: Any, receivers: Any, kept: Callable[[], bool] | None) -> Any:
    """With `kept`, wraps pause(): the receivers are notified before it runs. Without, wraps
    resume(): they are notified after it."""

    @wraps(method)
    def notify(self: Any, *args: Any, **named: Any) -> Any:
        weights = (args[0] if args else named.get("tag")) in (None, WEIGHTS)
        if weights and kept is not None:
            for each in receivers:
                each.note_sleep(1 if kept() or not self.enabled else 2)
        done = method(self, *args, **named)
        if weights and kept is None:
            for each in receivers:
                each.note_wake()
        return done

    return notify


def keeps_weights() -> bool:
    """Whether the server was started with --enable-weights-cpu-backup."""
    return bool(getattr(server_args(), "enable_weights_cpu_backup", False))


def answer_to(receiver: RankReceiver, token: Any) -> None:
    """Directs answers to the last driver that sent a command."""
    directory = allowed.answer_directory(token, allowed.shm_dir(allowed.settings()))
    answers = getattr(receiver, "answers", None)
    if answers is None or answers.directory != directory:
        receiver.answers = Answers(directory)  # type: ignore[attr-defined]
        receiver.on_staged(receiver.answers.write_in_turn)  # type: ignore[attr-defined]


def run(receiver: RankReceiver, command: dict[str, Any], nonce: str) -> Reply:
    phase, ticket = command["phase"], str(command.get("ticket", ""))
    if phase == "open":
        return receiver.open_allowed(
            command.get("source"), nonce, str(command.get("take_over", ""))
        )
    if phase == "stage":
        return receiver.stage(nonce, float(command["timeout_s"]), ticket)
    if phase == "commit":
        return receiver.commit(int(command["version"]), nonce, ticket)
    if phase == "rollback":
        return receiver.rollback(int(command["version"]), nonce)
    if phase == "close":
        return receiver.close(nonce)
    return receiver.status(nonce)


def server_args() -> Any:
    try:
        from sglang.srt.runtime_context import get_server_args
    except ImportError:  # older releases
        from sglang.srt.server_args import get_global_server_args as get_server_args
    return get_server_args()


def base_of_server() -> str:
    """The checkpoint that the server was started from."""
    args = server_args()
    return checkpoint_directory(args.model_path, getattr(args, "revision", None))


def experts() -> Any:
    """The expert in each slot, per layer; the loader uses the same table."""
    try:
        from sglang.srt.eplb.expert_location import get_global_expert_location_metadata
    except ImportError:
        return None
    found = get_global_expert_location_metadata()
    return getattr(found, "physical_to_logical_map_cpu", None)


class Answers:
    """Writes a rank's newest answer: atomically, and never an older one over a newer."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.turn = directory, threading.Lock()

    def write(self, reply: Reply) -> None:
        with contextlib.suppress(OSError):  # the driver is gone
            path = self.directory / f"rank{reply['rank']}.json"
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps(reply))
            fresh.replace(path)

    def write_in_turn(self, reply: Reply) -> None:
        with self.turn:
            self.write(reply)


# --- driving it -----------------------------------------------------------------------------------


def follow(
    url: str,
    source: str | None = None,
    shm_dir: str | None = None,
    timeout_s: float = 120.0,
    token: str = "",
) -> drive.Driver:
    """A driver whose engine follows `source`: an agent of its host ("host_shm:NAME"), or a
    configuration that its operator allowed (allowed.py). `shm_dir`: the engine's host_shm_dir;
    `timeout_s`: per call. Requests in flight are retracted during a commit: they continue with the
    new weights, and their caches are computed again."""
    answers = shm_dir or allowed.shm_dir(allowed.settings())
    native = _native.EngineDriver.sglang(
        url, source, timeout_s, token, loader=LOADER, shm_dir=answers
    )
    driver = drive.Driver(native)
    driver.open()
    return driver

# SPDX-License-Identifier: Apache-2.0
"""SGLang: the receiver inside its workers, and a driver for a server.

    python -m sglang.launch_server ... --custom-weight-loader driftless.engines.sglang.load

SGLang calls load() on every rank of every pipeline stage when /update_weights_from_tensor names it. The tensor is no
weight: it carries a command (JSON in uint8), so that staging and commits need nothing of SGLang but
this. Answers come by files in a directory that the driver made, because SGLang has no way back from
a loader; so the driver runs on the engine's host, as its user. A command names what the engine's
operator allowed at start, and holds neither paths nor settings (allowed.py).

    driver = follow("http://127.0.0.1:30000", "host_shm:NAME")
    while training:
        driver.update(60)          # staged while requests run; all ranks, or none

A loader that raises takes the server down with it. load() never does. Ranks do not wait for each
other: the driver compares what all of them answer, and takes a commit back if they differ.
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
# SGLang's name for the memory of its weights.
WEIGHTS = "weights"


# --- in the workers -------------------------------------------------------------------------------


def load(model: Any, named_tensors: Sequence[tuple[str, Any]]) -> None:
    """Obeys the commands that the tensors carry. Whatever happens is in the answers."""
    for _, tensor in named_tensors:
        try:
            command = json.loads(bytes(tensor.cpu().tolist()))
            obey(model, command, global_rank())
        except Exception as problem:  # noqa: BLE001  an exception would end the server
            print(f"driftless: a command could not be answered: {text_of(problem)}", flush=True)


def global_rank() -> int:
    """Over all tensor-parallel ranks of all pipeline stages."""
    import torch.distributed

    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def obey(model: Any, command: dict[str, Any], rank: int) -> None:
    receiver = receiver_of(model, rank)
    # Whoever only asks: the driver's answers stay there.
    if command["phase"] in ("shares", "read") or command.get("quiet"):
        where = allowed.answer_directory(command["answers"], allowed.shm_dir(allowed.settings()))
        Answers(where).write(tell(receiver, command, str(command.get("nonce", ""))))
        return
    if "answers" in command:
        answer_to(receiver, command["answers"])
    answers: Answers = receiver.answers  # type: ignore[attr-defined]
    with answers.turn:  # the thread that stage() starts answers after this
        answers.write(run(receiver, command, str(command.get("nonce", ""))))


def tell(receiver: RankReceiver, command: dict[str, Any], nonce: str) -> Reply:
    if command["phase"] == "status":
        return receiver.status(nonce)
    if command["phase"] == "shares":
        return receiver.shares(bool(command.get("sweep")), nonce)
    places = int(command.get("first", 0)), int(command.get("units", 0))
    return receiver.read(str(command.get("tensor", "")), *places, nonce)


def receiver_of(model: Any, rank: int) -> RankReceiver:
    made = model.__dict__.get("_driftless_follower")
    if made is None:

        given = allowed.settings()

        def make_target(chunk_bytes: int) -> EngineTarget:
            from . import ModuleTarget

            return ModuleTarget(model, base=given.get("base") or base_of_server(),
                                run=given.get("run"), version=given.get("version", 0),
                                chunk_bytes=chunk_bytes, placement=experts,
                                load_layout=load_layout(model), rank=rank)  # fmt: skip

        made = model.__dict__["_driftless_follower"] = RankReceiver(rank, make_target, given)
        with contextlib.suppress(ImportError):  # older releases
            from sglang.srt.utils.torch_memory_saver_adapter import TorchMemorySaverAdapter

            note_releases(TorchMemorySaverAdapter.__subclasses__(), made, keeps_weights)
    return made


def load_layout(model: Any) -> LoadLayout:
    """SGLang notes at a scale whether it requantized the weights to powers of two (DeepGEMM): it
    leaves those of the closed rule as they are, and no others."""

    def only_rule(parameter: str) -> str:
        owner, _, _ = parameter.rpartition(".")
        parameters = model.get_submodule(owner)._parameters.values()
        return "ue8m0" if any(getattr(p, "format_ue8m0", False) for p in parameters) else ""

    from .load_layout import LoadLayout

    return LoadLayout(only_rule=only_rule)


def note_releases(
    savers: Sequence[type], follower: RankReceiver, kept: Callable[[], bool]
) -> None:
    """The follower is told when SGLang gives the memory of its weights back
    (/release_memory_occupation), and when it has it again. `savers`: the classes by which it does;
    `kept`: whether the values come back, too."""
    for saver in savers:
        followers = saver.__dict__.get("_driftless_followers")
        if followers is None:
            followers = saver._driftless_followers = WeakSet()  # type: ignore[attr-defined]
            saver.pause = _told(saver.pause, followers, kept)  # type: ignore[attr-defined]
            saver.resume = _told(saver.resume, followers, None)  # type: ignore[attr-defined]
        followers.add(follower)


def _told(method: Any, followers: Any, kept: Callable[[], bool] | None) -> Any:
    """Of pause() they hear before, with `kept`; of resume() afterwards."""

    @wraps(method)
    def told(self: Any, *args: Any, **named: Any) -> Any:
        weights = (args[0] if args else named.get("tag")) in (None, WEIGHTS)
        if weights and kept is not None:
            for each in followers:
                each.note_sleep(1 if kept() or not self.enabled else 2)
        done = method(self, *args, **named)
        if weights and kept is None:
            for each in followers:
                each.note_wake()
        return done

    return told


def keeps_weights() -> bool:
    """The server was started with --enable-weights-cpu-backup."""
    return bool(getattr(server_args(), "enable_weights_cpu_backup", False))


def answer_to(receiver: RankReceiver, token: Any) -> None:
    """Answers go to the driver that asked last."""
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
    """The checkpoint that this server was started with."""
    args = server_args()
    return checkpoint_directory(args.model_path, getattr(args, "revision", None))


def experts() -> Any:
    """Which expert is in which slot, of every layer; the loader asks the same table."""
    try:
        from sglang.srt.eplb.expert_location import get_global_expert_location_metadata
    except ImportError:
        return None
    found = get_global_expert_location_metadata()
    return getattr(found, "physical_to_logical_map_cpu", None)


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


def follow(
    url: str,
    source: str | None = None,
    shm_dir: str | None = None,
    timeout_s: float = 120.0,
    token: str = "",
) -> drive.Driver:
    """A driver whose engine follows `source`: an agent of its host ("host_shm:NAME"), or a
    configuration that its operator allowed (allowed.py). `shm_dir`: the engine's host_shm_dir;
    `timeout_s`: for one call. Requests in flight are retracted during a commit: they go on with the
    new weights, their caches computed again."""
    answers = shm_dir or allowed.shm_dir(allowed.settings())
    native = _native.EngineDriver.sglang(
        url, source, timeout_s, token, loader=LOADER, shm_dir=answers
    )
    driver = drive.Driver(native)
    driver.open()
    return driver

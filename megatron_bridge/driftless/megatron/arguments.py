# SPDX-License-Identifier: Apache-2.0
"""The command-line flags, which become settings of `driftless.Config` and of the hook.

Flags are off by default. A given flag overrides the file of `--update-weight-config`.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import MapError

MODES = ("full", "delta")
# The settings that a transport implies. On mpi_rma, rollouts that start without weights get version
# 0 as a full version.
TRANSPORTS: dict[str, dict[str, str]] = {
    "nccl": {"road.kind": "nccl"},
    "mpi_rma": {"road.kind": "mpi_rma", "anchors.first": "true"},
    "disk": {"road.kind": "shared_fs"},
    # Rollouts that join later start from the newest anchor.
    "peer": {"road.kind": "peer", "snapshot": "none", "anchors.first": "true", "anchors.every": "16"},
}
ENCODINGS = ("indices", "deltas", "deltas_zstd", "compact")
DELTA_ENCODINGS = ("xor", "overwrite")
CHECKSUMS = ("xxh3-128", "blake3", "adler32")
QUANTIZATIONS = ("auto", "none", "fp8_block", "int4_group")
SNAPSHOTS = ("none", "host", "pinned", "device")

# Flags for the receiving side: their names in parsed arguments, and the keys of a rollout's config.
_RECEIVING = (
    ("update_weight_delta_chunk_bytes", "--update-weight-delta-chunk-bytes", "receiver.chunk_size"),
    (
        "update_weight_delta_read_workers",
        "--update-weight-delta-read-workers",
        "receiver.read_workers",
    ),
    ("custom_delta_pre_read_path", "--custom-delta-pre-read-path", "road.shared_fs.before_read"),
    (
        "update_weight_local_checkpoint_dir",
        "--update-weight-local-checkpoint-dir",
        "receiver.checkpoint_dir",
    ),
)

Hook = Callable[..., Any]


def add_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the flags to a parser, and returns it; also works as `extra_args_provider` of
    Megatron-LM. Wrong flags raise once the parser has parsed them."""
    group = parser.add_argument_group("weight updates (driftless)")
    add = group.add_argument
    add(
        "--update-weight-mode",
        choices=MODES,
        help="Send every new version of the weights to the rollout engines: as changes (delta) or "
        "whole (full). Off unless this or --update-weight-config is given.",
    )
    add(
        "--update-weight-transport",
        choices=tuple(TRANSPORTS),
        help="nccl: broadcast; mpi_rma: rollouts of the same mpirun read from memory; disk: files; "
        "peer: as --use-p2p-weight-update.",
    )
    add(
        "--use-p2p-weight-update",
        action="store_true",
        help="Every rank serves, from its memory, the changes that its own optimizer makes, and each "
        "rollout reads what it needs from the rank that holds it. Nothing is gathered. With "
        "--update-weight-disk-dir, versions go through that directory if peer-to-peer reads fail.",
    )
    add(
        "--update-weight-hub-address",
        metavar="HOST:PORT",
        help="peer: the address on which the leader listens. Default: MASTER_ADDR, port 27315.",
    )
    add(
        "--update-weight-token-file",
        metavar="FILE",
        help="peer: file with the run's secret, readable by its owner only.",
    )
    add(
        "--update-weight-encoding",
        choices=ENCODINGS,
        help="Encoding of changes: positions and values.",
    )
    add(
        "--update-weight-delta-encoding",
        choices=DELTA_ENCODINGS,
        help="Encoding of changes for engines that read a Hugging Face delta directory (disk).",
    )
    add(
        "--update-weight-delta-checksum",
        choices=CHECKSUMS,
        help="Checksum of every changed tensor, in the layouts that have them.",
    )
    add(
        "--update-weight-disk-dir",
        "--update-weight-delta-dir",
        dest="update_weight_disk_dir",
        metavar="DIR",
        help="disk, and fallback of peer: a directory that trainer and rollouts share.",
    )
    add(
        "--update-weight-local-checkpoint-dir",
        metavar="DIR",
        help="The checkpoint on a rollout's host that is patched in place; {rank} becomes the rank.",
    )
    add(
        "--update-weight-buffer-size",
        metavar="SIZE",
        help="Size of a bucket: 67108864 or 64MiB.",
    )
    add(
        "--update-weight-delta-chunk-bytes",
        "--sglang-update-weight-delta-chunk-bytes",
        "--vllm-update-weight-delta-chunk-bytes",
        dest="update_weight_delta_chunk_bytes",
        type=int,
        metavar="BYTES",
        help="How many bytes of full-shape tensors an engine's own loader gets at a time, if "
        "parameters cannot be written in place (default 512 MiB).",
    )
    add(
        "--update-weight-delta-read-workers",
        "--sglang-update-weight-delta-read-workers",
        "--vllm-update-weight-delta-read-workers",
        dest="update_weight_delta_read_workers",
        type=int,
        metavar="N",
        help="How many parts of a version the agent of a rollout host reads and decodes at a time.",
    )
    add(
        "--update-weight-disk-keep-files",
        "--update-weight-delta-keep-files",
        dest="update_weight_disk_keep_files",
        action="store_true",
        help="disk: keep versions after all notified engines have acknowledged them.",
    )
    add(
        "--update-weights-interval",
        type=int,
        default=1,
        metavar="N",
        help="Publish after every N optimizer steps.",
    )
    add(
        "--update-weight-config",
        metavar="FILE.yaml",
        help="A configuration file of driftless; the other flags override it.",
    )
    add(
        "--update-weight-hf-checkpoint",
        metavar="DIR",
        help="The Hugging Face checkpoint that the rollouts start from. Its config.json names the "
        "model; its weights, if present, are version 0. Default: the model's current weights.",
    )
    add(
        "--update-weight-snapshot",
        choices=SNAPSHOTS,
        help="none: every rank publishes the changes of its own optimizer, and keeps no copy of the "
        "weights. host, pinned, device: the source rank of each pipeline stage gathers its tensors "
        "and compares them with a copy there. Default: none if the optimizer is known.",
    )
    add(
        "--update-weight-quantization",
        choices=QUANTIZATIONS,
        help="How bfloat16 weights become those of --update-weight-hf-checkpoint. auto: in FP8 "
        "blocks or INT4 groups if that checkpoint has them, else unchanged. none: unchanged. "
        "fp8_block, int4_group: it must have this scheme. The rule is quantize.rule in "
        "--update-weight-config. Default: auto.",
    )
    add(
        "--update-weight-wait",
        action="store_true",
        help="step() returns after the version is visible. Default: with --update-weight-snapshot "
        "none, publishing continues during the next step once the changes are known.",
    )
    add(
        "--update-weight-strict",
        action="store_true",
        help="End training if a weight update fails. Default: report every failure and continue.",
    )
    add(
        "--update-weight-on-record",
        metavar="MODULE.FUNCTION",
        help="Called on the leader as f(record) with the record of each version, a flat dict.",
    )
    add(
        "--custom-delta-pre-push-path",
        "--custom-update-weight-post-write-path",
        dest="custom_delta_pre_push_path",
        metavar="MODULE.FUNCTION",
        help="disk: called as f(args, version_dir, engines) on every publishing rank after it wrote "
        "its files of a version, before the version is visible.",
    )
    add(
        "--custom-delta-pre-read-path",
        "--sglang-custom-pull-weights-pre-read-hook",
        dest="custom_delta_pre_read_path",
        metavar="MODULE.FUNCTION",
        help="disk: called as f(dir, version) on a rollout before it reads a version.",
    )
    try:
        add(
            "--colocate",
            action="store_true",
            help="Trainer and engines share their GPUs. Excludes mode delta.",
        )
    except argparse.ArgumentError:
        pass  # the training script already has the flag
    _check_when_parsed(parser)
    return parser  # fmt: skip


def _check_when_parsed(parser: argparse.ArgumentParser) -> None:
    """Checks all that is known after parsing, in a trainer or a rollout."""
    inner = parser.parse_known_args

    @functools.wraps(inner)
    def parse(*args: Any, **kwargs: Any) -> Any:
        found = inner(*args, **kwargs)
        options = options_from(found[0])
        if options is not None:
            before_read(options, load_config(options))
        return found

    parser.parse_known_args = parse  # type: ignore[method-assign]


@dataclass(frozen=True)
class Options:
    """The hook's own options."""

    config_file: str | None = None
    overrides: tuple[str, ...] = ()
    interval: int = 1
    strict: bool = False
    hf_checkpoint: str | None = None
    pre_push: Hook | None = None
    pre_read: Hook | None = None
    on_record: Hook | None = None
    wait: bool = False
    snapshot: str | None = None  # None: "none" if possible
    colocate: bool = False  # load_config() checks it: the mode may be in the file
    receiving: tuple[tuple[str, str], ...] = ()  # flags for rollouts, with their configuration keys
    notes: tuple[str, ...] = field(default=())


def options_from(args: Any) -> Options | None:
    """The options in parsed arguments; None if updates are off. Raises if flags are wrong."""

    def flag(name: str) -> Any:
        return getattr(args, name, None)

    mode, config_file = flag("update_weight_mode"), flag("update_weight_config")
    if mode is None and config_file is None:
        _refuse_unused(flag)
        return None
    _check(flag, mode, config_file)
    overrides = _overrides(flag, mode, config_file)
    return Options(
        config_file=config_file,
        overrides=tuple(overrides),
        interval=flag("update_weights_interval") or 1,
        strict=bool(flag("update_weight_strict")),
        hf_checkpoint=flag("update_weight_hf_checkpoint"),
        pre_push=_load(flag("custom_delta_pre_push_path"), "--custom-delta-pre-push-path"),
        pre_read=_load(flag("custom_delta_pre_read_path"), "--custom-delta-pre-read-path"),
        on_record=_load(flag("update_weight_on_record"), "--update-weight-on-record"),
        wait=bool(flag("update_weight_wait")),
        snapshot=flag("update_weight_snapshot"),
        colocate=bool(flag("colocate")),
        receiving=tuple((text, key) for name, text, key in _RECEIVING if flag(name) is not None),
    )


def load_config(options: Options, more: Sequence[str] = ()) -> Any:
    """The `driftless.Config` for these options; a rollout with the same flags gets the same."""
    import driftless

    overrides = [*options.overrides, *more]
    if options.config_file is None:
        config = driftless.Config.parse("mode: delta\n", overrides)
    else:
        config = driftless.Config.load(options.config_file, overrides)
    if options.colocate:
        _refuse_colocated(config.settings()["mode"])
    return config


def before_read(options: Options, config: Any) -> Callable[[int], Any] | None:
    """The `before_read` argument of driftless.Receiver for these options: the hook of
    --custom-delta-pre-read-path, called as f(dir, version). None if there is none."""
    hook = options.pre_read
    if hook is None:
        return None
    directory = config.directory
    if directory is None:
        raise MapError(f"--custom-delta-pre-read-path is for transport disk, not {config.road}")
    return lambda version: hook(directory, version)


def _refuse_unused(flag: Callable[[str], Any]) -> None:
    names = ("transport", "encoding", "delta_encoding", "disk_dir", "delta_checksum", "buffer_size",
             "disk_keep_files", "hf_checkpoint", "snapshot", "quantization", "wait", "strict",
             "on_record", "hub_address", "token_file")  # fmt: skip
    given = [f"--update-weight-{n.replace('_', '-')}" for n in names if flag(f"update_weight_{n}")]
    if flag("use_p2p_weight_update"):
        given.append("--use-p2p-weight-update")
    given += [text for name, text, _ in _RECEIVING if flag(name) is not None]
    if flag("custom_delta_pre_push_path") is not None:
        given.append("--custom-delta-pre-push-path")
    if given:
        raise MapError(
            f"{given[0]} has no effect without --update-weight-mode or --update-weight-config"
        )


def _refuse_colocated(mode: str | None) -> None:
    if mode == "full":
        return
    raise MapError(
        "--colocate excludes --update-weight-mode delta: engines on the trainer's own GPUs get "
        "its weights by a handle and nothing is sent, so a snapshot and a comparison would only cost "
        "memory and time"
    )


def _transport(flag: Callable[[str], Any]) -> str | None:
    return "peer" if flag("use_p2p_weight_update") else flag("update_weight_transport")


def _check_peer(flag: Callable[[str], Any], config_file: str | None) -> None:
    given = flag("update_weight_transport")
    if flag("use_p2p_weight_update") and given not in (None, "peer"):
        raise MapError(f"--use-p2p-weight-update selects transport peer, not {given}")
    if _transport(flag) != "peer":
        for name in ("hub_address", "token_file"):
            if flag(f"update_weight_{name}") is not None and config_file is None:
                text = name.replace("_", "-")
                raise MapError(f"--update-weight-{text} is for --use-p2p-weight-update")
        return
    if flag("update_weight_token_file") is None and config_file is None:
        raise MapError(
            "--use-p2p-weight-update needs --update-weight-token-file: (umask 077; openssl rand "
            "-hex 32 > FILE) makes one"
        )
    if flag("update_weight_snapshot") not in (None, "none"):
        raise MapError(
            "--use-p2p-weight-update publishes from every rank, without a snapshot: leave "
            "--update-weight-snapshot out"
        )


def _check(flag: Callable[[str], Any], mode: str | None, config_file: str | None) -> None:
    _check_peer(flag, config_file)
    transport, disk = _transport(flag), flag("update_weight_disk_dir")
    if flag("colocate") and (mode is not None or config_file is None):
        _refuse_colocated(mode)
    if flag("update_weights_interval") is not None and flag("update_weights_interval") < 1:
        raise MapError("--update-weights-interval is at least 1")
    if flag("update_weight_encoding") and flag("update_weight_delta_encoding"):
        raise MapError(
            "--update-weight-encoding and --update-weight-delta-encoding exclude each other: the "
            "one is for frames and flush files, the other for Hugging Face delta directories"
        )
    if transport == "disk" and not disk and config_file is None:
        raise MapError("--update-weight-transport disk needs --update-weight-disk-dir")
    if transport == "peer" and not flag("update_weight_delta_encoding"):
        return
    if transport not in (None, "disk") and (disk or flag("update_weight_delta_encoding")):
        raise MapError(
            f"--update-weight-disk-dir and --update-weight-delta-encoding are for transport disk, "
            f"not {transport}"
        )


def _overrides(flag: Callable[[str], Any], mode: str | None, config_file: str | None) -> list[str]:
    transport, disk = _transport(flag), flag("update_weight_disk_dir")
    if transport is None and config_file is None:
        transport = "disk" if disk else "mpi_rma"
    encoding = flag("update_weight_delta_encoding")
    layout = "hf_delta" if encoding else None
    local = flag("update_weight_local_checkpoint_dir")
    settings = {
        "mode": mode,
        **TRANSPORTS.get(transport or "", {}),
        "hub.address": flag("update_weight_hub_address"),
        "hub.token_file": flag("update_weight_token_file"),
        "road.peer.fallback": "shared_fs" if transport == "peer" and disk else None,
        "road.shared_fs.dir": disk,
        "road.layout": layout,
        "encoding": encoding or flag("update_weight_encoding"),
        "checksum": flag("update_weight_delta_checksum"),
        "buffer_size": flag("update_weight_buffer_size"),
        **({"snapshot": snapshot} if (snapshot := flag("update_weight_snapshot")) else {}),
        "quantize.scheme": flag("update_weight_quantization"),
        "receiver.target": "checkpoint" if local else None,
        "receiver.checkpoint_dir": local,
        "receiver.chunk_size": flag("update_weight_delta_chunk_bytes"),
        "receiver.read_workers": flag("update_weight_delta_read_workers"),
        "notify.cleanup": "false" if flag("update_weight_disk_keep_files") else None,
        "road.assets_dir": flag("update_weight_hf_checkpoint") if layout else None,
    }
    if config_file is not None:
        settings.pop("anchors.first", None)  # those of the file apply
        settings.pop("anchors.every", None)
    return [f"{key}={value}" for key, value in settings.items() if value is not None]


@functools.cache  # flags are read more than once, but each file runs once
def _load(path: str | None, flag: str) -> Hook | None:
    """`package.module.function`, or `file.py:function`."""
    if path is None:
        return None
    try:
        if ".py:" in path:
            file, name = path.rsplit(":", 1)
            module_name = os.path.splitext(os.path.basename(file))[0]
            spec = importlib.util.spec_from_file_location(module_name, file)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module_path, name = path.rsplit(".", 1)
            module = importlib.import_module(module_path)
        found = getattr(module, name)
    except Exception as failure:
        raise MapError(f"{flag}: {path}: {failure}") from failure
    if not callable(found):
        raise MapError(f"{flag}: {path} is not a function")
    return found

# SPDX-License-Identifier: Apache-2.0
"""Checks a trainer's flags and its model's settings before a model is built.

launch.py, callback.py and scripts of users call check_arguments() as early as they can. Every
session repeats the checks.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import driftless

from . import settings as model_settings
from .arguments import Options, load_config, options_from
from .base import needs_whole_tensors
from .errors import MapError
from .map_command import read_config
from .maps import family_of

# Settings that make an optimizer write parameters elsewhere or in another way: attributes of
# Megatron's arguments and of the configurations made from them.
OPTIMIZER_WRITES_ELSEWHERE = (
    "use_precision_aware_optimizer",
    "optimizer_cpu_offload",
    "optimizer_cuda_graph",
    "reuse_grad_buf_for_mxfp8_param_ag",
    "use_megatron_fsdp",
    "use_custom_fsdp",
    "fp8_param_gather",
    "fp4_param_gather",
)


def check_arguments(args: Any, config: Any = None, hf_config: dict[str, Any] | None = None) -> None:
    """Raises if a trainer's parsed arguments are wrong; does nothing if weight updates are off.
    `config`: the model's TransformerConfig, or Megatron-Bridge's configuration; without it the
    arguments must be Megatron-LM's, validated. `hf_config`: as for attach()."""
    options = args if isinstance(args, Options) else options_from(args)
    if options is None:
        return
    check_options(options)
    known = hf_config_of(options, hf_config)
    if load_config(options).settings()["snapshot"] == "none":
        for name in OPTIMIZER_WRITES_ELSEWHERE:
            if getattr(args, name, False):
                raise MapError(f"snapshot: none is not possible: {name} is set")
    if config is not None:
        model_settings.check(model_settings.of_config(getattr(config, "model", config)), known)
    elif "megatron.training.arguments" in sys.modules and hasattr(args, "num_layers"):
        model_settings.check(model_settings.of_arguments(args), known)


def check_options(options: Options) -> None:
    """Checks the flags alone."""
    config = load_config(options)
    settings = config.settings()
    _refuse_receiving(options, settings)
    try:
        config.check_available("trainer")
    except driftless.errors.InvalidArgumentError as refused:
        raise MapError(f"{refused}; for files: --update-weight-transport disk") from refused
    if settings["snapshot"] == "none" and whole_tensors(config):
        raise MapError(f"snapshot: none is not possible: {whole_tensors(config)}")
    if settings["snapshot"] == "none" and settings["quantize.scheme"] != "none":
        reason = needs_whole_tensors(options.hf_checkpoint)
        if reason:
            raise MapError(f"snapshot: none is not possible: {reason}")
    _check_directories(options, config)


def hf_config_of(options: Options, hf_config: dict[str, Any] | None) -> dict[str, Any] | None:
    """The contents of the given config.json, whose model type must have a map. None: no config.json
    is given, and the configuration follows from the model."""
    directory = options.hf_checkpoint
    if hf_config is None and directory:
        try:
            hf_config = read_config(directory)
        except (OSError, json.JSONDecodeError) as failure:
            raise MapError(f"--update-weight-hf-checkpoint {directory}: {failure}") from failure
    if hf_config is not None:
        family_of(hf_config)
    return hf_config


def whole_tensors(config: driftless.Config) -> str | None:
    """Why the file layout makes source ranks gather tensors; None: it does not."""
    if config.takes_blocks:
        return None
    layout = config.settings()["road.layout"]
    return f"files of road.layout {layout} have whole tensors; frames and hdf5 take blocks"


def notified_engines(settings: dict[str, Any]) -> list[str]:
    """URLs of the engines that the trainer notifies of every version. Engines that an agent drives
    have no action."""
    actions = [key for key, value in settings.items() if key.endswith("].action") and value]
    return [settings[key.removesuffix("action") + "url"] for key in actions]


def _refuse_receiving(options: Options, settings: dict[str, Any]) -> None:
    notified = notified_engines(settings)
    for flag, key in options.receiving:
        if key == "receiver.checkpoint_dir" and notified:  # engines are notified of it
            continue
        raise MapError(
            f"{flag} acts on rollouts, and a trainer cannot pass it to them: set {key} in their "
            "configuration, or give them the flag"
        )


def _check_directories(options: Options, config: driftless.Config) -> None:
    given = options.hf_checkpoint
    if given and not Path(given).is_dir():
        raise MapError(f"--update-weight-hf-checkpoint {given}: there is no such directory")
    launch = driftless.launch()
    if config.directory is None or launch.rank != 0 or launch.world == 0:
        return  # rank 0 always publishes, so it alone checks
    road = Path(config.directory)
    if not road.exists() and not road.parent.is_dir():
        raise MapError(
            f"road.shared_fs.dir (--update-weight-disk-dir) {road}: {road.parent} is not there: mistyped, or "
            "not mounted?"
        )
    place = road if road.exists() else road.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise MapError(
            f"road.shared_fs.dir (--update-weight-disk-dir) {road}: {place} is not a directory "
            "that this process can write to"
        )

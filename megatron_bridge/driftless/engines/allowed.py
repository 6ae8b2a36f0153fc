# SPDX-License-Identifier: Apache-2.0
"""The configurations that an engine may follow, and where it answers. Its operator sets both at
start.

Anyone who reaches an engine's HTTP port can call the workers. So a call carries only a name:

    host_shm:NAME    the agent of that name on this host, of this user
    own              the operator's own configuration: each worker reads the road itself
    NAME             a configuration that the operator allowed
    (nothing)        the same as own

A configuration can run hooks and write files, so a call never carries its text or path. The
operator gives the settings at start, as vLLM's `--additional-config '{"driftless": {...}}'`, or,
for every engine, as JSON in the environment variable DRIFTLESS_ENGINE:

    config        path of the job's YAML file, for calls that name no configuration
    sets          KEY=VALUE settings over that file
    configs       {NAME: path}
    config_dir    a directory: NAME stands for its file NAME.yaml
    host_shm_dir  where agents of this host keep their shared memory; default /dev/shm
    base, run, version, reload      describe the engine's weights (ModuleTarget; vllm.py)
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import errors

VARIABLE = "DRIFTLESS_ENGINE"
AGENT = "host_shm:"
ENGINE_CONFIG = "own"
DEFAULT_SHM_DIR = "/dev/shm"
PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
ANSWER_TOKEN = re.compile(r"[0-9a-f]{16,64}")


@dataclass(frozen=True)
class Source:
    """Arguments of Config.read(): a file's path, or YAML text that is made here; and settings over
    it."""

    config: str
    sets: tuple[str, ...] = ()


def settings(given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The operator's settings: those of the environment, overridden by `given`."""
    text = os.environ.get(VARIABLE, "")
    try:
        found = json.loads(text) if text else {}
    except ValueError as problem:
        raise errors.InvalidArgumentError(f"{VARIABLE} is not JSON: {problem}") from None
    if not isinstance(found, dict):
        raise errors.InvalidArgumentError(f"{VARIABLE} is not a JSON object")
    return found | dict(given or {})


def source_of(name: Any, given: Mapping[str, Any]) -> Source:
    """The configuration that `name` stands for; InvalidArgumentError if it is not allowed."""
    if name is None or name in ("", ENGINE_CONFIG):
        if not given.get("config"):
            raise errors.InvalidArgumentError(
                "no configuration was named, and the engine was started without one: name an agent "
                f'({AGENT}NAME), or start the engine with {VARIABLE}=\'{{"config": "job.yaml"}}\''
            )
        return Source(str(given["config"]), tuple(map(str, given.get("sets", ()))))
    if isinstance(name, str) and name.startswith(AGENT):
        return agent_source(name.removeprefix(AGENT), given)
    path = allowed_path(name, given)
    if path is None:
        raise errors.InvalidArgumentError(
            f"{shown(name)} is not a configuration that the engine's operator allowed: "
            f"expected {AGENT}NAME of an agent, or one of {VARIABLE}'s configs or config_dir"
        )
    return Source(path)


def agent_source(agent: str, given: Mapping[str, Any]) -> Source:
    if not PLAIN_NAME.fullmatch(agent):
        raise errors.InvalidArgumentError(
            f"{shown(agent)} is not an agent's name: expected letters, digits, '.', '_' and '-'"
        )
    road = {"kind": "host_shm", "host_shm": {"name": agent, "dir": shm_dir(given)}}
    return Source(json.dumps({"road": road}))  # JSON is YAML


def allowed_path(name: Any, given: Mapping[str, Any]) -> str | None:
    if not isinstance(name, str) or not PLAIN_NAME.fullmatch(name):
        return None
    configs = given.get("configs")
    if isinstance(configs, Mapping) and name in configs:
        return str(configs[name])
    if not given.get("config_dir"):
        return None
    path = Path(str(given["config_dir"])) / f"{name}.yaml"
    return str(path) if path.is_file() else None


def shm_dir(given: Mapping[str, Any]) -> str:
    return str(given.get("host_shm_dir") or DEFAULT_SHM_DIR)


# --- answers in files, for engines that offer no other way back -----------------------------------


def answer_directory(token: Any, directory: str) -> Path:
    """The directory where the driver `token` reads answers. Only this user may have access to
    it."""
    if not isinstance(token, str) or not ANSWER_TOKEN.fullmatch(token):
        raise errors.InvalidArgumentError(f"{shown(token)} is not the token of a driver")
    path = Path(directory) / f"driftless-{os.geteuid()}-answers-{token}"
    try:
        found = path.lstat()
    except OSError as problem:
        raise errors.InvalidArgumentError(
            f"{path}: {problem.strerror}: the driver must run on this host, as this user"
        ) from None
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not mine or found.st_mode & 0o077:
        raise errors.InvalidArgumentError(
            f"{path}: expected a directory that only this user can access"
        )
    return path


def shown(value: Any) -> str:
    """Untrusted text, shortened and on one line."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."

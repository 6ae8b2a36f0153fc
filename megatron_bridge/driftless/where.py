# SPDX-License-Identifier: Apache-2.0
"""Parses the `where` argument of publish() and follow()."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from ._native import Config
from .errors import InvalidArgumentError

Where = str | os.PathLike[str] | Config

_BUCKETS = ("s3://", "hf://", "http://", "https://")


def config_of(where: Where, overrides: Sequence[str] = ()) -> Config:
    """`where`: a directory that both sides can reach, s3://bucket/prefix, hf://user/bucket/prefix
    (in follow() also http(s)://host/path), a configuration file, or a Config. A path names a file
    if the file exists, or if it has a configuration's suffix. `overrides`: key=value over it."""
    if isinstance(where, Config):
        if overrides:
            raise InvalidArgumentError("overrides= is for an address or a file, not for a Config")
        return where
    place = os.fspath(where)
    if place.startswith(_BUCKETS):
        return Config.parse(_text("object_store", "url", place), [*overrides])
    scheme, found, _ = place.partition("://")
    if not place or (found and scheme.isalnum()):
        raise InvalidArgumentError(
            f"'{place}' cannot hold a run: give a directory, s3://bucket/prefix, "
            "hf://user/bucket/prefix, or a configuration's file (for another "
            "S3-compatible store: s3:// and overrides=['road.object_store.endpoint=URL'])"
        )
    if os.path.isfile(place) or place.endswith((".yaml", ".yml")):
        return Config.load(place, [*overrides])
    return Config.parse(_text("shared_fs", "dir", place), [*overrides])


def _text(kind: str, key: str, value: str) -> str:
    """One line of YAML. JSON is a subset of YAML, so any text is quoted correctly."""
    return json.dumps({"road": {"kind": kind, "layout": "frames", kind: {key: value}}})


def in_mpi(config: Config) -> bool | None:
    """The argument `launched` of a Job. False: the road needs no MPI, so the process does not join
    MPI even under mpirun. None: the launcher decides."""
    return False if config.takes_groups else None

# SPDX-License-Identifier: Apache-2.0
"""HTTP calls with JSON in and out, by the native library: one deadline for the whole call, at most
1 MiB of answer, no redirects, no proxy of the environment."""

from __future__ import annotations

import json
from typing import Any

from .. import _native, errors


class NoSuchRoute(errors.IoError):
    """A server that does not know the path, as older releases of an engine."""


def request(
    url: str, body: Any, method: str, timeout_s: float, token: str = "", plain: bool = False
) -> dict[str, Any]:
    """The server's answer, a JSON object; IoError with its words if it refuses, is not there, or
    answers with something else. `plain`: an answer in plain text is taken for {"text": ...}."""
    data = None if method == "GET" else json.dumps({} if body is None else body)
    status, answer = _native.http_call(url, data, timeout_s, token)
    text = answer.decode(errors="replace")
    what = f"{method} {url}"
    if 300 <= status <= 399:
        raise errors.IoError(
            f"{what}: HTTP {status}: a redirect, which is not followed: name the engine's own address"
        )
    if not 200 <= status <= 299:
        kind = NoSuchRoute if status == 404 else errors.IoError
        raise kind(f"{what}: HTTP {status}: {text[:2000]}")
    if not text.strip():
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    if plain:
        return {"text": text}
    raise errors.IoError(f"{what}: expected a JSON object, found {text[:200]!r}")

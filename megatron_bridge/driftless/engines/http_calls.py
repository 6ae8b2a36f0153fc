"""HTTP calls with JSON in and out, by the standard library."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from .. import errors


class NoSuchRoute(errors.IoError):
    """A server that does not know the path, as older releases of an engine."""


def request(url: str, body: Any, method: str, timeout_s: float) -> dict[str, Any]:
    """The server's answer; IoError with its words where it refuses, or is not there."""
    data = None if body is None else json.dumps(body).encode()
    call = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(call, timeout=timeout_s) as answer:
            text = answer.read().decode(errors="replace")
    except urllib.error.HTTPError as problem:
        said = problem.read().decode(errors="replace")[:2000]
        kind = NoSuchRoute if problem.code == 404 else errors.IoError
        raise kind(f"{method} {url}: HTTP {problem.code}: {said}") from None
    except (urllib.error.URLError, OSError) as problem:
        raise errors.IoError(f"{method} {url}: {problem}") from None
    try:
        found = json.loads(text) if text.strip() else {}
    except ValueError:
        return {"text": text}
    return found if isinstance(found, dict) else {"answer": found}

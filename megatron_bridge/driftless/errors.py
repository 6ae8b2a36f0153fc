# SPDX-License-Identifier: Apache-2.0
"""The exceptions of driftless: each is an Error and a builtin, and carries the library's code.

A code names the caller's next action; docs/start/python.md lists them.
"""

from __future__ import annotations


class Error(Exception):
    """The base of all errors that driftless raises."""

    code: str = "internal"


class InvalidArgumentError(Error, ValueError):
    code = "invalid_argument"


class NotFoundError(Error, FileNotFoundError):
    code = "not_found"


class AlreadyExistsError(Error, FileExistsError):
    code = "already_exists"


class IncompleteError(Error, RuntimeError):
    code = "incomplete"


class CorruptError(Error, ValueError):
    code = "corrupt"


class WrongRunError(Error, ValueError):
    code = "wrong_run"


class WrongBaseError(Error, ValueError):
    code = "wrong_base"


class WrongLayoutError(Error, ValueError):
    code = "wrong_layout"


class MismatchError(Error, ValueError):
    code = "mismatch"


class BusyError(Error, RuntimeError):
    code = "busy"


class UnsupportedError(Error, NotImplementedError):
    code = "unsupported"


class NoSpaceError(Error, OSError):
    code = "no_space"


class IoError(Error, OSError):
    code = "io"


class DeadlineExceededError(Error, TimeoutError):
    code = "deadline_exceeded"


class InternalError(Error, RuntimeError):
    code = "internal"


_BY_CODE: dict[str, type[Error]] = {kind.code: kind for kind in Error.__subclasses__()}


def error_of(code: str, message: str) -> Error:
    """The exception for a status of the library."""
    return _BY_CODE.get(code, InternalError)(message)

"""What moonpool raises. One class per code, each named by what the caller does next.

Every error has the fields `code` ("timed_out"), `peer`, `transport`, `phase` (resolve, connect,
handshake, data, commit) and `cause` (a sentence); None where a field does not apply.
"""

from __future__ import annotations

import re

__all__ = [
    "Again",
    "AlreadyExists",
    "Cancelled",
    "Corrupt",
    "Error",
    "Exhausted",
    "InternalError",
    "InvalidArgument",
    "NotFound",
    "Stale",
    "TimedOut",
    "Unavailable",
    "Unsupported",
]


class Error(Exception):
    """The base of all of them."""

    code: str = "internal"

    def __init__(
        self,
        cause: str = "",
        *,
        code: str | None = None,
        peer: str | None = None,
        transport: str | None = None,
        phase: str | None = None,
    ) -> None:
        self.code = type(self).code if code is None else code
        self.peer = peer
        self.transport = transport
        self.phase = phase
        self.cause = cause
        super().__init__(cause)

    def __str__(self) -> str:
        """The cause, preceded by whatever of peer, transport and phase it does not say itself."""
        named = (("peer", self.peer), ("transport", self.transport), ("phase", self.phase))
        missing = [f"{what} {value}" for what, value in named if value and value not in self.cause]
        prefix = f"{', '.join(missing)}: " if missing else ""
        return f"{self.code}: {prefix}{self.cause}"

    def __reduce__(self) -> tuple[object, ...]:
        fields = (str(self.code), self.cause, self.peer, self.transport, self.phase)
        return (from_status, fields)


class InvalidArgument(Error, ValueError):
    """The call is wrong: fix it. The message names the argument and what is allowed."""

    code = "invalid_argument"


class NotFound(Error):
    """The named thing does not exist (any more)."""

    code = "not_found"


class AlreadyExists(Error):
    """The named thing exists, or the memory overlaps a registered region."""

    code = "already_exists"


class Again(Error):
    """Not now: retry after some progress."""

    code = "again"


class Unavailable(Error, ConnectionError):
    """The peer cannot be reached: try another path or replica."""

    code = "unavailable"


class TimedOut(Error, TimeoutError):
    """The deadline passed."""

    code = "timed_out"


class Cancelled(Error):
    """Somebody asked for it: Batch.cancel or Engine.close. Not asyncio.CancelledError."""

    code = "cancelled"


class Exhausted(Error):
    """Free something first: memory, batches, file descriptors."""

    code = "exhausted"


class Stale(Error):
    """What was known about the peer is old (it restarted, or memory was deregistered): refresh."""

    code = "stale"


class Corrupt(Error):
    """The bytes are wrong: a checksum or a message of the protocol."""

    code = "corrupt"


class Unsupported(Error):
    """This build, kernel or peer cannot do it."""

    code = "unsupported"


class InternalError(Error):
    """A defect of moonpool."""

    code = "internal"


_CLASSES: dict[str, type[Error]] = {
    error.code: error
    for error in (
        InvalidArgument,
        NotFound,
        AlreadyExists,
        Again,
        Unavailable,
        TimedOut,
        Cancelled,
        Exhausted,
        Stale,
        Corrupt,
        Unsupported,
        InternalError,
    )
}


_PHASE = re.compile(r"\bphase (resolve|connect|handshake|data|commit)\b")


def from_status(
    code: str, cause: str | None, peer: str | None, transport: str | None, phase: str | None
) -> Error:
    """The error of the class that belongs to `code`. Called by the extension."""
    error = _CLASSES.get(code, InternalError)
    if phase is None and cause:
        # A batch's outcome has its fields; of other calls the sentence alone says how far it came.
        said = _PHASE.search(cause)
        phase = said.group(1) if said else None
    return error(cause or "", code=code, peer=peer, transport=transport, phase=phase)

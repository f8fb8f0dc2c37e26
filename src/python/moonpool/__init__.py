"""Moonpool moves KV cache: bytes between this process's registered memory and other processes'.

    import moonpool

    with moonpool.Engine() as engine:
        region = engine.allocate(1 << 20)
        segment = engine.open("10.0.0.7:1234")
        remote = segment.regions[0].address
        batch = engine.write(segment, region.address, remote, 4096)
        batch.wait()

Every call ends by its deadline. When a batch is done, ok or not, nothing of it touches memory any
more on either side. Errors name peer, transport, phase and cause (moonpool.Error).
"""

from ._engine import (
    Engine,
    EngineInfo,
    Notification,
    RemoteRegion,
    Segment,
    SegmentInfo,
    Transfer,
    TransportInfo,
    TransportMetrics,
)
from ._native import Batch, BatchStatus, Region
from ._version import __version__
from .errors import (
    Again,
    AlreadyExists,
    Cancelled,
    Corrupt,
    Error,
    Exhausted,
    InternalError,
    InvalidArgument,
    NotFound,
    Stale,
    TimedOut,
    Unavailable,
    Unsupported,
)

__all__ = [
    "Again",
    "AlreadyExists",
    "Batch",
    "BatchStatus",
    "Cancelled",
    "Corrupt",
    "Engine",
    "EngineInfo",
    "Error",
    "Exhausted",
    "InternalError",
    "InvalidArgument",
    "NotFound",
    "Notification",
    "Region",
    "RemoteRegion",
    "Segment",
    "SegmentInfo",
    "Stale",
    "TimedOut",
    "Transfer",
    "TransportInfo",
    "TransportMetrics",
    "Unavailable",
    "Unsupported",
    "__version__",
]

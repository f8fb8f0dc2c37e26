"""The house as data: rooms and their order, limits, words. ARCHITECTURE.md and STYLE.md say why; tidy checks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

# --- The table of rooms: ARCHITECTURE.md draws it, this file enforces it. -----

# room: what it may include besides itself; what those may include is allowed too.
ROOMS: dict[str, tuple[str, ...]] = {
    "base": (),
    "device": ("base",),
    "net": ("base",),
    "topology": ("device",),
    "memory": ("device",),
    "rpc": ("net",),
    "http": ("net",),
    "transport": ("device", "topology", "memory"),
    "registry": ("rpc", "http"),
    "engine": ("transport", "registry", "memory", "topology"),
    "membership": ("rpc", "registry"),
    "store": ("engine", "membership"),
    "checkpoint": ("engine", "membership"),
    "ep": ("engine", "membership"),
    "conductor": ("store", "rpc", "http"),
}
# Composition roots: they build the world, read the environment and name leaves. Nobody includes them.
ROOTS = frozenset({"python", "capi", "cli"})
# A contract's leaves: one folder each. They see the contract, what it sees, and these besides
# (a leaf that talks needs sockets).
LEAF_KINDS: dict[str, tuple[str, ...]] = {"transport": ("net",), "registry": (), "device": ()}
TEST_ROOMS = frozenset({"testing"})
PUBLIC = "moonpool"  # include/moonpool

# --- Limits (STYLE.md, "Sizes") -----

FUNCTION_LINES, SOURCE_LINES, HEADER_LINES, TEST_LINES = 70, 800, 300, 1000
PUBLIC_METHODS, PARAMETERS, FOLDER_FILES = 20, 4, 25
README_LINES, ROOM_CMAKE_LINES = 60, 30

# --- Words (STYLE.md and ARCHITECTURE.md, glossary): not this -> that -----

WORDS = {
    word: ours
    for ours, words in {
        "Device": ("Platform", "Accelerator"),
        "Region": ("Buffer", "Chunk", "Block"),
        "Registration": ("Mr", "Memh"),
        "Segment": ("ServerName", "EndpointName"),
        "Peer": ("Session", "Connection"),
        "Path": ("Route", "Rail"),
        "Batch, Transfer or Slice": ("Task", "RequestId"),
        "Object, Replica or Extent": ("Handle", "Descriptor"),
        "Tier": ("Level", "Backend"),
        "Lease or Epoch": ("TtlToken", "Version"),
    }.items()
    for word in words
}
# Where sockets are the subject, these have their everyday meaning.
WORDS_ALLOWED: dict[str, tuple[str, ...]] = {
    "net": ("Connection", "Session"),
    "http": ("Connection", "Session"),
}
LEAF_WORDS_ALLOWED = ("Connection",)
EMPTY_WORDS = re.compile(r"(Manager|Helper|Utils?|Impl\d+)$|^(New|Real)(?=[A-Z])|V[1-9]$")
TODO_KINDS = ("correctness", "speed", "feature", "cleanup", "test", "docs")

# Vendor headers and the one room (or leaf) that may name them.
VENDOR = (
    (re.compile(r"<(infiniband|rdma/rdma)"), "src/transport/rdma"),
    (re.compile(r"<rdma/(fabric|fi_)"), "src/transport/fabric"),
    (re.compile(r"<(cuda|nvml|cufile)"), "src/device/cuda"),
    (re.compile(r"<hip/"), "src/device/hip"),
    (re.compile(r"<liburing"), "src/transport/file"),
    (re.compile(r"<hwloc"), "src/topology"),
    (re.compile(r"<(nanobind|Python\.h)"), "src/python"),
    (re.compile(r"<CLI/"), "src/cli"),
)

CXX = (".h", ".cc", ".c")


@dataclass(frozen=True)
class Place:
    """Where a C++ file stands in the house."""

    path: str

    @cached_property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.path.split("/"))

    @property
    def room(self) -> str:
        if self.parts[0] == "src" and len(self.parts) > 2:
            return self.parts[1]
        return PUBLIC if self.path.startswith("include/moonpool/") else ""

    @property
    def leaf(self) -> str:
        """`transport/tcp` for a file of that leaf, else empty."""
        if self.room in LEAF_KINDS and len(self.parts) > 3 and self.parts[2] != "corpus":
            return f"{self.room}/{self.parts[2]}"
        return ""

    @property
    def is_test(self) -> bool:
        stem = self.parts[-1].rsplit(".", 1)[0]
        return (
            self.parts[0] in ("tests", "bench", "examples")
            or self.room in TEST_ROOMS
            or stem.endswith(("_test", "_fuzz", "_bench", "_testing", "_fixture"))
            or stem.startswith(("conformance", "test_"))
        )

    @property
    def is_root(self) -> bool:
        return self.room in ROOTS


def closure(room: str) -> frozenset[str]:
    found: set[str] = set()
    waiting = [room]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(ROOMS.get(name, ()))
    return frozenset(found | {"base"})


def room_level(room: str) -> int:
    return (
        7
        if room in ROOTS
        else max((room_level(name) + 1 for name in ROOMS.get(room, ())), default=0)
    )

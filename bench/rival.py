"""Other engines, measured in turns with ours: Mooncake's wheel and NIXL, in a venv of their own.

A rival that cannot be installed, fails or hangs gives a row that says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from bars import Row
from children import ChildFailed
from pairs import Contender, Pair, Rate, Shape, Turns
from rows import MIB, Plan, failed, figures

FOLDER = Path(__file__).resolve().parent.parent / "build" / "rival"
DEBIAN = ("libibverbs1", "librdmacm1", "libnuma1", "libcurl4")
# With what they need; NIXL's wheel asks for torch, which it does not need here.
WHEELS = (("numpy", "mooncake-transfer-engine-non-cuda==0.3.13.post1"),)
WHEELS_ALONE = ("nixl-cu13==1.5.1",)

# UCX_TLS of NIXL. UCX cannot start with sm or cma alone: it needs a way to say hello.
UCX = {"default": "", "sm": "sm,tcp,self", "cma": "cma,tcp,self"}

MOONCAKE_TCP = (
    Shape(64 << 10, 16),
    Shape(64 << 10, 128),
    Shape(MIB, 16),
    Shape(4 * MIB, 16),
    Shape(4 << 10, 128),
    Shape(256, 1500),
    # More than about 2,000 descriptors in a batch fail there.
    Shape(256, 8192),
    Shape(4 << 10, 40960),
)
MOONCAKE_SAME_HOST = (Shape(MIB, 16), Shape(4 * MIB, 16))
NIXL = (Shape(MIB, 64), Shape(4 << 10, 4096))


class NotInstalled(Exception):
    pass


def install() -> str:
    """The rivals' interpreter; raises NotInstalled with the reason."""
    python = FOLDER / "venv" / "bin" / "python"
    wanted = " ".join((sys.version.split()[0], *(w for ws in WHEELS for w in ws), *WHEELS_ALONE))
    stamp = FOLDER / "stamp"
    _install_debian()
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        return str(python)
    print("bench: installing the rivals into build/rival (400 MB)", file=sys.stderr)
    FOLDER.mkdir(parents=True, exist_ok=True)
    _do("/usr/bin/python3", "-m", "venv", "--clear", str(FOLDER / "venv"))
    pip = (str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input")
    for wheels in WHEELS:
        _do(*pip, *wheels)
    _do(*pip, "--no-deps", *WHEELS_ALONE)
    stamp.write_text(wanted)
    return str(python)


def _install_debian() -> None:
    query = subprocess.run(
        ["dpkg-query", "-W", "-f=${db:Status-Status} ${Package}\n", *DEBIAN],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    missing = [name for name in DEBIAN if f"installed {name}" not in query.stdout.splitlines()]
    if not missing:
        return
    root = [] if os.geteuid() == 0 else ["sudo"]
    apt = [
        *root, "env", "DEBIAN_FRONTEND=noninteractive",
        "apt-get", "-q", "-o", "DPkg::Lock::Timeout=300",
    ]  # fmt: skip
    _do(*apt, "update")
    _do(*apt, "install", "-y", "--no-install-recommends", *missing)


def _do(*argv: str) -> None:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=900, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{argv[0]}: {error}") from error
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise NotInstalled(f"{' '.join(argv[:4])} … failed: {' '.join(last)}")


# --- Rows.


def rival_rows(plan: Plan) -> Iterator[Row]:
    cases = [*_mooncake_cases(), *_nixl_cases()]
    cases = [case for case in cases if any(plan.wanted(name) for name in _names(*case))]
    if not cases:
        return
    try:
        python = install()
    except NotInstalled as error:
        for case in cases:
            for name in _names(*case):
                yield {"name": name, "rival_failed": f"not installed: {error}"}
        return
    for kind, shape, write in cases:
        ours, rivals = contenders(kind, plan.python, python)
        rates = _measure(plan, [*ours, *rivals], shape, write)
        yield from rows_of(kind, shape, write, rates[: len(ours)], rates[len(ours) :])


def _mooncake_cases() -> Iterator[tuple[str, Shape, bool]]:
    for write in (True, False):
        for shape in MOONCAKE_TCP:
            yield "mooncake tcp", shape, write
        for shape in MOONCAKE_SAME_HOST:
            yield "mooncake same host", shape, write


def _nixl_cases() -> Iterator[tuple[str, Shape, bool]]:
    for write in (True, False):
        for shape in NIXL:
            yield "nixl same host", shape, write
            yield "nixl tcp", shape, write


def _label(shape: Shape, write: bool) -> str:
    return f"{'write' if write else 'read'} {shape}"


def _names(kind: str, shape: Shape, write: bool) -> list[str]:
    """Of the rows that a case gives and that have a bar."""
    label = _label(shape, write)
    if kind == "nixl same host":
        return [f"vs nixl's best same host {memory} {label}" for memory in ("heap", "memfd")]
    return [f"vs {kind} {label}"]


def contenders(kind: str, ours: str, theirs: str) -> tuple[list[Contender], list[Contender]]:
    """Of one case: ours, each with a row, and the rivals. `ours` and `theirs`: interpreters."""
    if kind.startswith("mooncake"):
        env = {"MC_FORCE_TCP": "1"} if kind == "mooncake tcp" else {}
        return (
            [Contender("shim", "shim", ours, env)],
            [Contender("mooncake", "mooncake", theirs, env)],
        )
    if kind == "nixl tcp":
        tcp = {"transports": ["tcp"]}
        return (
            [Contender("moonpool tcp", "moonpool", ours, options=tcp)],
            [Contender("nixl tcp", "nixl", theirs, {"UCX_TLS": "tcp"})],
        )
    return (
        [
            Contender("moonpool heap", "moonpool", ours, memory="heap"),
            Contender("moonpool memfd", "moonpool", ours, memory="engine"),
        ],
        [
            Contender(f"nixl {name}", "nixl", theirs, {"UCX_TLS": tls} if tls else {})
            for name, tls in UCX.items()
        ],
    )


def _measure(
    plan: Plan, group: Sequence[Contender], shape: Shape, write: bool
) -> list[Rate | ChildFailed]:
    """One result for each of the group, in its order."""
    results: dict[int, Rate | ChildFailed] = {}
    with ExitStack() as stack:
        pairs = {}
        for index, contender in enumerate(group):
            try:
                pair = stack.enter_context(Pair(contender, max(shape.span, 64 * MIB)))
                pair.check()
                pairs[index] = pair
            except ChildFailed as failure:
                results[index] = failure
        rates = Turns(plan.effort).measure(list(pairs.values()), shape, write)
        results.update(zip(pairs, rates))
    return [results[index] for index in range(len(group))]


def rows_of(
    kind: str,
    shape: Shape,
    write: bool,
    ours: Sequence[Rate | ChildFailed],
    rivals: Sequence[Rate | ChildFailed],
) -> Iterator[Row]:
    """A row for each of ours against the best of the rivals; and one for each rival of several."""
    best = max((r for r in rivals if isinstance(r, Rate)), key=lambda r: r.gbps, default=None)
    if len(rivals) > 1:
        for name, rate in zip(UCX, rivals):
            yield _rival_row(f"nixl {name} same host {_label(shape, write)}", rate)
    for name, rate in zip(_names(kind, shape, write), ours):
        if isinstance(rate, ChildFailed):
            yield failed(name, rate)
            continue
        row: Row = {
            "name": name,
            "value": rate.gbps,
            "unit": "GB/s",
            "reference": kind.split()[0],
            **figures(rate),
        }
        if best is not None:
            row["reference_value"] = best.gbps
            row["ratio"] = rate.over(best.rates)
        else:
            row["rival_failed"] = str(rivals[0])
        yield row


def _rival_row(name: str, rate: Rate | ChildFailed) -> Row:
    if isinstance(rate, ChildFailed):
        return {"name": name, "rival_failed": str(rate)}
    return {"name": name, "value": rate.gbps, "unit": "GB/s", **figures(rate)}

"""Runs the parts of the project's test suite, in order, each within its own time budget.

`script/test` calls this. A part that fails does not stop the next one, except `build`. Nothing is
ever run twice to make it pass: flakiness is a bug. Everything that ran leaves its whole output under
build/test-results/. The last line is `N passed, N failed`, with `, N skipped` when something was
skipped; skipped tests are listed with their reasons.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import ctypes
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "test-results"
PYTHON = sys.executable
CORES = os.cpu_count() or 1
TAIL_LINES = 60
FUZZ_SECONDS = 30
SANITIZER_PATIENCE = 4.0


# --- Running a program, and ending it -----


class Runner:
    """Runs programs in process groups of their own, so that a part which runs over its budget ends whole."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[int] = set()
        with contextlib.suppress(OSError, AttributeError):
            # Orphans of a killed test (a frozen child, for instance) come back to us instead of outliving the run.
            set_child_subreaper = 36
            ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)

    def run(
        self,
        argv: Sequence[str],
        log: Path,
        timeout_s: float,
        env: dict[str, str] | None = None,
    ) -> int | None:
        """Returns the exit status, or None if the program was ended because its time was over."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                list(argv),
                cwd=ROOT,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            with self._lock:
                self._running.add(process.pid)
            try:
                return process.wait(timeout=max(timeout_s, 0.1))
            except subprocess.TimeoutExpired:
                # A chance to say where it hangs, for programs that print a trace when they are asked to end.
                signal_group(process.pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=2)
                return None
            finally:
                signal_group(process.pid, signal.SIGKILL)
                process.wait()
                with self._lock:
                    self._running.discard(process.pid)

    def end_all(self) -> None:
        """Ends what is still running, and orphans that ended up with us. Call when no part is running."""
        with self._lock:
            for pid in self._running:
                signal_group(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            for child in children:
                with contextlib.suppress(OSError):
                    os.kill(int(child), signal.SIGKILL)
                    os.waitpid(int(child), 0)


def signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(leader, number)


# --- What a part found -----


@dataclass
class Outcome:
    passed: int = 0
    failed: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)  # test, reason
    failures: list[tuple[str, Path | None]] = field(default_factory=list)  # what failed, its log

    def fail(self, what: str, log: Path | None = None, count: int = 1) -> None:
        self.failed += count
        self.failures.append((what, log))

    def add(self, other: Outcome) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures


def read_junit(path: Path, log: Path | None) -> Outcome:
    """Sums a JUnit file. Raises if it is missing or cut off: then its writer died."""
    outcome = Outcome()
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name', '')}".strip(".")
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.fail(name, log)
        elif skip is not None or case.get("status") == "notrun" or case.get("result") == "skipped":
            text = (skip.get("message") or skip.text or "") if skip is not None else "disabled"
            outcome.skipped.append((name, skip_reason(text)))
        else:
            outcome.passed += 1
    return outcome


def skip_reason(text: str) -> str:
    """GoogleTest prefixes the reason with the place; pytest gives the reason alone."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and re.search(r":\d+$", lines[0]):
        lines = lines[1:]
    return " ".join(lines) or "no reason given"


# --- Parts -----


@dataclass
class Context:
    """What a part may use: where it writes, when it must be done."""

    runner: Runner
    folder: Path
    deadline: float
    patience: float
    prefix: tuple[str, ...] = ()  # put before each test program

    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    def step(self, name: str, argv: Sequence[str], env: dict[str, str] | None = None) -> Outcome:
        """Runs one program that counts as one check."""
        outcome = Outcome()
        log = self.folder / f"{name}.log"
        status = self.runner.run(argv, log, self.left_s(), env)
        if status == 0:
            outcome.passed = 1
        elif status is None:
            outcome.fail(f"{name}: out of time", log)
        else:
            outcome.fail(f"{name}: {exit_text(status)}", log)
        return outcome

    def step_with_junit(self, name: str, argv: Sequence[str], junit: Path) -> Outcome:
        """Runs one program that writes a JUnit file; its cases are what counts."""
        log = self.folder / f"{name}.log"
        status = self.runner.run(argv, log, self.left_s())
        return judge(name, status, junit, log)


@dataclass(frozen=True)
class Part:
    name: str
    what: str
    budget_s: float
    run: Callable[[Context], Outcome]
    deep: bool = False
    needs_build: bool = False


def exit_text(status: int) -> str:
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


def judge(name: str, status: int | None, junit: Path, log: Path) -> Outcome:
    """Combines a program's exit status with what it wrote: each may know of a failure that the other does not."""
    outcome = Outcome()
    with contextlib.suppress(OSError, ElementTree.ParseError):
        outcome = read_junit(junit, log)
    if status is None:
        outcome.fail(f"{name}: out of time{last_test(log)}", log)
    elif status != 0 and outcome.failed == 0:
        outcome.fail(f"{name}: {exit_text(status)}{last_test(log)}", log)
    elif status == 0 and outcome.passed + outcome.failed + len(outcome.skipped) == 0:
        outcome.fail(f"{name}: ended well but reported no test", log)
    return outcome


def last_test(log: Path) -> str:
    """Names the GoogleTest case that had begun and not ended when its program died."""
    with contextlib.suppress(OSError):
        marks = re.findall(
            r"^\[ (RUN|      OK|  FAILED|  SKIPPED) +\] (\S+)",
            log.read_text(errors="replace"),
            re.M,
        )
        if marks and marks[-1][0] == "RUN":
            return f" in {marks[-1][1]}"
    return ""


# --- Test programs, as CMake knows them -----


@dataclass(frozen=True)
class Program:
    name: str
    command: tuple[str, ...]
    labels: frozenset[str]
    timeout_s: float
    serial: bool


def list_programs(preset: str) -> list[Program]:
    listing = subprocess.run(
        ["ctest", "--test-dir", f"build/{preset}", "--show-only=json-v1"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    programs = []
    for test in json.loads(listing.stdout)["tests"]:
        properties = {item["name"]: item["value"] for item in test.get("properties", [])}
        programs.append(
            Program(
                name=test["name"],
                command=tuple(test.get("command", ())),
                labels=frozenset(properties.get("LABELS", [])),
                timeout_s=float(properties.get("TIMEOUT", 300)),
                serial=bool(properties.get("RUN_SERIAL", False)),
            )
        )
    return programs


def run_program(context: Context, program: Program, env: dict[str, str]) -> Outcome:
    """Runs one program, in the prefix that the context asks for."""
    if not program.command:
        outcome = Outcome()
        outcome.fail(f"{program.name}: not built")
        return outcome
    log = context.folder / f"{program.name}.log"
    timeout_s = min(context.left_s(), program.timeout_s * context.patience)
    if timeout_s <= 0:
        outcome = Outcome()
        outcome.fail(f"{program.name}: not started, the part's time was over")
        return outcome
    # Ours to say: where the results go, and that each test is named as it starts, for the case that it never ends.
    command = [
        word
        for word in program.command
        if not word.startswith(("--gtest_output=", "--gtest_brief"))
    ]
    if len(command) == len(program.command):  # Not GoogleTest: its exit status is the result.
        status = context.runner.run([*context.prefix, *command], log, timeout_s, env)
        outcome = Outcome(passed=1 if status == 0 else 0)
        if status != 0:
            why = "out of time" if status is None else exit_text(status)
            outcome.fail(f"{program.name}: {why}", log)
        return outcome
    junit = context.folder / f"{program.name}.xml"
    argv = [*context.prefix, *command, f"--gtest_output=xml:{junit}"]
    status = context.runner.run(argv, log, timeout_s, env)
    return judge(program.name, status, junit, log)


def run_label(
    context: Context, label: str, preset: str = "release", env: dict[str, str] | None = None
) -> Outcome:
    """Runs every test program with this label: side by side, those that ask for it alone."""
    env = {"MOONPOOL_PATIENCE": f"{context.patience:g}", **(env or {})}
    programs = [program for program in list_programs(preset) if label in program.labels]
    # The process tests measure rates and deadlines: they have the machine for themselves.
    alone = [program for program in programs if program.serial or label == "processes"]
    together = [program for program in programs if program not in alone]
    total = Outcome()
    with concurrent.futures.ThreadPoolExecutor(max_workers=CORES) as pool:
        for outcome in pool.map(lambda program: run_program(context, program, env), together):
            total.add(outcome)
    for program in alone:
        total.add(run_program(context, program, env))
    return total


# --- The parts themselves -----


def build_part(context: Context) -> Outcome:
    return context.step("build", ["script/build"])


def lint_part(context: Context, arguments: Sequence[str] = ()) -> Outcome:
    junit = context.folder / "lint.xml"
    argv = [PYTHON, "tools/lint.py", "--junit", str(junit), *arguments]
    return context.step_with_junit("lint", argv, junit)


def label_part(label: str) -> Callable[[Context], Outcome]:
    return lambda context: run_label(context, label)


def sim_part(
    context: Context,
    seeds: int = 1000,
    first: int = 1,
    seconds: int = 110,
    all_of_them: bool = True,
) -> Outcome:
    total = run_label(context, "sim")
    program = ROOT / "build" / "release" / "tests" / "sim" / "moonpool_sim"
    if not program.exists():
        total.fail("moonpool_sim: not built")
        return total
    argv = [str(program), "--seeds", str(seeds), "--first", str(first), "--seconds", str(seconds)]
    name = f"seeds-from-{first}"
    print(f"   seeds {first} to {first + seeds - 1}, at most {seconds} s", flush=True)
    outcome = context.step(name, argv)
    log = context.folder / f"{name}.log"
    lines = log.read_text(errors="replace").strip().splitlines() or ["(no output)"]
    print(f"   {lines[-1]}", flush=True)
    # The program stops when its time is over: a run of fewer seeds than were asked for must not pass for all of them.
    ran = re.match(r"(\d+) seeds", lines[-1])
    if outcome.failed == 0 and all_of_them and (ran is None or int(ran.group(1)) < seeds):
        outcome = Outcome()
        outcome.fail(f"{name}: did not run {seeds} seeds in {seconds} s", log)
    total.add(outcome)
    return total


def long_sim_part(context: Context) -> Outcome:
    # Other seeds every day, the same ones all day: a failure seen in the morning is still there in the afternoon.
    day = int(time.time() // 86400)
    first = 1_000_000 + day * 100_000
    return sim_part(context, seeds=100_000, first=first, seconds=300, all_of_them=False)


def python_part(context: Context) -> Outcome:
    total = context.step("install-venv", ["script/install-venv"])
    folders = [name for name in ("tests", "compat", "examples", "bench") if holds_pytests(name)]
    for install in sorted(ROOT.glob("examples/*/install")):
        total.add(context.step(f"install-{install.parent.name}", [str(install)]))
    if not folders:
        return total
    # What install-venv has built is tested, too.
    os.environ["MOONPOOL_WHEELS"] = str(ROOT / "build" / "wheels")
    junit = context.folder / "pytest.xml"
    options = ["-q", "-ra", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=120"]
    argv = [PYTHON, "-m", "pytest", *options, f"--junitxml={junit}", *folders]
    total.add(context.step_with_junit("pytest", argv, junit))
    return total


def holds_pytests(folder: str) -> bool:
    patterns = ("test_*.py", "*_test.py")
    return any(next((ROOT / folder).rglob(pattern), None) for pattern in patterns)


def without_address_randomisation() -> tuple[str, ...]:
    """g++ 12's thread sanitizer cannot map its shadow on kernels that randomise more than 28 bits."""
    prefix = ("setarch", "-R")
    if shutil.which("setarch") is None:
        return ()
    works = subprocess.run(
        [*prefix, "true"], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return prefix if works.returncode == 0 else ()


def sanitizer_part(preset: str) -> Callable[[Context], Outcome]:
    def run(context: Context) -> Outcome:
        total = context.step("build", ["script/build", "--preset", preset])
        if total.failed:
            return total
        context.patience *= SANITIZER_PATIENCE
        if preset == "tsan":
            context.prefix = without_address_randomisation()
        env = {
            "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
            # intercept_send: the sanitizer notes what a send reads only after the send has put it in order with
            # the receiver, so a peer in the same process that answers and lets the memory be used again would race.
            "TSAN_OPTIONS": "halt_on_error=0:exitcode=66:second_deadlock_stack=1:intercept_send=0",
        }
        folder = context.folder
        for label in ("unit", "conformance", "processes"):
            context.folder = folder / label
            outcome = run_label(context, label, preset, env)
            print(f"   {label}: {outcome.passed} passed, {outcome.failed} failed", flush=True)
            total.add(outcome)
        return total

    return run


def fuzz_part(context: Context) -> Outcome:
    # Only the fuzz targets and what they link: the rest of the tree is not needed under this preset.
    names = sorted(
        name
        for cmake in ROOT.glob("src/**/CMakeLists.txt")
        for name in re.findall(r"moonpool_fuzzer\(\s*(\w+)", cmake.read_text())
    )
    total = Outcome()
    if not names:
        total.fail("fuzz: there is no target")
        return total
    wanted = [word for name in names for word in ("--target", f"{name}_fuzz")]
    total.add(context.step("build", ["script/build", "--preset", "fuzz", *wanted]))
    if total.failed:
        return total
    targets = [ROOT / "build" / "fuzz" / "fuzz" / f"{name}_fuzz" for name in names]
    with concurrent.futures.ThreadPoolExecutor(max_workers=CORES) as pool:
        for outcome in pool.map(functools.partial(run_fuzz_target, context), targets):
            total.add(outcome)
    return total


def run_fuzz_target(context: Context, target: Path) -> Outcome:
    name = target.name.removesuffix("_fuzz")
    outcome = Outcome()
    seeds = [path for path in ROOT.glob(f"src/**/corpus/{name}") if any(path.iterdir())]
    if not seeds:
        outcome.fail(f"{name}: no corpus; put seeds into src/<room>/corpus/{name}/")
        return outcome
    found = context.folder / name
    found.mkdir(parents=True, exist_ok=True)
    seconds = max(1, min(FUZZ_SECONDS, int(context.left_s()) - 5))
    options = [
        f"-max_total_time={seconds}",
        "-timeout=10",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
    ]
    argv = [str(target), *options, f"-artifact_prefix={found}/", str(found), *map(str, seeds)]
    return context.step(f"{name}_fuzz", argv)


PARTS = (
    Part("build", "release build", 900, build_part),
    Part("lint", "format, tidy, headers, thread-safety, Python, shell", 600, lint_part),
    Part("unit", "unit tests", 240, label_part("unit"), needs_build=True),
    Part(
        "conformance",
        "every transport against the one suite",
        300,
        label_part("conformance"),
        needs_build=True,
    ),
    Part("sim", "simulation, 1,000 seeds", 240, sim_part, needs_build=True),
    Part(
        "processes",
        "real processes killed, frozen, restarted",
        600,
        label_part("processes"),
        needs_build=True,
    ),
    Part("python", "pytest: API, shim, examples, bench", 600, python_part, needs_build=True),
    Part(
        "asan",
        "address and undefined-behaviour sanitizers",
        1500,
        sanitizer_part("asan"),
        deep=True,
    ),
    Part("tsan", "thread sanitizer", 1500, sanitizer_part("tsan"), deep=True),
    Part("fuzz", f"each decoder for {FUZZ_SECONDS} s", 1200, fuzz_part, deep=True),
    Part(
        "clang-tidy",
        "clang-tidy on every file",
        1200,
        lambda context: lint_part(context, ["--only", "clang-tidy", "--all"]),
        deep=True,
        needs_build=True,
    ),
    Part(
        "long-sim", "simulation for five minutes", 420, long_sim_part, deep=True, needs_build=True
    ),
)


# --- Telling -----


def tail(path: Path) -> str:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return "      (no output)"
    shown = lines[-TAIL_LINES:]
    if len(lines) > len(shown):
        shown.insert(0, f"... the last {TAIL_LINES} of {len(lines)} lines")
    return "\n".join(f"      {line}" for line in shown)


def run_part(part: Part, runner: Runner, patience: float) -> tuple[Outcome, float]:
    folder = RESULTS / part.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    budget_s = part.budget_s * patience
    started = time.monotonic()
    print(
        f"== {part.name}: {part.what} (from {time.strftime('%H:%M:%S')}, at most {budget_s:.0f} s)",
        flush=True,
    )
    try:
        outcome = part.run(Context(runner, folder, started + budget_s, patience))
    except Exception as error:  # A part that breaks is a failed part; the others still run.
        outcome = Outcome()
        outcome.fail(f"{part.name}: {type(error).__name__}: {error}")
    runner.end_all()
    seconds = time.monotonic() - started
    if seconds > budget_s and not outcome.failed:
        outcome.fail(f"{part.name}: took {seconds:.0f} s, over its budget of {budget_s:.0f} s")
    if outcome.passed + outcome.failed + len(outcome.skipped) == 0:
        outcome.fail(f"{part.name}: ran no test")
    tell_failures(outcome)
    word = "FAILED" if outcome.failed else "passed"
    counts = f"{outcome.passed} passed, {outcome.failed} failed, {len(outcome.skipped)} skipped"
    print(f"== {part.name}: {word} in {seconds:.1f} s: {counts}", flush=True)
    return outcome, seconds


def tell_failures(outcome: Outcome) -> None:
    logs: dict[Path | None, list[str]] = {}
    for what, log in outcome.failures:
        logs.setdefault(log, []).append(what)
    for log, names in logs.items():
        for name in names:
            print(f"   FAILED {name}")
        if log is not None:
            print(f"   output: {log.relative_to(ROOT)}\n{tail(log)}")
    sys.stdout.flush()


def choose(arguments: argparse.Namespace) -> list[Part]:
    if not arguments.only:
        return [part for part in PARTS if arguments.deep or not part.deep]
    wanted = [name for item in arguments.only for name in item.split(",") if name]
    known = {part.name for part in PARTS}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        sys.exit(
            f"unknown part: {', '.join(unknown)}; there are {', '.join(part.name for part in PARTS)}"
        )
    chosen = [part for part in PARTS if part.name in wanted]
    if any(part.needs_build for part in chosen) and "build" not in wanted:
        chosen.insert(0, PARTS[0])
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/test", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--deep", action="store_true", help="sanitizers, fuzzing, clang-tidy, long simulation too"
    )
    parser.add_argument("--only", action="append", metavar="PART,...", help="only these parts")
    parser.add_argument("--list", action="store_true", help="list the parts and stop")
    arguments = parser.parse_args()
    if arguments.list:
        for part in PARTS:
            print(
                f"{part.name:12} {part.what}{' (--deep)' if part.deep else ''}, at most {part.budget_s:.0f} s"
            )
        return 0

    patience = float(os.environ.get("MOONPOOL_PATIENCE", "1"))
    runner = Runner()
    total = Outcome()
    rows = []
    started = time.monotonic()
    # Ignored in background jobs, and so, inherited, in all tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, lambda *_: sys.exit(1))
    try:
        for part in choose(arguments):
            outcome, seconds = run_part(part, runner, patience)
            total.add(outcome)
            rows.append((part.name, outcome, seconds))
            if part.name == "build" and outcome.failed:
                print("== stopped: nothing can be tested that does not build", flush=True)
                break
    finally:
        runner.end_all()
    return report(total, rows, time.monotonic() - started)


def report(total: Outcome, rows: list[tuple[str, Outcome, float]], seconds: float) -> int:
    if total.skipped:
        print("== skipped")
        for name, reason in total.skipped:
            print(f"   {name}: {reason}")
    print(f"== all parts, {seconds:.0f} s")
    summary = []
    for name, outcome, part_seconds in rows:
        word = "FAILED" if outcome.failed else "passed"
        print(
            f"   {name:12} {word}  {part_seconds:7.1f} s  {outcome.passed} passed, {outcome.failed} failed"
        )
        summary.append(
            {
                "part": name,
                "seconds": round(part_seconds, 1),
                "passed": outcome.passed,
                "failed": outcome.failed,
                "skipped": len(outcome.skipped),
            }
        )
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    for what, _ in total.failures:
        print(f"   FAILED {what}")
    skipped = f", {len(total.skipped)} skipped" if total.skipped else ""
    print(f"{total.passed} passed, {total.failed} failed{skipped}", flush=True)
    return 1 if total.failed or total.passed == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

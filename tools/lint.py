"""Checks everything that needs no running, step by step. `script/lint` calls this.

    tools/lint.py [--fix] [--all] [--only STEP,...] [--junit FILE]

What is slow is remembered under build/lint-cache/, by the content of the file, of every project header that it
includes, and of the settings: an unchanged file costs nothing.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from house import Place

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / "build" / "lint-cache"
VENV = Path(sys.executable).parent
CORES = os.cpu_count() or 1
SHOWN_LINES = 200

CLANG = "clang++-14"
CLANG_TIDY = "clang-tidy-14"
CLANG_FORMAT = "clang-format-14"
COMMON_FLAGS = [
    "-std=c++20",
    f"-I{ROOT}/src",
    f"-I{ROOT}/include",
    f"-isystem{ROOT}/build/release/gen",
]
CXX_FOLDERS = ("src", "include", "tests", "bench", "examples")


def run(argv: Sequence[str]) -> tuple[int, str]:
    result = subprocess.run(
        list(argv),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return result.returncode, result.stdout


@dataclass
class Finding:
    """What a step says: nothing when it passed; a note when there was nothing to look at."""

    output: str = ""
    failed: bool = False
    note: str = ""


class Tree:
    """The files of the checkout, who includes whom, and how CMake compiles each."""

    @cached_property
    def files(self) -> list[str]:
        _, text = run(["git", "ls-files", "-co", "--exclude-standard"])
        return sorted(name for name in set(text.split("\n")) if name and (ROOT / name).is_file())

    def cxx(self, *suffixes: str) -> list[str]:
        return [
            name
            for name in self.files
            if name.endswith(suffixes)
            and name.startswith(tuple(f"{folder}/" for folder in CXX_FOLDERS))
        ]

    @cached_property
    def commands(self) -> dict[str, list[str]]:
        """Compiler flags of each file, from the release build; without warnings and outputs."""
        path = ROOT / "build" / "release" / "compile_commands.json"
        if not path.exists():
            return {}
        found = {}
        for entry in json.loads(path.read_text()):
            file = os.path.relpath(os.path.join(entry["directory"], entry["file"]), ROOT)
            words = shlex.split(entry["command"]) if "command" in entry else entry["arguments"]
            found[file] = clang_flags(words)
        return found

    def flags(self, file: str) -> list[str]:
        """The flags of the file, or for a header those of a neighbour."""
        if file in self.commands:
            return self.commands[file]
        folder = os.path.dirname(file)
        for other, flags in self.commands.items():
            if os.path.dirname(other) == folder:
                return [*flags, *COMMON_FLAGS[1:]]
        return COMMON_FLAGS

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {}

    def digest(self, file: str) -> str:
        """A hash of the file and of all project headers that it includes, near and far."""
        seen: set[str] = set()
        waiting = [file]
        total = hashlib.sha256()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            try:
                content = (ROOT / name).read_bytes()
            except OSError:
                continue
            total.update(name.encode() + b"\0" + content)
            for target in sorted(
                set(re.findall(rb'^\s*#\s*include\s+"([^"]+)"', content, re.MULTILINE))
            ):
                waiting += self._candidates(name, target.decode())
        return total.hexdigest()

    @staticmethod
    def _candidates(includer: str, target: str) -> list[str]:
        places = ("src", "include", "build/release/gen", os.path.dirname(includer))
        return [f"{place}/{target}" for place in places if (ROOT / place / target).exists()][:1]


def clang_flags(words: Sequence[str]) -> list[str]:
    """Keeps what decides meaning: language, macros, include paths."""
    kept = []
    pairs = ("-isystem", "-I", "-D", "-include")
    for at, word in enumerate(words):
        if word in pairs:
            kept += [word, words[at + 1]]
        elif word.startswith(("-I", "-D", "-isystem", "-std=")) and word not in pairs:
            kept.append(word)
    return kept


def check_cached(
    tree: Tree,
    kind: str,
    files: Iterable[str],
    command: Callable[[str], list[str]],
    settings: str = "",
) -> Finding:
    """Runs a command for each file whose last good run was with other content; two at a time on two cores."""
    CACHE.mkdir(parents=True, exist_ok=True)
    files = list(files)

    def check(file: str) -> tuple[str, int, str, bool]:
        argv = command(file)
        key = hashlib.sha256(
            f"{kind}\0{settings}\0{argv}\0{tree.digest(file)}".encode()
        ).hexdigest()
        stamp = CACHE / key
        if stamp.exists():
            os.utime(stamp)
            return file, 0, "", True
        status, output = run(argv)
        if status == 0:
            stamp.touch()
        return file, status, output, False

    with concurrent.futures.ThreadPoolExecutor(max_workers=CORES) as pool:
        results = list(pool.map(check, files))
    bad = [
        f"{output.strip() or file + ': failed'}\n"
        for file, status, output, _ in results
        if status != 0
    ]
    remembered = sum(1 for result in results if result[3])
    return Finding("".join(bad), bool(bad), f"{len(files)} files, {remembered} unchanged")


def forget_old_stamps() -> None:
    limit = time.time() - 14 * 86400
    for stamp in CACHE.glob("*"):
        if stamp.stat().st_mtime < limit:
            stamp.unlink(missing_ok=True)


# --- Steps -----


@dataclass
class Lint:
    tree: Tree = field(default_factory=Tree)
    fix: bool = False
    all: bool = False

    def format(self) -> Finding:
        files = self.tree.cxx(".h", ".cc", ".c")
        if not files:
            return Finding(note="no files")
        mode = ["-i"] if self.fix else ["--dry-run", "--Werror"]
        status, output = run([CLANG_FORMAT, "--style=file", *mode, *files])
        lines = [line for line in output.split("\n") if "error:" in line]
        output = "\n".join(lines) or output
        if status:
            output += "\nscript/lint --fix formats them"
        return Finding(output, status != 0, f"{len(files)} files")

    def tidy(self) -> Finding:
        status, output = run([sys.executable, "tools/tidy.py"])
        return Finding(output if status else "", status != 0)

    def headers(self) -> Finding:
        """Each header compiles alone. One with a source of its own is proved by that: tidy wants it included first."""
        headers = [
            name
            for name in self.tree.cxx(".h")
            if name.startswith(("src/", "include/", "tests/"))
            and name[:-2] + ".cc" not in self.tree.commands
        ]

        def command(name: str) -> list[str]:
            language = "c" if name.startswith("include/") else "c++"
            flags = self.tree.flags(name)
            if language == "c":
                flags = ["-std=c11", f"-I{ROOT}/include"]
            quiet = ["-w", "-Wno-pragma-once-outside-header"]
            return [CLANG, "-x", language, "-fsyntax-only", *quiet, *flags, name]

        return check_cached(self.tree, "header", headers, command)

    def thread_safety(self) -> Finding:
        """Clang's analysis of MOONPOOL_GUARDED_BY and its kin, over everything that is not a test."""
        if not self.tree.commands:
            return Finding(
                note="no build/release/compile_commands.json: run script/build first", failed=True
            )
        files = [
            name
            for name in self.tree.cxx(".cc")
            if name in self.tree.commands and name.startswith("src/") and not Place(name).is_test
        ]
        warnings = ["-Wno-everything", "-Wthread-safety", "-Werror"]
        return check_cached(
            self.tree,
            "thread-safety",
            files,
            lambda name: [CLANG, "-fsyntax-only", *warnings, *self.tree.flags(name), name],
        )

    def clang_tidy(self) -> Finding:
        files = [name for name in self.tree.cxx(".cc") if name in self.tree.commands]
        if not self.all:
            changed = changed_files()
            files = [name for name in files if name in changed]
        if not files:
            return Finding(note="no changed files")
        settings = (ROOT / ".clang-tidy").read_text()
        finding = check_cached(
            self.tree,
            "clang-tidy",
            files,
            lambda name: [CLANG_TIDY, "--quiet", name, "--", *self.tree.flags(name), "-w"],
            settings,
        )
        noise = re.compile(
            r"^(\d+ warnings? (generated|treated)|Suppressed|Use -header-filter|Error while)"
        )
        finding.output = "\n".join(
            line for line in finding.output.split("\n") if not noise.match(line)
        )
        return finding

    def ruff(self) -> Finding:
        commands = (
            [["ruff", "check", "--fix", "."], ["ruff", "format", "."]]
            if self.fix
            else [["ruff", "check", "."], ["ruff", "format", "--check", "."]]
        )
        finding = Finding()
        for words in commands:
            status, output = run([str(VENV / words[0]), *words[1:], "--quiet"])
            finding.output += output
            finding.failed |= status != 0
        return finding

    def mypy(self) -> Finding:
        packages = [
            name
            for name in ("src/python/moonpool", "compat/mooncake/mooncake")
            if (ROOT / name).is_dir()
        ]
        packages = [name for name in packages if any((ROOT / name).rglob("*.py*"))]
        if not packages:
            return Finding(note="no packages")
        cache = str(ROOT / "build" / "mypy-cache")
        options = ["--cache-dir", cache, "--no-error-summary", "--ignore-missing-imports"]
        options += ["--python-version", "3.11"]
        finding = Finding(note=", ".join(packages))
        # In one call: the shim's types come from the package beside it, not from one that may be installed.
        status, output = run([str(VENV / "mypy"), *options, *packages])
        if status:
            finding.output += output
            finding.failed = True
        return finding

    def rules(self) -> Finding:
        """A rule that never fires is worse than none: each one is shown a bad sample and a good one."""
        status, output = run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tools"]
        )
        return Finding(output if status else "", status != 0)

    def shell(self) -> Finding:
        scripts = [
            name for name in self.tree.files if name.endswith(".sh") or is_shell_script(name)
        ]
        status, output = run(["shellcheck", "--severity=style", *scripts]) if scripts else (0, "")
        return Finding(output, status != 0, f"{len(scripts)} scripts")


def is_shell_script(name: str) -> bool:
    if not name.startswith(
        ("script/", ".ci/", "tools/", "bench/", "tests/", "examples/")
    ) or "." in os.path.basename(name):
        return False
    with (ROOT / name).open("rb") as file:
        return bool(re.match(rb"#!.*\b(ba)?sh\b", file.readline(80)))


def changed_files() -> set[str]:
    """What differs from where this branch left its upstream (or from the last commit), and what is not committed."""
    base = "HEAD~1"
    for upstream in ("origin/HEAD", "origin/main"):
        status, text = run(["git", "merge-base", "HEAD", upstream])
        if status == 0:
            base = text.strip()
            break
    names: set[str] = set()
    for argv in (
        ["git", "diff", "--name-only", base],
        ["git", "diff", "--name-only", "HEAD"],
        ["git", "ls-files", "-o", "--exclude-standard"],
    ):
        status, text = run(argv)
        if status == 0:
            names.update(text.split("\n"))
    return names


STEPS: dict[str, tuple[str, Callable[[Lint], Finding]]] = {
    "format": ("clang-format", Lint.format),
    "tidy": ("house rules", Lint.tidy),
    "rules": ("tidy proves its rules", Lint.rules),
    "headers": ("every header compiles alone", Lint.headers),
    "thread-safety": ("clang's thread-safety analysis", Lint.thread_safety),
    "clang-tidy": ("clang-tidy", Lint.clang_tidy),
    "ruff": ("ruff check and format", Lint.ruff),
    "mypy": ("types of the Python packages", Lint.mypy),
    "shell": ("shellcheck", Lint.shell),
}


def write_junit(path: Path, results: list[tuple[str, float, Finding]]) -> None:
    suite = ElementTree.Element("testsuite", name="lint")
    for name, seconds, finding in results:
        case = ElementTree.SubElement(
            suite, "testcase", classname="lint", name=name, time=f"{seconds:.2f}"
        )
        if finding.failed:
            ElementTree.SubElement(case, "failure", message=f"script/lint --only {name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="script/lint", description=__doc__.split("\n\n")[0])
    parser.add_argument("--fix", action="store_true", help="repair what a formatter can")
    parser.add_argument(
        "--all", action="store_true", help="clang-tidy on every file, not only changed ones"
    )
    parser.add_argument("--only", metavar="STEP,...", help=f"only these steps: {', '.join(STEPS)}")
    parser.add_argument(
        "--junit", type=Path, metavar="FILE", help="write the result of each step there"
    )
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else list(STEPS)
    unknown = [name for name in wanted if name not in STEPS]
    if unknown:
        parser.error(f"unknown step: {', '.join(unknown)}")
    lint = Lint(fix=arguments.fix, all=arguments.all)
    results = []
    for name in wanted:
        what, step = STEPS[name]
        started = time.monotonic()
        finding = step(lint)
        seconds = time.monotonic() - started
        results.append((name, seconds, finding))
        word = "FAILED" if finding.failed else "ok"
        note = f" ({finding.note})" if finding.note else ""
        print(f"lint: {name}: {what}: {word}, {seconds:.1f} s{note}", flush=True)
        if finding.failed:
            lines = finding.output.rstrip().split("\n")
            print("\n".join(f"   {line}" for line in lines[:SHOWN_LINES]), flush=True)
            if len(lines) > SHOWN_LINES:
                print(f"   ... {len(lines) - SHOWN_LINES} more lines", flush=True)
    forget_old_stamps()
    if arguments.junit:
        write_junit(arguments.junit, results)
    failed = [name for name, _, finding in results if finding.failed]
    which = f"; failed: {', '.join(failed)}" if failed else ""
    print(f"lint: {len(results) - len(failed)} of {len(results)} steps passed{which}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

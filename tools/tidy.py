"""The house rules that a compiler does not know, checked in about a second. STYLE.md says what they are and why.

    tools/tidy.py [--ratchet] [--root DIR]

Each message names what to do instead, and the reason. Two ways to differ: a measured limit (lines, methods,
parameters, files) may stand in tools/tidy-waivers.txt, where it can shrink and never grow; any other rule can be set
aside in one place by a comment on the line, or on the line above: `// tidy: allow(rule) the reason`.
--ratchet rewrites the waiver file to what is measured now, but adds nothing to it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cxx_scan import Source, Type
from house import (
    CXX,
    EMPTY_WORDS,
    FOLDER_FILES,
    FUNCTION_LINES,
    HEADER_LINES,
    LEAF_KINDS,
    LEAF_WORDS_ALLOWED,
    PARAMETERS,
    PUBLIC,
    PUBLIC_METHODS,
    README_LINES,
    ROOM_CMAKE_LINES,
    ROOMS,
    ROOTS,
    SOURCE_LINES,
    TEST_LINES,
    TEST_ROOMS,
    TODO_KINDS,
    VENDOR,
    WORDS,
    WORDS_ALLOWED,
    Place,
    closure,
    room_level,
)


@dataclass(frozen=True)
class Message:
    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


class Tidy:
    """One run over one tree."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.messages: list[Message] = []
        self.measured: dict[tuple[str, str], int] = {}
        self.limits: dict[tuple[str, str], tuple[int, str, int, str]] = {}
        self.files = sorted(self._list_files())
        self.leaf_names = {
            kind: {p.split("/")[2] for p in self.files if Place(p).leaf.startswith(f"{kind}/")}
            for kind in LEAF_KINDS
        }
        architecture = root / "ARCHITECTURE.md"
        self.architecture = architecture.read_text() if architecture.exists() else ""
        self._allowed: dict[str, dict[int, set[str]]] = {}

    def _list_files(self) -> Iterator[str]:
        listing = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard"],
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if listing.returncode == 0 and (self.root / ".git").exists():
            yield from (
                name
                for name in set(listing.stdout.split("\n"))
                if name and (self.root / name).is_file()
            )
            return
        for folder, folders, names in os.walk(self.root):
            folders[:] = [
                name
                for name in folders
                if not name.startswith(".") and name not in ("build", "dist")
            ]
            for name in names:
                yield str((Path(folder) / name).relative_to(self.root))

    # Telling.

    def tell(self, path: str, line: int, rule: str, text: str) -> None:
        allowed = self._allowed.get(path, {})
        if rule in allowed.get(line, ()) or rule in allowed.get(line - 1, ()):
            return
        self.messages.append(Message(path, line, rule, text))

    def measure(
        self, rule: str, key: str, value: int, limit: int, where: tuple[str, int], advice: str
    ) -> None:
        """Notes a size. Judged at the end, against the limit or the waiver. The larger counts when two share a key."""
        name = (rule, key)
        if value > self.measured.get(name, -1):
            self.measured[name] = value
            self.limits[name] = (limit, where[0], where[1], advice)

    # The run.

    def run(self) -> list[Message]:
        for path in self.files:
            if "/corpus/" in path:
                continue
            try:
                text = (self.root / path).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            self._note_allowances(path, text)
            self.check_text(path, text)
            if path.endswith(".md"):
                self.check_document(path, text)
            elif path.endswith(CXX):
                self.check_cxx(Place(path), text)
        self.check_folders()
        self.check_unbuilt()
        self.judge_sizes()
        self.messages.sort(key=lambda message: (message.path, message.line, message.rule))
        return self.messages

    def _note_allowances(self, path: str, text: str) -> None:
        if "tidy: allow" not in text or path.startswith("tools/"):
            return
        lines: dict[int, set[str]] = {}
        for number, line in enumerate(text.split("\n"), 1):
            match = re.search(r"tidy: allow\(([\w-]+)\)(.*)", line)
            if not match:
                continue
            if len(match.group(2).strip(" */")) < 8:
                self.messages.append(
                    Message(
                        path,
                        number,
                        "allow",
                        "say why after allow(...): an exception needs its reason",
                    )
                )
            lines.setdefault(number, set()).add(match.group(1))
        self._allowed[path] = lines

    # Any text file.

    _HOMES = "|".join(("home", "Users", "root", "work"))
    _MACHINE = re.compile(rf"(?<![\w.])/(?:{_HOMES})/[\w.-]+")
    _HOST = re.compile(
        r"\b(?:files\.pythonhosted|py" + r"pi)\.org\b|\b(?:deb|snapshot)\.debian\.org\b"
    )
    _TODO = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b(\(\w*\))?")

    def check_text(self, path: str, text: str) -> None:
        if path.startswith("tools/tidy"):
            return
        for number, line in enumerate(text.split("\n"), 1):
            if "/" in line and self._MACHINE.search(line):
                self.tell(
                    path,
                    number,
                    "machine-path",
                    "use a path relative to the repository or an option: this one exists on one machine only",
                )
            if ".org" in line and self._HOST.search(line):
                self.tell(
                    path,
                    number,
                    "registry-host",
                    "leave the choice of mirror to apt's and pip's own settings: many sites have their own",
                )
            if not path.endswith(".md"):
                for match in self._TODO.finditer(line):
                    self._check_todo(path, number, match)

    def _check_todo(self, path: str, number: int, match: re.Match[str]) -> None:
        word, kind = match.groups()
        if word == "TODO" and kind and kind.strip("()") in TODO_KINDS:
            return
        kinds = "|".join(TODO_KINDS)
        self.tell(
            path,
            number,
            "todo",
            f"write TODO({kinds}): a reader must know what is at stake if it stays",
        )

    def check_document(self, path: str, text: str) -> None:
        lines = text.split("\n")
        first = next((line for line in lines if line.strip()), "")
        if not first.startswith("# "):
            self.tell(
                path,
                1,
                "title",
                "begin with a `# Title` line: lists of documents are made from titles",
            )
        folder = Path(path).parent
        in_fence = False
        for number, line in enumerate(lines, 1):
            in_fence ^= line.startswith("```")
            for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", "" if in_fence else line):
                if "://" in target or target.startswith("mailto:"):
                    continue
                if not (self.root / folder / target).exists():
                    self.tell(
                        path,
                        number,
                        "link",
                        f"{target} does not exist: fix the link or write the page",
                    )
        if path.startswith("src/") and path.endswith("/README.md"):
            advice = (
                "keep what a newcomer needs, move the rest to docs/: one page is read, two are not"
            )
            self.measure("readme", path, len(lines) - 1, README_LINES, (path, 1), advice)

    # C++.

    def check_cxx(self, place: Place, text: str) -> None:
        source = Source(text)
        self.check_includes(place, source)
        self.check_shape(place, source)
        self.check_sizes(place, source)
        self.check_words(place, source)
        self.check_calls(place, source)
        self.check_state(place, source)
        self.check_transport_names(place, source)
        self.check_threads(place, source)

    def check_includes(self, place: Place, source: Source) -> None:
        for line, directive in source.directives:
            # The scan blanks literals; the line itself still has the name.
            if not re.match(r"#\s*include\b", directive):
                continue
            match = re.match(r"\s*#\s*include\s+([\"<][^\">]+)[\">]", source.lines[line - 1])
            if not match:
                continue
            target = match.group(1)
            if target.startswith('"'):
                self.check_include(place, line, target[1:])
                continue
            for pattern, home in VENDOR:
                if pattern.match(target) and not place.path.startswith(home + "/"):
                    self.tell(
                        place.path,
                        line,
                        "vendor",
                        f"only {home} may name {target}>: the rest must build where that library is absent",
                    )
        if place.room == PUBLIC:
            self._check_public_includes(place, source)

    def _check_public_includes(self, place: Place, source: Source) -> None:
        for line, directive in source.directives:
            text = source.lines[line - 1]
            if re.match(r"#\s*include\b", directive) and not re.search(
                r"<[a-z_0-9.]+>|\"moonpool/", text
            ):
                self.tell(
                    place.path,
                    line,
                    "include",
                    "a public header includes only the standard library and include/moonpool: users have nothing else",
                )

    def check_include(self, place: Place, line: int, target: str) -> None:
        parts = target.split("/")
        room = parts[0]
        if len(parts) == 1:
            if place.parts[0] != "src":
                return
            self.tell(
                place.path,
                line,
                "include",
                f'write "{"/".join(place.parts[1:-1])}/{target}": a path from src/ says which room it comes from',
            )
            return
        if place.is_test:
            return
        if room in TEST_ROOMS or Place(f"src/{target}").is_test:
            self.tell(
                place.path,
                line,
                "include",
                f"{target} is for tests: production code must not need it",
            )
            return
        if place.is_root or not place.room:
            return
        if room == PUBLIC:
            if place.room != PUBLIC:
                self.tell(
                    place.path,
                    line,
                    "include",
                    "only capi, cli and examples include the C API: it is built on the rooms, not the reverse",
                )
            return
        if room in ROOTS:
            self.tell(
                place.path,
                line,
                "include",
                f"pass what is needed down from {room}: composition roots are included by nobody",
            )
            return
        if room not in ROOMS:
            return
        self._check_direction(place, line, target, room)

    def _check_direction(self, place: Place, line: int, target: str, room: str) -> None:
        allowed = set(closure(place.room))
        if place.leaf:
            for extra in LEAF_KINDS[place.room]:
                allowed |= closure(extra)
        if place.room in ROOMS and room not in allowed:
            names = ", ".join(sorted(closure(place.room) - {place.room}))
            self.tell(
                place.path,
                line,
                "include",
                f"{place.room} (level {room_level(place.room)}) must not know {room} (level {room_level(room)}), only "
                f"{names or 'nothing'}: requests go down, results come up; pass an interface or move the code",
            )
            return
        target_leaf = Place(f"src/{target}").leaf
        if room in LEAF_KINDS and target_leaf and target_leaf != place.leaf:
            self.tell(
                place.path,
                line,
                "leaf",
                f"include the contract {room}/{room}.h instead of {target_leaf}: a leaf can be absent, "
                "and only composition roots choose",
            )
        elif target == f"{room}/builtin.h" and room in LEAF_KINDS:
            self.tell(
                place.path,
                line,
                "leaf",
                "take factories as an argument: only composition roots know which leaves this build has",
            )

    def check_shape(self, place: Place, source: Source) -> None:
        path = place.path
        if path.endswith(".h") and place.room != PUBLIC:
            first = next((text for _, text in source.directives), "")
            if not re.match(r"#\s*pragma once", first):
                self.tell(
                    path,
                    1,
                    "pragma-once",
                    "begin with #pragma once: guards need names, and names collide",
                )
        if (
            path.endswith(".cc")
            and path[:-3] + ".h" in self.files
            and place.parts[0] in ("src", "tests")
        ):
            own = path[:-3].removeprefix("src/") + ".h"
            first_line = next(
                (n for n, text in source.directives if re.match(r"#\s*include", text)), 0
            )
            names = (
                (f'"{own}"',)
                if place.parts[0] == "src"
                else (f'"{own}"', f'"{own.rsplit("/", 1)[-1]}"')
            )
            if first_line and not any(name in source.lines[first_line - 1] for name in names):
                self.tell(
                    path,
                    first_line,
                    "own-header",
                    f'include "{own}" first: that proves it compiles alone',
                )
        self._check_conditionals(place, source)

    def _check_conditionals(self, place: Place, source: Source) -> None:
        if place.leaf or place.path.startswith("src/base/port"):
            return
        for line, text in source.directives:
            if not re.match(r"#\s*(if|ifdef|ifndef|elif)\b", text):
                continue
            if place.room == PUBLIC and re.search(r"__cplusplus|_H_?\b", text):
                continue
            self.tell(
                place.path,
                line,
                "if",
                "move what differs into base/port or a leaf: two programs in one file are tested as one and a half",
            )

    def check_sizes(self, place: Place, source: Source) -> None:
        path = place.path
        lines = len(source.lines) - 1
        if path.endswith(".h"):
            self.measure(
                "header",
                path,
                lines,
                HEADER_LINES,
                (path, 1),
                "find the second concept and split it",
            )
        elif place.is_test:
            self.measure("test", path, lines, TEST_LINES, (path, 1), "split by behaviour")
        else:
            self.measure(
                "source",
                path,
                lines,
                SOURCE_LINES,
                (path, 1),
                "find the second concept and split it",
            )
        for function in source.functions:
            key = f"{path}:{function.name}"
            if function.defined:
                length = function.end_line - function.line + 1
                self.measure(
                    "function",
                    key,
                    length,
                    FUNCTION_LINES,
                    (path, function.line),
                    "name a step and make it a function",
                )
            declared_elsewhere = path.endswith(".cc") and "::" in function.local_name
            # What Create(options) passes to its private constructor is nobody else's business.
            if place.is_test:
                continue
            if function.private and function.name.endswith(
                f"{function.local_name}::{function.local_name}"
            ):
                continue
            if not declared_elsewhere and not re.fullmatch(r"[A-Z][A-Z0-9_]+", function.local_name):
                self.measure(
                    "parameters",
                    key,
                    function.parameters,
                    PARAMETERS,
                    (path, function.line),
                    "give it an options struct: callers then name what they pass",
                )
        for found in source.types:
            self.measure(
                "methods",
                f"{path}:{found.name}",
                len(found.public_methods),
                PUBLIC_METHODS,
                (path, found.line),
                "find the second noun in it",
            )

    def check_words(self, place: Place, source: Source) -> None:
        """The vocabulary is what headers say to other rooms; tests, and types inside types, are free."""
        if (
            place.parts[0] not in ("src", "include")
            or place.is_test
            or not place.path.endswith(".h")
        ):
            return
        for found in source.types:
            if "::" not in found.name:
                self._check_word(place, found)

    def _check_word(self, place: Place, found: Type) -> None:
        name = found.name.rsplit("::", 1)[-1]
        allowed = LEAF_WORDS_ALLOWED if place.leaf else WORDS_ALLOWED.get(place.room, ())
        if name in WORDS and name not in allowed:
            self.tell(
                place.path,
                found.line,
                "word",
                f"{name} is not our word; call it {WORDS[name]}, or what it is: one concept, one word (glossary)",
            )
        elif EMPTY_WORDS.search(name):
            self.tell(
                place.path,
                found.line,
                "word",
                f"say what {name} does: Manager, Helper, Util, Impl2, New, Real, V1 tell a reader nothing",
            )

    # (rule, pattern, what to do and why). Where each does not apply is in _exempt.
    _CALLS = (
        (
            "getenv",
            re.compile(r"\b(?:secure_getenv|getenv|setenv|unsetenv|putenv)\s*\("),
            "take it through Options: only python, capi and cli read the environment, so that tests need not set it",
        ),
        (
            "detach",
            re.compile(r"(?:\.|->)detach\s*\("),
            "use base/thread and join: a detached thread outlives what it uses",
        ),
        (
            "sleep",
            re.compile(r"\b(?:sleep_for|sleep_until|usleep|nanosleep|clock_nanosleep)\b"),
            "wait for the event, or drive a manual clock: a sleep is either too short or too long",
        ),
        (
            "volatile",
            re.compile(r"(?<!asm )(?<!asm__ )\bvolatile\b"),
            "use std::atomic, and name the operation that it pairs with: volatile orders nothing",
        ),
        (
            "new",
            re.compile(r"\bnew\s+(?!\()[A-Za-z_:]|\bnew\s*\(\s*std::nothrow"),
            "use std::make_unique (or unique_ptr<T>(new T) where the constructor is private): one owner, visible",
        ),
        (
            "delete",
            re.compile(r"(?<!operator )\bdelete\b(?!\s*[;,)])|(?<!=)(?<!= )\bdelete\s*;"),
            "let a unique_ptr delete it: one owner, visible",
        ),
        (
            "print",
            re.compile(
                r"\bstd::(?:cout|cerr|clog)\b|(?<![\w.>])(?:std::)?(?:printf|puts|vprintf|fprintf)\s*\("
            ),
            "use base/log, or return the text: output belongs to the composition roots",
        ),
    )

    _OWNED_AT_ONCE = re.compile(r"(unique_ptr\s*<[^;{}]*>\s*\w*\(|\.reset\()\s*$")

    def _exempt(self, rule: str, place: Place) -> bool:
        if rule == "getenv":
            return place.is_root or place.is_test
        if rule == "sleep":
            return place.path.startswith(("src/base/", "src/testing/"))
        if rule == "print":
            return (
                place.is_root
                or place.is_test
                or place.path.startswith(("src/base/log", "src/base/check"))
            )
        if rule in ("new", "delete"):
            return place.path.endswith(".c")
        return False

    def check_calls(self, place: Place, source: Source) -> None:
        for rule, pattern, advice in self._CALLS:
            if self._exempt(rule, place):
                continue
            for match in pattern.finditer(source.code):
                before = source.code[max(0, match.start() - 200) : match.start()]
                if rule == "new" and self._OWNED_AT_ONCE.search(before):
                    continue
                if rule in ("new", "delete") and before.endswith("operator "):
                    continue
                line = source.line_at(match.start())
                self.tell(place.path, line, rule, f"`{' '.join(match.group().split())}`: {advice}")

    def check_state(self, place: Place, source: Source) -> None:
        if place.parts[0] == "examples":
            return
        advice = "put it into the object that `main` builds and passes down: tests and two engines must not share it"
        for variable in source.variables:
            if re.search(
                r"\b(const|constexpr|constinit const|consteval)\b", variable.text.split("=")[0]
            ):
                continue
            self.tell(
                place.path,
                variable.line,
                "static",
                f"`{variable.text[:60]}` is mutable and global; {advice}",
            )
        pattern = re.compile(r"\bstatic\s+(?!const\b|constexpr\b)[A-Za-z_:]|\bthread_local\b")
        for function in source.functions:
            start, end = function.body
            for match in pattern.finditer(source.code, start, end):
                statement = source.code[match.start() : source.code.find(";", match.start())]
                if re.search(r"\b(const|constexpr)\b", statement.split("=")[0]):
                    continue
                self.tell(
                    place.path,
                    source.line_at(match.start()),
                    "static",
                    f"`{' '.join(statement.split())[:60]}` outlives the call; {advice}",
                )

    def check_transport_names(self, place: Place, source: Source) -> None:
        if place.is_root or place.is_test or (place.room == "transport" and place.leaf):
            return
        names = self.leaf_names["transport"]
        for line, literal in source.literals:
            if literal in names and "#include" not in source.lines[line - 1]:
                self.tell(
                    place.path,
                    line,
                    "transport-name",
                    f'do not name "{literal}": ask for a capability, so that a transport is added by adding a folder',
                )

    def check_threads(self, place: Place, source: Source) -> None:
        if place.is_test or place.parts[0] != "src":
            return
        for line, literal in source.literals:
            if re.match(r"mp-[a-z-]+$", literal) and literal.rstrip("-") not in self.architecture:
                self.tell(
                    place.path,
                    line,
                    "thread",
                    f"add {literal.rstrip('-')} to the table of ARCHITECTURE.md: a new thread changes the design",
                )

    # Folders, and what the build sees.

    def check_folders(self) -> None:
        code = [path for path in self.files if path.endswith((".h", ".cc", ".c", ".py", ".proto"))]
        # Tests beside the code do not count: they must not be what makes a folder too full.
        counts = Counter(str(Path(path).parent) for path in code if not Place(path).is_test)
        for folder in sorted({str(Path(path).parent) for path in code}):
            if "corpus" in folder:
                continue
            self.measure(
                "folder", folder, counts[folder], FOLDER_FILES, (folder, 1), "find the sub-room"
            )
            has_code = any(
                path.endswith((".h", ".cc")) and str(Path(path).parent) == folder
                for path in self.files
            )
            if (
                folder.startswith("src/")
                and has_code
                and folder.count("/") <= 2
                and "base/port" not in folder
            ):
                self._check_room_folder(folder)

    def _check_room_folder(self, folder: str) -> None:
        if f"{folder}/README.md" not in self.files:
            self.tell(
                folder,
                1,
                "readme",
                "add README.md: purpose, files in reading order, invariants, threads, how to test",
            )
        cmake = f"{folder}/CMakeLists.txt"
        if cmake in self.files:
            lines = (self.root / cmake).read_text().count("\n")
            advice = "move what is not this room's business to cmake/"
            self.measure("cmake", cmake, lines, ROOM_CMAKE_LINES, (cmake, 1), advice)

    def check_unbuilt(self) -> None:
        """A source file that no target builds is dead, or not tested. Only judged by a build newer than the file."""
        built: set[str] = set()
        times = []
        for commands in (self.root / "build").glob("*/compile_commands.json"):
            times.append(commands.stat().st_mtime)
            for entry in json.loads(commands.read_text()):
                path = os.path.normpath(os.path.join(entry["directory"], entry["file"]))
                built.add(os.path.relpath(path, self.root))
        if not (self.root / "build" / "release" / "compile_commands.json").exists():
            return
        for path in self.files:
            place = Place(path)
            if not path.endswith((".cc", ".c")) or not path.startswith(
                ("src/", "tests/", "examples/", "bench/")
            ):
                continue
            if (
                path in built
                or path.endswith("_fuzz.cc")
                or (self.root / path).stat().st_mtime > max(times)
            ):
                continue
            folder = str(Path(path).parent)
            cmake = self.root / folder / "CMakeLists.txt"
            if cmake.exists() and re.search(
                rf"\b{re.escape(Path(path).name)}\b", cmake.read_text()
            ):
                continue  # one of two, chosen by what this machine has
            if place.leaf and not any(name.startswith(folder + "/") for name in built):
                continue  # a leaf whose library is absent here
            self.tell(
                path, 1, "unbuilt", "name it in its CMakeLists.txt or delete it: nothing builds it"
            )

    # Sizes against the waivers.

    @property
    def waiver_path(self) -> Path:
        return self.root / "tools" / "tidy-waivers.txt"

    def read_waivers(self) -> dict[tuple[str, str], tuple[int, str]]:
        waivers = {}
        if self.waiver_path.exists():
            for line in self.waiver_path.read_text().split("\n"):
                words = line.split("#", 1)[0].split()
                if len(words) >= 3:
                    waivers[words[0], words[1]] = (int(words[2]), line.partition("#")[2].strip())
        return waivers

    def judge_sizes(self) -> None:
        waivers = self.read_waivers()
        for name, value in self.measured.items():
            limit, path, line, advice = self.limits[name]
            declared = (name[0], name[1].replace(".cc:", ".h:", 1))
            if name[0] == "parameters" and declared != name and declared in self.measured:
                continue  # judged where it is declared
            waived = waivers.get(name, (0, ""))[0]
            if value <= limit:
                if waived:
                    self._tell_waiver(
                        f"{name[0]} {name[1]} is within its limit of {limit} now: remove its line"
                    )
                continue
            if not waived:
                self.tell(path, line, name[0], f"{name[1]}: {value}, limit {limit}; {advice}")
            elif value > waived:
                self.tell(
                    path,
                    line,
                    name[0],
                    f"{name[1]}: {value}, waived up to {waived}: a waiver never grows; {advice}",
                )
            elif value < waived:
                self._tell_waiver(
                    f"{name[0]} {name[1]} is {value} now: lower its line from {waived}"
                )
        for name in waivers.keys() - self.measured.keys():
            self._tell_waiver(f"{name[0]} {name[1]} does not exist any more: remove its line")

    def _tell_waiver(self, text: str) -> None:
        self.messages.append(
            Message(
                "tools/tidy-waivers.txt", 1, "ratchet", f"{text} (tools/tidy.py --ratchet does it)"
            )
        )

    def ratchet(self) -> None:
        """Rewrites the waivers: lower where things have shrunk, gone where they fit; never higher, never new."""
        waivers = self.read_waivers()
        kept = []
        for line in self.waiver_path.read_text().split("\n") if self.waiver_path.exists() else []:
            words = line.split("#", 1)[0].split()
            if len(words) < 3:
                kept.append(line)
                continue
            name = (words[0], words[1])
            value = self.measured.get(name, 0)
            limit = self.limits.get(name, (0,))[0]
            if value > limit:
                waived, reason = waivers[name]
                kept.append(
                    f"{name[0]} {name[1]} {min(value, waived)}"
                    + (f"  # {reason}" if reason else "")
                )
        self.waiver_path.write_text("\n".join(kept))


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/tidy.py", description=__doc__.split("\n\n")[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument(
        "--ratchet", action="store_true", help="lower the waivers to what is measured now"
    )
    arguments = parser.parse_args()
    tidy = Tidy(arguments.root)
    messages = tidy.run()
    if arguments.ratchet:
        tidy.ratchet()
        messages = [message for message in messages if message.rule != "ratchet"]
    for message in messages:
        print(message)
    if messages:
        print(
            f"tidy: {len(messages)} to mend; the rules and their reasons are in STYLE.md",
            file=sys.stderr,
        )
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())

"""Each rule of tidy fires on a bad sample, says what to do, and is silent on a good one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cxx_scan import Source
from house import LEAF_KINDS, ROOMS
from tidy import Message, Tidy, room_level

README = "# A room\n"


class House:
    """A small tree in a temporary folder. Every room in it has its README, so that only the sample speaks."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        if path.startswith("src/") and not (file.parent / "README.md").exists():
            (file.parent / "README.md").write_text(README)

    def tidy(self) -> list[Message]:
        return Tidy(self.root).run()

    def rules(self) -> list[str]:
        return [message.rule for message in self.tidy()]


@pytest.fixture
def house(tmp_path: Path) -> House:
    (tmp_path / "tools").mkdir()
    return House(tmp_path)


def function_of(lines: int) -> str:
    return "void Long() {\n" + "  Step();\n" * (lines - 2) + "}\n"


def class_with(methods: int) -> str:
    body = "".join(f"  int Method{n}(int a) const;\n" for n in range(methods))
    return f"#pragma once\nclass Wide {{\n public:\n{body}}};\n"


HEADER = "#pragma once\n"

# rule, path, bad, good
SAMPLES = [
    # Direction.
    ("include", "src/base/a.cc", '#include "net/socket.h"\n', '#include "base/status.h"\n'),
    ("include", "src/memory/a.cc", '#include "net/socket.h"\n', '#include "device/device.h"\n'),
    (
        "include",
        "src/engine/a.cc",
        '#include "store/object.h"\n',
        '#include "transport/transport.h"\n',
    ),
    ("include", "src/engine/a.cc", '#include "cli/main.h"\n', '#include "registry/registry.h"\n'),
    ("include", "src/engine/a.cc", '#include "testing/clock.h"\n', '#include "base/clock.h"\n'),
    ("include", "src/engine/a.cc", '#include "node.h"\n', '#include "engine/node.h"\n'),
    ("include", "src/engine/a.cc", '#include "moonpool/moonpool.h"\n', "#include <vector>\n"),
    ("include", "include/moonpool/a.h", "#include <boost/asio.hpp>\n", "#include <stdint.h>\n"),
    # Leaves.
    (
        "leaf",
        "src/engine/a.cc",
        '#include "transport/tcp/lane.h"\n',
        '#include "transport/transport.h"\n',
    ),
    (
        "leaf",
        "src/transport/tcp/a.cc",
        '#include "transport/local/x.h"\n',
        '#include "transport/tcp/x.h"\n',
    ),
    ("leaf", "src/engine/a.cc", '#include "transport/builtin.h"\n', "int F();\n"),
    ("vendor", "src/engine/a.cc", "#include <infiniband/verbs.h>\n", "#include <vector>\n"),
    ("vendor", "src/engine/a.cc", "#include <hwloc.h>\n", "#include <vector>\n"),
    # Sizes.
    ("function", "src/engine/a.cc", function_of(71), function_of(70)),
    ("source", "src/engine/a.cc", "int F();\n" * 801, "int F();\n" * 800),
    ("header", "src/engine/a.h", HEADER + "int F();\n" * 300, HEADER + "int F();\n" * 299),
    ("test", "src/engine/a_test.cc", "int F();\n" * 1001, "int F();\n" * 1000),
    ("methods", "src/engine/a.h", class_with(21), class_with(20)),
    (
        "parameters",
        "src/engine/a.h",
        HEADER + "void F(int a, int b, int c, int d, int e);\n",
        HEADER + "void F(std::map<int, int> a, std::function<void(int, int)> b, int c, int d);\n",
    ),
    ("readme", "src/engine/README.md", "# T\n" + "x\n" * 60, "# T\n" + "x\n" * 59),
    # Shape.
    ("if", "src/engine/a.cc", "#ifdef USE_CUDA\n#endif\n", "int F();\n"),
    (
        "if",
        "src/engine/a.cc",
        "#if defined(__x86_64__)\n#endif\n",
        '// #if\nconst char* F() { return "#if"; }\n',
    ),
    ("pragma-once", "src/engine/a.h", "#ifndef A_H\n#define A_H\n#endif\n", "#pragma once\n"),
    # Calls.
    (
        "getenv",
        "src/engine/a.cc",
        'void F() { getenv("X"); }\n',
        'void F() { Get("getenv("); }  // getenv()\n',
    ),
    (
        "detach",
        "src/engine/a.cc",
        "void F() { t.detach(); }\n",
        "void F() { lane.Detach(peer); }\n",
    ),
    (
        "sleep",
        "src/engine/a_test.cc",
        "void F() { std::this_thread::sleep_for(s); }\n",
        "void F() { Wait(s); }\n",
    ),
    (
        "volatile",
        "src/engine/a.cc",
        "volatile int* F();\n",
        'void F() { asm volatile("pause"); }\n',
    ),
    (
        "new",
        "src/engine/a.cc",
        "void F() { auto* a = new Node(1); }\n",
        "void F() { std::make_unique<Node>(1); }\n",
    ),
    (
        "new",
        "src/engine/a.cc",
        "void F() { return Wrap(new Node); }\n",
        "auto F() { return std::unique_ptr<Node>(new Node(1)); }\n",
    ),
    (
        "new",
        "src/engine/a.cc",
        "int* F() { return new int[3]; }\n",
        "void F() { new (place) Node(1); }\n",
    ),
    (
        "delete",
        "src/engine/a.cc",
        "void F() { delete a; }\n",
        "struct A { A(const A&) = delete; };\n",
    ),
    ("delete", "src/engine/a.cc", "void F() { delete[] a; }\n", "void F() { int deleted; }\n"),
    (
        "print",
        "src/engine/a.cc",
        'void F() { std::cout << 1; printf("x"); }\n',
        "void F() { snprintf(b, 1, c); }\n",
    ),
    # State.
    ("static", "src/engine/a.cc", "int g_count = 0;\n", "constexpr int kCount = 0;\n"),
    (
        "static",
        "src/engine/a.cc",
        "namespace {\nstd::atomic<int> count{0};\n}\n",
        "namespace {\nconst int kN{0};\n}\n",
    ),
    (
        "static",
        "src/engine/a.cc",
        "void F() { static int n = 0; }\n",
        "void F() { static const int n = 0; }\n",
    ),
    ("static", "src/engine/a.cc", "thread_local int n = 0;\n", "static int F(int n);\n"),
    (
        "static",
        "src/engine/a.h",
        HEADER + "class A {\n  static int n_;\n};\n",
        HEADER + "class A {\n  int n_ = 0;\n};\n",
    ),
    (
        "static",
        "src/engine/a.h",
        HEADER + "inline int n = 1;\n",
        HEADER + "inline constexpr int kN = 1;\n",
    ),
    # Words.
    ("word", "src/engine/a.h", HEADER + "class Session {};\n", HEADER + "class Peer {};\n"),
    (
        "word",
        "src/engine/a.h",
        HEADER + "class Connection {};\n",
        HEADER + "class A {\n  class Connection {};\n};\n",
    ),
    ("word", "src/engine/a.h", HEADER + "using Buffer = int;\n", HEADER + "using Bytes = int;\n"),
    (
        "word",
        "src/engine/a.h",
        HEADER + "class PeerManager {};\n",
        HEADER + "class PeerTable {};\n",
    ),
    ("word", "src/engine/a.h", HEADER + "struct NewTransfer {};\n", HEADER + "struct Newest {};\n"),
    ("todo", "src/engine/a.cc", "// TODO: faster\n", "// TODO(speed): faster\n"),
    ("todo", "src/engine/a.cc", "// FIXME later\n", "// Fixed.\n"),
    # Text.
    ("title", "docs/a.md", "words\n", "# Title\n"),
    ("link", "docs/a.md", "# T\n[x](gone.md)\n", "# T\n[x](a.md) [y](https://example.com/z)\n"),
    ("machine-path", "src/engine/a.cc", '// see "/ho' + 'me/me/x"\n', "// see /dev/shm\n"),
    ("machine-path", "docs/a.md", "# T\n/ro" + "ot/x\n", "# T\nsrc/ro" + "ot/x\n"),
    ("registry-host", "docs/a.md", "# T\npy" + "pi.org\n", "# T\nfrom PyPI\n"),
]


@pytest.mark.parametrize(
    ("rule", "path", "bad", "good"),
    SAMPLES,
    ids=[f"{sample[0]}-{n}" for n, sample in enumerate(SAMPLES)],
)
def test_rule(house: House, rule: str, path: str, bad: str, good: str) -> None:
    house.write(path, bad)
    fired = [message for message in house.tidy() if message.rule == rule]
    assert fired, f"{rule} is silent about: {bad}"
    assert all(len(message.text) > 20 for message in fired)
    house.write(path, good)
    assert rule not in house.rules()


def test_a_transport_is_named_only_by_its_leaf_and_by_composition_roots(house: House) -> None:
    naming = 'bool F() { return name == "tcp"; }\n'
    house.write("src/transport/tcp/tcp.cc", naming)
    house.write("src/cli/main.cc", naming)
    house.write("src/engine/engine_test.cc", naming)
    assert house.rules() == []
    house.write("src/engine/engine.cc", naming)
    assert house.rules() == ["transport-name"]


def test_parameters_are_judged_where_they_are_declared(house: House) -> None:
    many = "void F(int a, int b, int c, int d, int e)"
    house.write("src/engine/a.cc", f'#include "engine/a.h"\n{many} {{}}\n')
    assert house.rules() == ["parameters"]
    house.write("src/engine/a.h", f"{HEADER}{many};\n")
    assert [(message.rule, message.path) for message in house.tidy()] == [
        ("parameters", "src/engine/a.h")
    ]


def test_a_thread_stands_in_the_table(house: House) -> None:
    house.write("src/engine/a.cc", 'void F() { Start("mp-worker-"); }\n')
    assert house.rules() == ["thread"]
    house.write("ARCHITECTURE.md", "# Threads\n| `mp-worker-N` |\n")
    assert house.rules() == []


def test_own_header_comes_first(house: House) -> None:
    house.write("src/engine/node.h", HEADER)
    house.write("src/engine/node.cc", '#include <vector>\n\n#include "engine/node.h"\n')
    assert house.rules() == ["own-header"]
    house.write("src/engine/node.cc", '#include "engine/node.h"\n\n#include <vector>\n')
    assert house.rules() == []


def test_a_folder_holds_25_files_at_most(house: House) -> None:
    for number in range(25):
        house.write(f"src/engine/f{number}.h", HEADER)
        house.write(f"src/engine/f{number}_test.cc", "int F();\n")
    assert house.rules() == []
    house.write("src/engine/f25.h", HEADER)
    assert house.rules() == ["folder"]


def test_a_room_has_a_readme_and_a_short_cmake_file(house: House) -> None:
    house.write("src/engine/a.h", HEADER)
    (house.root / "src/engine/README.md").unlink()
    assert house.rules() == ["readme"]
    house.write("src/engine/CMakeLists.txt", "set(A 1)\n" * 31)
    assert "cmake" in house.rules()


def test_what_no_target_builds_is_told(house: House) -> None:
    house.write("src/engine/a.cc", "int A();\n")
    house.write("src/engine/b.cc", "int B();\n")
    house.write("src/transport/tcp/c.cc", "int C();\n")  # the whole leaf is absent from this build
    entry = {
        "directory": str(house.root / "build/release"),
        "file": "../../src/engine/a.cc",
        "command": "c++",
    }
    house.write("build/release/compile_commands.json", json.dumps([entry]))
    assert [(message.rule, message.path) for message in house.tidy()] == [
        ("unbuilt", "src/engine/b.cc")
    ]


def test_an_exception_needs_its_reason(house: House) -> None:
    house.write(
        "src/engine/a.cc",
        "// tidy: allow(static) set once by the signal handler\nint g_signal = 0;\n",
    )
    assert house.rules() == []
    house.write("src/engine/a.cc", "int g_signal = 0;  // tidy: allow(static)\n")
    assert house.rules() == ["allow"]
    house.write("src/engine/a.cc", "int g_signal = 0;  // tidy: allow(new) not this rule\n")
    assert house.rules() == ["static"]


def test_a_waiver_shrinks_and_never_grows(house: House) -> None:
    waivers = house.root / "tools" / "tidy-waivers.txt"
    key = "function src/engine/a.cc:Long"
    waivers.write_text(f"# Why.\n{key} 80  # a table\n")
    house.write("src/engine/a.cc", function_of(80))
    assert house.rules() == []
    house.write("src/engine/a.cc", function_of(81))
    assert house.rules() == ["function"]
    house.write("src/engine/a.cc", function_of(75))
    assert house.rules() == ["ratchet"]
    tidy = Tidy(house.root)
    tidy.run()
    tidy.ratchet()
    assert waivers.read_text() == f"# Why.\n{key} 75  # a table\n"
    assert house.rules() == []
    house.write("src/engine/a.cc", function_of(70))
    assert house.rules() == ["ratchet"]


def test_the_table_has_no_cycle_and_only_known_rooms() -> None:
    assert {name for names in ROOMS.values() for name in names} <= ROOMS.keys()
    assert {name for names in LEAF_KINDS.values() for name in names} <= ROOMS.keys()
    assert room_level("base") == 0
    assert all(
        room_level(below) < room_level(room) for room, names in ROOMS.items() for below in names
    )


# The scanner: what the sizes stand on.


def test_scan_finds_functions_with_their_parameters() -> None:
    source = Source(
        """
namespace a {
class Node final : public Base<int, long> {
 public:
  explicit Node(int a, std::vector<int> b = {1, 2}) : a_{a}, b_(b) { Use(); }
  bool operator==(const Node&) const = default;
  [[nodiscard]] Result<std::map<int, int>> Find(std::string_view key, int n) const MOONPOOL_EXCLUDES(mutex_);
  int size() const { return f([](int x) { return x; }, 2); }
  std::function<void(int, int)> callback;
  int (*raw)(int, int, int);
 private:
  int hidden(int a);
  int count_ MOONPOOL_GUARDED_BY(mutex_) = f(3);
};
template <typename T, typename U>
auto Apply(T t, U u) -> decltype(t(u)) {
  if (t) { return t(u); }
}
}  // namespace a
"""
    )
    found = {function.name: function.parameters for function in source.functions}
    assert found == {
        "Node::Node": 2,
        "Node::operator_": 1,
        "Node::Find": 2,
        "Node::size": 0,
        "Node::hidden": 1,
        "Apply": 2,
    }
    node = next(found for found in source.types if found.name == "Node")
    assert len(node.public_methods) == 2


def test_scan_is_not_fooled_by_literals_and_comments() -> None:
    source = Source(
        "const char* kA = \"{ // \\\" {\";\n/* { */ const char kB = '{';\nint kC = 1'000;\nvoid F() {}\n"
    )
    assert [function.name for function in source.functions] == ["F"]
    assert Source('const char* k = R"x({ ")" {)x";\nvoid G() {}\n').functions[0].line == 2


def test_scan_reads_c() -> None:
    source = Source(
        'extern "C" {\ntypedef struct point {\n  int x;\n} point;\ntypedef enum { A } kind;\n'
        "int f(const point* p);\n}\n"
        'extern "C" int Fuzz(int n) {\n  int local = n;\n  return local;\n}\n'
    )
    assert source.variables == []
    assert [function.name for function in source.functions] == ["f", "Fuzz"]


def test_scan_measures_a_function_from_its_first_line_to_its_last() -> None:
    source = Source("int before;\n\nvoid\nF(int a,\n  int b) {\n  a();\n}\n")
    assert (source.functions[0].line, source.functions[0].end_line) == (3, 7)

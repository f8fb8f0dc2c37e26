"""Reads C++ well enough to measure it: functions, types, statements, literals. Not a parser.

`tools/tidy.py` uses this. It knows comments, literals, preprocessor lines, braces and parentheses, and tells namespace,
type, function and initializer apart by the text before a brace. That is fast (a megabyte a second), needs no
compiler, and is right for formatted code; what it cannot know (macros that hide braces) the house does not write.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, field

_LEXEME = re.compile(
    r"""
      (?P<number>\b\d[0-9a-zA-Z]*(?:'[0-9a-zA-Z]+)+)
    | (?P<raw>R"(?P<delimiter>[^()\\\s]{0,16})\(.*?\)(?P=delimiter)")
    | (?P<string>"(?:\\.|[^"\\\n])*")
    | (?P<char>'(?:\\.|[^'\\\n])+')
    | (?P<line>//(?:\\\n|[^\n])*)
    | (?P<block>/\*.*?\*/)
    """,
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
_TOKEN = re.compile(r"[{}();]")
_ACCESS = re.compile(r"\b(public|protected|private)\s*:(?!:)")
_NOT_NEWLINE = re.compile(r"[^\n]")
_MACRO = re.compile(
    r"\b(?:MOONPOOL_[A-Z_]+|noexcept|decltype|alignas|explicit|requires|__attribute__)\s*\("
)
_WORDS_BEFORE = re.compile(
    r"\b(?:MOONPOOL_[A-Z_]+|inline|virtual|constexpr|explicit|static|friend|typename)\b"
)
_TYPE_HEAD = re.compile(
    r"^(?:template\s+)?(?:typedef\s+)?(class|struct|union|enum)\b\s*(?:class\b|struct\b)?\s*([\w:]*)"
)
_OPERATOR = re.compile(
    r"operator\s*(?:\(\s*\)|\[\s*\]|[-+*/%^&|~!=<>]+|\"\"\s*\w+|new\b|delete\b|[\w:]+)"
)
_FUNCTION_NAME = re.compile(r"(~?[A-Za-z_][\w:~]*)\s*\(")


@dataclass
class Function:
    """A function declared or defined at namespace or class scope."""

    name: str  # with the types around it: Outer::Name
    line: int
    end_line: int
    parameters: int
    defined: bool
    body: tuple[int, int]  # offsets into Source.code; (0, 0) for a declaration
    local_name: str  # as written: may be qualified
    private: bool  # declared in a private part of its type


@dataclass
class Type:
    name: str
    line: int
    kind: str  # class, struct, union, enum, alias
    public_methods: set[str] = field(default_factory=set)


@dataclass
class Variable:
    """A statement at namespace scope, or a static one at class scope, that declares something with a value."""

    text: str
    line: int
    scope: str  # namespace or type


@dataclass
class _Scope:
    kind: str  # namespace, type, function, initializer, enum
    name: str = ""
    access: str = "public"
    depth: int = 1
    typedef: bool = False  # what follows the closing brace is a name, not a variable
    opened_at: int = 0
    head_at: int = 0
    type: Type | None = None


class Source:
    """One file, scanned at construction."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = text.split("\n")
        self.literals: list[tuple[int, str]] = []  # line, content of a string literal
        self.comments: list[tuple[int, str]] = []
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.code_with_directives = _LEXEME.sub(self._blank, text)
        self.code = _DIRECTIVE.sub(_blanks, self.code_with_directives)
        self.directives = [
            (self.line_at(match.start()), match.group().strip())
            for match in _DIRECTIVE.finditer(self.code_with_directives)
        ]
        self.functions: list[Function] = []
        self.types: list[Type] = []
        self.variables: list[Variable] = []
        self._scan()

    def line_at(self, offset: int) -> int:
        return bisect.bisect_right(self._starts, offset)

    def _blank(self, match: re.Match[str]) -> str:
        kind, token = match.lastgroup, match.group()
        if kind == "delimiter":
            kind = "raw"
        if kind == "number":
            return token
        if kind in ("string", "raw"):
            content = token[1:-1] if kind == "string" else token
            self.literals.append((self.line_at(match.start()), content))
            return '"' + _blanks_of(token[1:-1]) + '"'
        if kind == "char":
            return "'" + " " * (len(token) - 2) + "'"
        self.comments.append((self.line_at(match.start()), token))
        return _blanks_of(token)

    # The scan: one pass over the tokens, a stack of scopes, the offset where the current statement began.

    def _scan(self) -> None:
        stack = [_Scope("namespace")]
        head_at = 0
        parens = 0
        self._after_typedef = False
        for match in _TOKEN.finditer(self.code):
            token, at, top = match.group(), match.start(), stack[-1]
            if top.kind in ("function", "initializer", "enum"):
                if token == "{":
                    top.depth += 1
                elif token == "}":
                    top.depth -= 1
                    if top.depth == 0:
                        stack.pop()
                        self._after_typedef = top.typedef
                        if top.kind == "function":
                            self._close_function(top, at, stack[-1])
                        if top.kind != "initializer":
                            head_at = at + 1
                continue
            if token == "(":
                parens += 1
            elif token == ")":
                parens = max(0, parens - 1)
            elif parens > 0:
                continue
            elif token == ";":
                self._statement(head_at, at, top, stack)
                head_at = at + 1
            elif token == "{":
                scope = self._open(head_at, at, top)
                stack.append(scope)
                if scope.kind in ("namespace", "type"):
                    head_at = at + 1
            elif token == "}" and len(stack) > 1:
                self._after_typedef = stack.pop().typedef
                head_at = at + 1

    def _head(self, start: int, end: int, scope: _Scope) -> tuple[str, int]:
        """The statement's text without access labels, and where it begins. Notes the last label in the scope."""
        text = self.code[start:end]
        if scope.kind == "type":
            for label in _ACCESS.finditer(text):
                scope.access = label.group(1)
                start_of_rest = label.end()
                text = self.code[start + start_of_rest : end] if label.end() else text
            labels = list(_ACCESS.finditer(self.code, start, end))
            if labels:
                start = labels[-1].end()
                text = self.code[start:end]
        stripped = text.lstrip()
        return stripped.rstrip(), start + len(text) - len(stripped)

    def _open(self, start: int, at: int, scope: _Scope) -> _Scope:
        head, head_at = self._head(start, at, scope)
        plain = simplify(head)
        if re.match(r"(inline\s+)?namespace\b", plain) or re.fullmatch(r'extern\s*"[^"]*"', plain):
            return _Scope("namespace", name=scope.name, opened_at=at, head_at=head_at)
        match = _TYPE_HEAD.match(plain)
        if match and "(" not in plain and "=" not in plain:
            kind, name = match.groups()
            typedef = "typedef" in plain
            if kind == "enum":
                self.types.append(Type(_join(scope.name, name), self.line_at(head_at), "enum"))
                return _Scope("enum", typedef=typedef, opened_at=at, head_at=head_at)
            found = Type(_join(scope.name, name), self.line_at(head_at), kind)
            self.types.append(found)
            access = "private" if kind == "class" else "public"
            return _Scope(
                "type",
                found.name,
                access,
                typedef=typedef,
                opened_at=at,
                head_at=head_at,
                type=found,
            )
        before_paren = plain.split("(", 1)[0]
        if "(" not in plain or "=" in before_paren:
            return _Scope("initializer", opened_at=at, head_at=head_at)
        # `Foo(int a) : a_{a}, b_{} {`: braces after a member's name belong to the list, the last one to the body.
        if re.search(r"\)[^():]*(?<!:):(?!:)", plain) and re.search(r"[\w>]$", plain):
            return _Scope("initializer", opened_at=at, head_at=head_at)
        return _Scope("function", opened_at=at, head_at=head_at)

    def _close_function(self, body: _Scope, at: int, scope: _Scope) -> None:
        head = self.code[body.head_at : body.opened_at]
        self._function(head, body.head_at, scope, (body.opened_at, at))

    def _statement(self, start: int, at: int, scope: _Scope, stack: list[_Scope]) -> None:
        head, head_at = self._head(start, at, scope)
        if not head:
            return
        plain = simplify(head)
        if self._after_typedef:
            self._after_typedef = False
            return
        if not plain:
            return  # nothing but an annotation or a macro of ours
        alias = re.match(r"(?:template\s+)?using\s+(\w+)\s*=", plain)
        if alias:
            self.types.append(
                Type(_join(scope.name, alias.group(1)), self.line_at(head_at), "alias")
            )
            return
        if re.match(
            r"(using|typedef|static_assert|friend|namespace|template\s+(class|struct))\b", plain
        ):
            return
        if re.match(r"(?:class|struct|enum|union)\b[^=({]*$", plain):
            return  # forward declaration
        before_paren = plain.split("(", 1)[0]
        is_function = (
            "(" in plain and "=" not in _OPERATOR.sub("x", before_paren) and "{" not in before_paren
        )
        if is_function:
            self._function(head, head_at, scope, (0, 0))
        elif scope.kind == "namespace" and not plain.startswith("extern"):
            self.variables.append(Variable(plain, self.line_at(head_at), "namespace"))
        elif scope.kind == "type" and re.match(r"(inline\s+)?(static|thread_local)\b", plain):
            self.variables.append(Variable(plain, self.line_at(head_at), "type"))

    def _function(self, head: str, head_at: int, scope: _Scope, body: tuple[int, int]) -> None:
        plain = simplify(head)
        match = _FUNCTION_NAME.search(plain)
        if not match:
            return
        name = match.group(1)
        inside = balanced(plain, match.end() - 1)
        if inside.lstrip().startswith("*"):
            return  # a pointer to a function
        defined = body != (0, 0)
        self.functions.append(
            Function(
                name=_join(scope.name, name),
                line=self.line_at(head_at),
                end_line=self.line_at(body[1]) if defined else self.line_at(head_at),
                parameters=count_parameters(inside),
                defined=defined,
                body=body,
                local_name=name,
                private=scope.access == "private",
            )
        )
        if (
            scope.type is not None
            and scope.access == "public"
            and _counts_as_method(name, plain, scope)
        ):
            scope.type.public_methods.add(f"{name}({_blanks_squeezed(inside)})")


def _counts_as_method(name: str, plain: str, scope: _Scope) -> bool:
    """Constructors, destructors, operators, friends and what is deleted do not count."""
    own = scope.name.rsplit("::", 1)[-1]
    if name.startswith(("~", "operator_")) or name == own or plain.startswith("friend"):
        return False
    return not re.search(r"=\s*(delete|default)$", plain)


def _join(outer: str, name: str) -> str:
    return f"{outer}::{name}" if outer else name


def _blanks_of(text: str) -> str:
    return _NOT_NEWLINE.sub(" ", text)


def _blanks(match: re.Match[str]) -> str:
    return _blanks_of(match.group())


def _blanks_squeezed(text: str) -> str:
    return " ".join(text.split())


def balanced(text: str, opening: int) -> str:
    """What lies between the parenthesis at `opening` and its partner."""
    depth = 0
    for at in range(opening, len(text)):
        if text[at] in "([{":
            depth += 1
        elif text[at] in ")]}":
            depth -= 1
            if depth == 0:
                return text[opening + 1 : at]
    return text[opening + 1 :]


def count_parameters(inside: str) -> int:
    inside = inside.strip()
    if not inside or inside == "void":
        return 0
    depth = commas = 0
    for char in inside:
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            commas += 1
    return commas + 1


def simplify(head: str) -> str:
    """Takes out what hides a statement's shape: template arguments, attributes, annotation macros."""
    text = " ".join(head.split())
    text = _OPERATOR.sub(lambda match: "operator_" + re.sub(r"\W", "", match.group()[8:]), text)
    text = re.sub(r"\[\[.*?\]\]", " ", text)
    text = text.replace("->", " ")
    while True:
        shorter = re.sub(r"<[^<>;]*>", " ", text)
        if shorter == text:
            break
        text = shorter
    while True:
        match = _MACRO.search(text)
        if not match:
            break
        end = match.end() + len(balanced(text, match.end() - 1)) + 1
        text = text[: match.start()] + " " + text[end:]
    text = _WORDS_BEFORE.sub(lambda match: match.group() if match.group() in _KEPT else " ", text)
    return " ".join(text.split())


_KEPT = frozenset({"static", "friend", "constexpr", "inline"})

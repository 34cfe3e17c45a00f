"""What a mutant is: one module with one small thing in it changed, made from its syntax tree.

Not changed, because nobody's behaviour depends on it: docstrings, annotations, the words of messages (f-strings, and
what is given to a call that makes an error or a note), `__all__`, imports, what only a type checker reads, and
`assert_never`.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import CodeType
from typing import Any

COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
RECKONED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
WORDS = {  # one of these for its neighbour: the commonest slip of all
    "State": ("STARTED", "COMPLETED", "CLOSED", "RELEASED", "IN_DOUBT"),
    "Role": ("HOLDER", "PASSER_BY", "LOOKUP", "OPERATOR"),
    "Kind": ("ATOMIC", "KEYED", "ASKS", "REPEATABLE", "OPAQUE"),
}
EITHER_WAY = {"min", "max", "compare_digest", "isinstance"}  # swapped, the first three say the same, the last nothing
# Calls whose strings are for people: errors and notes, and the reason kept beside a move.
SPOKEN = {
    "note", "in_doubt", "doubt_note", "fenced", "Fenced", "InProgress", "ValueError", "TypeError", "KeyError",
    "NoForm", "stop", "NotStorable",
}  # fmt: skip
SPOKEN_ENDINGS = ("Error", "Malformed", "Missing", "Unreadable", "Misconfigured", "Unavailable", "Reused")


@dataclass(frozen=True)
class Mutant:
    module: str  # samekey.core.attempt
    number: int  # which of the module's mutants: how it is made again
    line: int
    statement: int  # where the statement around it begins: not every line of one shows when it runs
    within: str  # the function or class, "" at the top of the module
    at_import: bool  # it stands outside the bodies of functions
    kind: str
    change: str  # before => after
    name: str  # the same as long as the code around it is: what survivors.txt speaks of
    text: str  # a digest of the function, class or line at the top of the module in which it stands

    @contextmanager
    def tree(self, path: Path) -> Iterator[ast.Module]:
        """The module with this one thing changed, for as long as somebody looks at it."""
        tree, changes = _read(path)
        site, _kind, made = changes[self.number]
        old = site.get()
        if not hasattr(made, "lineno"):  # a part of the old one, put in its place, knows where it is
            ast.fix_missing_locations(ast.copy_location(made, old))
        site.put(made)
        try:
            yield tree
        finally:
            site.put(old)

    def code(self, path: Path) -> CodeType:
        """The same, compiled."""
        with self.tree(path) as tree:
            return compile(tree, str(path), "exec", dont_inherit=True)


@cache
def _read(path: Path) -> tuple[ast.Module, list[tuple[Site, str, Any]]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return tree, list(_changes(tree))


def mutants(module: str, path: Path) -> list[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    tree, changes = _read(path)
    texts = [(one.end_lineno or 0, sha256(ast.dump(one).encode()).hexdigest()[:12]) for one in tree.body]
    found: list[Mutant] = []
    met: Counter[str] = Counter()
    for number, (site, kind, made) in enumerate(changes):
        shown = site.shown
        before = _brief(ast.unparse(shown))
        old = site.get()
        site.put(made)
        after = _brief(ast.unparse(ast.fix_missing_locations(shown))) if shown is not old else _brief(_text(made))
        site.put(old)
        change = f"{before} => {after}"
        name = f"{module.removeprefix('samekey.')}:{site.within or '-'}: {change}"
        met[name] += 1
        if met[name] > 1:
            name += f" ({met[name]})"
        text = next(text for end, text in texts if site.line <= end)
        found.append(
            Mutant(module, number, site.line, site.statement, site.within, site.at_import, kind, change, name, text)
        )
    return found


def _brief(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 150 else line[:100] + " ... " + line[-45:]


def _text(node: Any) -> str:
    return "nothing" if node is None or isinstance(node, ast.Pass) else ast.unparse(ast.fix_missing_locations(node))


# -- where something can be changed --------------------------------------------------------------------------


@dataclass
class Site:
    """A place in the tree: a field of a node, or one of its list."""

    parent: ast.AST
    field: str
    index: int | None
    within: str
    line: int
    statement: int
    at_import: bool
    shown: ast.AST  # what to show of the change: the smallest thing around it that reads as code

    def get(self) -> Any:
        value = getattr(self.parent, self.field)
        return value if self.index is None else value[self.index]

    def put(self, node: Any) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def _changes(tree: ast.Module) -> Iterator[tuple[Site, str, Any]]:
    """Each place with what may stand there instead; the tree is as before after each step."""
    for site in _sites(tree, "", tree, 0, at_import=True):
        for kind, made in _instead(site):
            yield site, kind, made


def _sites(node: ast.AST, within: str, shown: ast.AST, statement: int, *, at_import: bool) -> Iterator[Site]:
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "type_params", "type_comment", "names", "ctx"):
            continue
        if isinstance(node, ast.AnnAssign) and field == "target":
            continue
        many = isinstance(value, list)
        for index, child in enumerate(value if many else [value]):
            if not isinstance(child, ast.AST) or _silent(node, field, child):
                continue
            inner = within
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{within}.{child.name}".lstrip(".")
            around = child if isinstance(child, ast.stmt | ast.expr | ast.match_case) else shown
            if isinstance(child, ast.Constant | ast.Name | ast.Attribute) and isinstance(shown, ast.expr | ast.stmt):
                around = shown if not isinstance(shown, _COMPOUND) else child
            line = getattr(child, "lineno", getattr(node, "lineno", 0))
            begins = line if isinstance(child, ast.stmt) else statement
            early = at_import and not (isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and field == "body")
            yield Site(node, field, index if many else None, inner, line, begins, early, around)
            yield from _sites(child, inner, around, begins, at_import=early)


_COMPOUND = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.If,
    ast.For,
    ast.While,
    ast.With,
    ast.Try,
    ast.Match,
)


def _silent(parent: ast.AST, field: str, child: ast.AST) -> bool:
    """Whether nothing in there is changed."""
    match child:
        case ast.Import() | ast.ImportFrom() | ast.JoinedStr() | ast.Raise(exc=None):
            return not isinstance(child, ast.Raise)
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
        case ast.Expr(value=ast.Constant()):  # a docstring, an ellipsis
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
            return True
        case ast.FunctionDef(decorator_list=[ast.Name(id="overload"), *_]):
            return True
    return isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and field == "decorator_list"


# -- what may stand there instead ----------------------------------------------------------------------------


def _instead(site: Site) -> Iterator[tuple[str, Any]]:
    node = site.get()
    if isinstance(node, ast.stmt):
        yield from _statements(site, node)
    elif isinstance(node, ast.expr):
        yield from _expressions(site, node)
    elif isinstance(node, ast.match_case) and node.guard is not None:
        yield "a guard left out", ast.match_case(pattern=node.pattern, guard=None, body=node.body)


def _statements(site: Site, node: ast.stmt) -> Iterator[tuple[str, Any]]:
    match node:
        case (
            ast.Return(value=None | ast.Constant(value=None | False)) | ast.Pass()
        ):  # False and None are one to an `if`
            pass
        case ast.Return():
            yield "a return of nothing", ast.Return(value=ast.Constant(value=None))
        case ast.Continue():
            yield "a statement left out", ast.Break()
        case ast.Break():
            yield "a statement left out", ast.Continue()
        case ast.Expr() | ast.Assign() | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield "a statement left out", ast.Pass()
        case ast.AnnAssign(value=ast.expr()) if site.within and not isinstance(site.parent, ast.ClassDef):
            yield "a statement left out", ast.Pass()
        case ast.FunctionDef(decorator_list=[_, *_]) | ast.ClassDef(decorator_list=[_, *_]):
            for index in range(len(node.decorator_list)):
                yield "a decorator left out", _with_list(node, "decorator_list", index)


def _with_list(node: Any, field: str, left_out: int) -> Any:
    made = type(node)(**dict(ast.iter_fields(node)))
    setattr(made, field, [one for index, one in enumerate(getattr(node, field)) if index != left_out])
    return ast.copy_location(made, node)


def _expressions(site: Site, node: ast.expr) -> Iterator[tuple[str, Any]]:
    if site.field == "test" and not isinstance(node, ast.Compare | ast.UnaryOp | ast.BoolOp):
        yield "a condition turned round", ast.UnaryOp(op=ast.Not(), operand=node)
    if site.field == "guard" and not isinstance(node, ast.Compare | ast.UnaryOp | ast.BoolOp):
        yield "a condition turned round", ast.UnaryOp(op=ast.Not(), operand=node)
    match node:
        case ast.Compare(left=left, ops=ops, comparators=right):
            for index, op in enumerate(ops):
                for other in COMPARED[type(op)]:
                    changed = [*ops[:index], other(), *ops[index + 1 :]]
                    yield "a comparison", ast.Compare(left=left, ops=changed, comparators=right)
        case ast.BoolOp(op=op, values=values):
            yield "and, or", ast.BoolOp(op=ast.Or() if isinstance(op, ast.And) else ast.And(), values=values)
            for index in range(len(values)):
                rest = [one for place, one in enumerate(values) if place != index]
                yield "a condition left out", rest[0] if len(rest) == 1 else ast.BoolOp(op=op, values=rest)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "a condition turned round", operand
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield "arithmetic", operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in RECKONED:
            if not _of_text(left) and not _of_text(right) and not _of_types(node):
                yield "arithmetic", ast.BinOp(left=left, op=RECKONED[type(op)](), right=right)
        case ast.Constant(value=bool() as value):
            yield "a constant", ast.Constant(value=not value)
        case ast.Constant(value=int() | float() as value):
            yield "a constant", ast.Constant(value=value + 1 if value + 1 != value else value * 2)
        case ast.Constant(value=str() as value) if not _spoken(site):
            yield "a word", ast.Constant(value=f"{value}X")
        case ast.Constant(value=bytes() as value):
            yield "a word", ast.Constant(value=value + b"X")
        case ast.Attribute(value=ast.Name(id=group), attr=word) if word in WORDS.get(group, ()):
            words = WORDS[group]
            other_word = words[(words.index(word) + 1) % len(words)]
            yield "a word", ast.Attribute(value=node.value, attr=other_word, ctx=node.ctx)
        case ast.Call(args=args, keywords=keywords):
            # The last two: the first are a call and a record nearly everywhere, and any test tells those apart.
            *first, one, two = [None, None, *args]
            if (
                one is not None
                and two is not None
                and not _same_or_starred(one, two)
                and _called(node) not in EITHER_WAY
            ):
                yield "arguments swapped", ast.Call(func=node.func, args=[*first[2:], two, one], keywords=keywords)
            for index in range(len(keywords)):
                rest_words = [one for place, one in enumerate(keywords) if place != index]
                yield "an argument left out", ast.Call(func=node.func, args=args, keywords=rest_words)
        case ast.Set(elts=elements) | ast.Tuple(elts=elements, ctx=ast.Load()) if len(elements) > 1:
            for index in range(len(elements)):
                yield "one of several left out", _with_list(node, "elts", index)
        case ast.Dict(keys=keys) if len(keys) > 1:
            for index in range(len(keys)):
                made = _with_list(node, "keys", index)
                made.values = [one for place, one in enumerate(node.values) if place != index]
                yield "one of several left out", made


def _same_or_starred(one: ast.expr, two: ast.expr) -> bool:
    return isinstance(one, ast.Starred) or isinstance(two, ast.Starred) or ast.dump(one) == ast.dump(two)


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _of_types(node: ast.expr) -> bool:
    """Whether `a | b` says a type rather than a set."""
    match node:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _of_types(left) and _of_types(right)
        case ast.Name() | ast.Subscript() | ast.Attribute() | ast.Constant(value=None):
            return True
    return False


def _of_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _spoken(site: Site) -> bool:
    """Whether a string is for people to read: an argument of what makes an error, or a reason."""
    if isinstance(site.parent, ast.keyword) and site.parent.arg in ("why", "reason", "hint"):
        return True
    if isinstance(site.parent, ast.Call):
        called = _called(site.parent)
        return called in SPOKEN or called.endswith(SPOKEN_ENDINGS)
    return False

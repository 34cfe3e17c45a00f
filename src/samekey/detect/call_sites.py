"""Call sites in Python code that store or send a thing twice: read from the syntax tree, nothing is imported or run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILES_MAX = 20_000
FILE_MAX_BYTES = 2_000_000
SKIPPED = {".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages", "migrations"}

_SELECT = re.compile(r"\bSELECT\b.+?\bFROM\s+[\"`]?(?:\w+[\"`]?\.[\"`]?)?(\w+)", re.I | re.S)
_INSERT = re.compile(r"\bINSERT\s+(?:IGNORE\s+)?INTO\s+[\"`]?(?:\w+[\"`]?\.[\"`]?)?(\w+)", re.I | re.S)
_NOTHING = re.compile(r"\bON\s+CONFLICT\b.*\bDO\s+NOTHING\b.*\bRETURNING\b", re.I | re.S)
_COMPARED = re.compile(r"[\"`]?(\w+)[\"`]?\s*=\s*(?:%\(|%s|\?|:\w|\$\d|\{)", re.I)
_KEY_HEADER = re.compile(r"idempoten", re.I)
_MINTED = re.compile(r"^(uuid[1-8]|token_(hex|urlsafe|bytes)|ulid|nanoid|generate|ksuid)$", re.I)
_RETRY = re.compile(r"retry|retries|backoff|stamina|tenacity", re.I)
_TASK = re.compile(r"(^|\.)(task|shared_task|actor|subscriber|consumer|on_message|job|agent)$", re.I)
_GUARDED = re.compile(r"\b(once|guard|guarded|idempotent|handler|samekey)\b|_once\b", re.I)
_EXISTS = {"exists", "first", "one_or_none", "scalar", "scalar_one_or_none", "fetchone", "get", "count"}
_STORES = {"create", "bulk_create", "insert", "save", "add"}


@dataclass(frozen=True, slots=True)
class Site:
    """One place in the code."""

    rule: str
    file: Path
    line: int
    function: str
    why: str
    model: str = ""  # name of a model class or of a table, where the code names one
    columns: tuple[str, ...] = ()  # by which the code recognises a row


def read(folder: Path) -> tuple[list[Site], list[str]]:
    """The sites of every Python file below the folder, and the files that could not be read."""
    sites: list[Site] = []
    problems: list[str] = []
    for number, path in enumerate(_files(folder)):
        if number == FILES_MAX:
            problems.append(f"{folder} has more than {FILES_MAX} Python files: the rest was not read")
            break
        try:
            if path.stat().st_size > FILE_MAX_BYTES:
                raise ValueError(f"larger than {FILE_MAX_BYTES} bytes")
            tree = ast.parse(path.read_bytes(), str(path))
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            problems.append(f"{path} was not read: {error}")
            continue
        sites += _sites(tree, path)
    return sites, problems


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_file():
        yield folder
        return
    for path in sorted(folder.rglob("*.py")):
        if not SKIPPED & set(path.relative_to(folder).parts[:-1]):
            yield path


def _sites(tree: ast.Module, path: Path) -> Iterator[Site]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        retried = any(_RETRY.search(_dotted(one)) for one in function.decorator_list)
        yield from _get_or_create(function, path)
        yield from _select_then_insert(function, path)
        yield from _posts(function, path, retried=retried)
        yield from _consumer(function, path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NOTHING.search(node.value):
            table = _INSERT.search(node.value)
            yield Site(
                "SK406", path, node.lineno, "", "ON CONFLICT DO NOTHING RETURNING gives no row when the row is there "
                "already: the retry gets nothing instead of the first answer", table[1] if table else "",
            )  # fmt: skip


def _dotted(node: ast.AST) -> str:
    """`a.b.c` of a name, an attribute or a call."""
    if isinstance(node, ast.Call):
        return _dotted(node.func)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _calls(node: ast.AST) -> list[ast.Call]:
    found = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    return sorted(found, key=lambda one: (one.lineno, one.col_offset))


def _get_or_create(function: ast.FunctionDef | ast.AsyncFunctionDef, path: Path) -> Iterator[Site]:
    """SK401: without a unique key, two at the same moment both create."""
    for call in _calls(function):
        name = _dotted(call.func)
        if not re.search(r"\.a?(get|update)_or_create$", name):
            continue
        model = name.split(".")[-3] if name.count(".") >= 2 else ""
        named = [keyword.arg for keyword in call.keywords if keyword.arg]
        columns = tuple(one.split("__")[0] for one in named if one not in ("defaults", "create_defaults"))
        verb = name.rpartition(".")[2]
        yield Site(
            "SK401", path, call.lineno, function.name,
            f"{verb} looks first and inserts then: without a unique key on {', '.join(columns) or 'these columns'} two "
            "callers at the same moment both insert", model, columns,
        )  # fmt: skip


def _select_then_insert(function: ast.FunctionDef | ast.AsyncFunctionDef, path: Path) -> Iterator[Site]:
    """SK402: in one function, a look at a table and then an insert into it."""
    looked: dict[str, tuple[int, tuple[str, ...]]] = {}
    for call in _calls(function):
        for text in (
            one.value for one in ast.walk(call) if isinstance(one, ast.Constant) and isinstance(one.value, str)
        ):
            inserted, selected = _INSERT.search(text), _SELECT.search(text)
            if inserted and inserted[1].lower() in looked:
                yield _second(path, function, call, inserted[1], looked.pop(inserted[1].lower()))
            elif selected and not inserted:
                looked.setdefault(selected[1].lower(), (call.lineno, tuple(_COMPARED.findall(text))))
        name = _dotted(call.func)
        model, verb = _model(name), name.rpartition(".")[2]
        if not model:
            continue
        if verb in _EXISTS:
            looked.setdefault(model.lower(), (call.lineno, _filtered(call)))
        elif verb in _STORES and model.lower() in looked:
            yield _second(path, function, call, model, looked.pop(model.lower()))


def _second(
    path: Path,
    function: ast.FunctionDef | ast.AsyncFunctionDef,
    call: ast.Call,
    model: str,
    looked: tuple[int, tuple[str, ...]],
) -> Site:
    line, columns = looked
    return Site(
        "SK402", path, call.lineno, function.name,
        f"line {line} looks whether the row is there, and this line inserts it: two callers at the same moment both "
        "find nothing", model, columns,
    )  # fmt: skip


def _model(name: str) -> str:
    """`Order` of Order.objects.filter.first."""
    parts = name.split(".")
    return parts[parts.index("objects") - 1] if "objects" in parts[1:] else ""


def _filtered(call: ast.Call) -> tuple[str, ...]:
    inner = [call, *(one for one in _calls(call.func))]
    named = (keyword.arg for one in inner for keyword in one.keywords if keyword.arg)
    return tuple(dict.fromkeys(name.split("__")[0] for name in named))


def _posts(function: ast.FunctionDef | ast.AsyncFunctionDef, path: Path, *, retried: bool) -> Iterator[Site]:
    """SK403 and SK404: a POST that is repeated without a key, or with a new key each time."""
    scopes: list[ast.AST] = [function] if retried else []
    scopes += [node for node in ast.walk(function) if isinstance(node, ast.For | ast.While) and _tries_again(node)]
    for scope in scopes:
        posts = [
            call for call in _calls(scope) if re.search(r"\.(post|request)$", _dotted(call.func)) and _is_post(call)
        ]
        minted = [call for call in _calls(scope) if _MINTED.search(_dotted(call.func).rpartition(".")[2])]
        for post in posts:
            keyed = any(_KEY_HEADER.search(ast.unparse(one)) for one in post.keywords)
            if not keyed:
                yield Site(
                    "SK403", path, post.lineno, function.name,
                    "a POST that is sent again after an error, without a key: the first one may have arrived",
                )  # fmt: skip
            elif minted:
                yield Site(
                    "SK404", path, minted[0].lineno, function.name,
                    "the key is made inside the loop: each attempt has a new one, and none is recognised as a retry",
                )  # fmt: skip


def _is_post(call: ast.Call) -> bool:
    if not _dotted(call.func).endswith(".request"):
        return True
    first = call.args[0] if call.args else None
    return isinstance(first, ast.Constant) and str(first.value).upper() == "POST"


def _tries_again(loop: ast.For | ast.While) -> bool:
    """Whether the loop catches an error of what it does, and goes on."""
    return any(
        isinstance(node, ast.Try)
        and any(
            not any(isinstance(one, ast.Raise) for one in handler.body) or len(handler.body) > 1
            for handler in node.handlers
        )
        for node in ast.walk(loop)
    )


def _consumer(function: ast.FunctionDef | ast.AsyncFunctionDef, path: Path) -> Iterator[Site]:
    """SK405: brokers deliver at least once."""
    tasks = [one for one in function.decorator_list if _TASK.search(_dotted(one))]
    if not tasks or any(_GUARDED.search(ast.unparse(one)) for one in function.decorator_list if one not in tasks):
        return
    if any(_GUARDED.search(_dotted(call.func)) for call in _calls(ast.Module(function.body, []))):
        return
    yield Site(
        "SK405", path, function.lineno, function.name,
        "a message may be delivered twice, and nothing here recognises the second delivery",
    )  # fmt: skip

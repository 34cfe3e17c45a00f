"""Migration files: their statements, and which line made a table, a column or an index.

Read are SQL files, and Python files of Django and Alembic (their syntax tree; nothing is imported or run).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from samekey.core.errors import Misconfigured
from samekey.detect.findings import Finding

FILES_MAX = 20_000
FILE_MAX_BYTES = 5_000_000

NAME = r"(?:(?:\"[^\"]+\"|`[^`]+`|\w+)\.)?(?:\"[^\"]+\"|`[^`]+`|\w+)"
CREATE_TABLE = re.compile(rf"CREATE\s+(?:UNLOGGED\s+)?TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?({NAME})\s*\(", re.I)
CREATE_INDEX = re.compile(
    rf"CREATE\s+(UNIQUE\s+)?INDEX\s+(?:CONCURRENTLY\s+)?(IF\s+NOT\s+EXISTS\s+)?({NAME})?\s*ON\s+(?:ONLY\s+)?({NAME})"
    r"\s*(?:USING\s+\w+\s*)?\(", re.I,
)  # fmt: skip
ALTER = re.compile(rf"ALTER\s+TABLE\s+(?:IF\s+EXISTS\s+)?(?:ONLY\s+)?({NAME})\s+(.*)", re.I | re.S)
ADD_KEY = re.compile(rf"ADD\s+(?:CONSTRAINT\s+({NAME})\s+)?(?:UNIQUE|PRIMARY\s+KEY)[^(]*\(([^)]*)\)", re.I)
ADD_COLUMN = re.compile(
    rf"ADD\s+(?:COLUMN\s+)?(?:IF\s+NOT\s+EXISTS\s+)?(?!CONSTRAINT|UNIQUE|PRIMARY|FOREIGN|CHECK|INDEX|KEY)({NAME})\s+(.+)",
    re.I,
)
KEYWORDS = re.compile(r"^\s*(CONSTRAINT|PRIMARY|UNIQUE|FOREIGN|CHECK|EXCLUDE|LIKE|INDEX|KEY)\b", re.I)


@dataclass(frozen=True, slots=True)
class Statement:
    text: str
    file: str
    line: int


def statements(path: Path) -> list[Statement]:
    """The SQL statements of a file, or of the strings that a Python migration runs."""
    raw = _read(path)
    if path.suffix != ".py":
        return list(split(raw, str(path)))
    found: list[Statement] = []
    for node in ast.walk(_tree(raw, path)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("execute", "RunSQL"):
            for one in node.args[:1]:
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    found += [replace(part, line=one.lineno + part.line - 1) for part in split(one.value, str(path))]
    return found


def split(text: str, file: str) -> Iterator[Statement]:
    """Statements with the line on which each begins. Quotes, comments and dollar quotes are respected."""
    token = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:''|[^'])*'|\"[^\"]*\"|\$(\w*)\$.*?\$\1\$|;", re.S)
    start, at = 0, 0
    parts: list[str] = []
    for found in token.finditer(text):
        parts.append(text[at : found.start()])
        at = found.end()
        if found[0] == ";":
            yield from _statement("".join(parts), text, start, file)
            parts, start = [], at
        else:
            # A comment is replaced by blanks of the same lines.
            parts.append(re.sub(r"[^\n]", " ", found[0]) if found[0].startswith(("--", "/*")) else found[0])
    parts.append(text[at:])
    yield from _statement("".join(parts), text, start, file)


def _statement(text: str, whole: str, start: int, file: str) -> Iterator[Statement]:
    if text.strip():
        before = len(text) - len(text.lstrip())
        yield Statement(text.strip(), file, whole.count("\n", 0, start + before) + 1)


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > FILE_MAX_BYTES:
            raise Misconfigured(f"{path} is larger than {FILE_MAX_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path} cannot be read: {error}") from error


def _tree(raw: str, path: Path) -> ast.Module:
    try:
        return ast.parse(raw, str(path))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise Misconfigured(f"{path} is no Python file: {error}") from error


def bare(name: str) -> str:
    """A name without schema and quotes, in lower case."""
    return re.sub(r"[\"`]", "", re.split(r"\.(?=[^.]+$)", name)[-1]).lower()


def inside(text: str, opening: int) -> str:
    """What is between this parenthesis and its own end."""
    depth, at = 0, opening
    while at < len(text):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return text[opening + 1 : at]
        at += 1
    return text[opening + 1 :]


def parts(body: str) -> Iterator[tuple[str, int]]:
    """The parts between commas that are in no parenthesis, each with its offset."""
    depth, start = 0, 0
    for at, char in enumerate(body):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and depth == 0:
            yield body[start:at], start
            start = at + 1
    yield body[start:], start


# -- which line made it --------------------------------------------------------------------------------------------


def places(folder: Path) -> dict[str, tuple[str, int]]:
    """Name of a table, of an index or of table.column (lower case, no schema) -> file and line; the last file wins."""
    if not folder.exists():
        raise Misconfigured(f"there is no folder {folder}")
    files = [folder] if folder.is_file() else sorted(p for p in folder.rglob("*") if p.suffix in (".sql", ".py"))
    if len(files) > FILES_MAX:
        raise Misconfigured(f"{folder} has more than {FILES_MAX} files")
    found: dict[str, tuple[str, int]] = {}
    for path in files:
        for statement in statements(path):
            for name, line in _made_by(statement):
                found[name] = (statement.file, line)
        if path.suffix == ".py":
            found |= dict(_python_places(path))
    return found


def locate(finding: Finding, made: dict[str, tuple[str, int]]) -> Finding:
    """The finding with the line that made its index, its column, or its table."""
    table = finding.table.rpartition(".")[2].lower()
    rest = finding.object.removeprefix(finding.table).strip(".").lower()
    for name in (rest, f"{table}.{rest}", table):
        if name and name in made:
            file, line = made[name]
            return replace(finding, file=file, line=line)
    return finding


def _made_by(statement: Statement) -> Iterator[tuple[str, int]]:
    text = statement.text
    if found := CREATE_TABLE.match(text):
        table = bare(found[1])
        yield table, statement.line
        body = found.end()
        for part, offset in parts(inside(text, body - 1)):
            line = statement.line + text.count("\n", 0, body + offset + len(part) - len(part.lstrip()))
            named = re.match(rf"\s*CONSTRAINT\s+({NAME})", part, re.I)
            if named:
                yield bare(named[1]), line
            elif not KEYWORDS.match(part) and (column := re.match(rf"\s*({NAME})", part)):
                yield f"{table}.{bare(column[1])}", line
    elif (index := CREATE_INDEX.match(text)) and index[3]:
        yield bare(index[3]), statement.line
    elif altered := ALTER.match(text):
        for key in ADD_KEY.finditer(altered[2]):
            if key[1]:
                yield bare(key[1]), statement.line
        if added := ADD_COLUMN.match(altered[2]):
            yield f"{bare(altered[1])}.{bare(added[1])}", statement.line


def _python_places(path: Path) -> Iterator[tuple[str, tuple[str, int]]]:
    """Django: CreateModel in app/migrations makes app_model. Alembic: op.create_table, create_index, ..."""
    app = path.parent.parent.name.lower() if path.parent.name == "migrations" else ""
    for node in ast.walk(_tree(_read(path), path)):
        if not isinstance(node, ast.Call):
            continue
        verb = getattr(node.func, "attr", "")
        texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        if verb in ("CreateModel", "AddField") and app:
            key = "name" if verb == "CreateModel" else "model_name"
            model = named.get(key)
            if isinstance(model, ast.Constant):
                table = f"{app}_{str(model.value).lower()}"
                if verb == "CreateModel":
                    yield table, (str(path), node.lineno)
                    yield from _django_fields(table, named.get("fields"), path)
                elif isinstance(field := named.get("name"), ast.Constant):
                    yield f"{table}.{str(field.value).lower()}", (str(path), node.lineno)
        elif verb in ("create_table", "create_index", "create_unique_constraint") and texts:
            yield texts[0].lower(), (str(path), node.lineno)
            if verb == "create_table":
                for column in node.args[1:]:
                    if isinstance(column, ast.Call) and getattr(column.func, "attr", "") == "Column" and column.args:
                        name = column.args[0]
                        if isinstance(name, ast.Constant):
                            yield f"{texts[0].lower()}.{str(name.value).lower()}", (str(path), column.lineno)


def _django_fields(table: str, fields: ast.expr | None, path: Path) -> Iterator[tuple[str, tuple[str, int]]]:
    for one in fields.elts if isinstance(fields, ast.List) else []:
        if isinstance(one, ast.Tuple) and one.elts and isinstance(one.elts[0], ast.Constant):
            name = str(one.elts[0].value).lower()
            yield f"{table}.{name}", (str(path), one.lineno)
            yield f"{table}.{name}_id", (str(path), one.lineno)

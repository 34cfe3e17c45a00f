"""The fingerprint of a payload: a digest, the form it was made in, and short digests of its fields.

A record keeps the form it was written in: version, ignore set, and which secret. Payloads are compared under that
form, so neither a deploy that changes `ignore=` nor a new secret turns honest retries into mismatches.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from samekey.core.canonical import canonical, elements_of, encode_json, loses_in_a_copy, members_of
from samekey.core.errors import Misconfigured

FIELDS_MAX: Final = 64  # named fields in a record, 4 bytes and a name each
NAME_MAX: Final = 128  # characters of such a name: a client chooses them, and they are stored
IGNORE_MAX: Final = 64  # paths to ignore
CONTENT_BYTES: Final = 16
FORM_MAX: Final = 4096  # characters of a form: it is stored with every record

# The form of a record that was taken over from another table of keys. Its request hash was made by other rules, so it
# cannot be compared: every payload under its key gets its answer.
ADOPTED: Final = "adopted"

_DIGEST_LABEL: Final = b"samekey.payload.1:"
_FIELDS_LABEL: Final = b"samekey.fields.1:"
_CONTENT_LABEL: Final = b"samekey.content.1:"
_SECRET_LABEL: Final = b"samekey.secret.1"
_PLAIN_FORM: Final = "1"  # nothing ignored, no secret
_NO_SECRETS: Final[dict[str, bytes]] = {}
_STR: Final = frozenset({str})
_new: Final = tuple.__new__  # every claim makes one: calling the class takes twice as long


class Fingerprint(NamedTuple):
    """What a record stores about the intent it was opened for."""

    digest: bytes
    form: str
    fields: tuple[tuple[str, bytes], ...]
    content: bytes | None = None  # of the payload without what makes the key, so that it can be compared across keys

    def fingerprint(self) -> Fingerprint:
        """Itself, so that a finished fingerprint can be passed where an Intent is expected."""
        return self


class Intent:
    """One call's payload, ready to be fingerprinted and compared.

    Building it raises PayloadRefused, Misconfigured or TypeError: before any claim, so no record is left.
    The payload is not copied: a caller that changes it before `fingerprint()` gets fields that contradict the digest.
    """

    __slots__ = ("_apart", "_fingerprint", "_ignore", "_payload", "_salt", "_secrets", "_written", "digest", "form")

    def __init__(
        self,
        payload: Any,
        ignore: Collection[str] = (),
        secrets: Sequence[bytes] = (),
        salt: str = "",
        written: bytes | None = None,  # `canonical(payload)`, if reading the payload gave it already
        apart: tuple[str, ...] | None = None,  # paths that make the key; None: not known, so there is no content
    ) -> None:
        self._payload = payload
        self._apart = apart
        self._written = written
        self._salt = salt
        self._fingerprint: Fingerprint | None = None
        if not ignore and not secrets:  # the common case, and every call makes one
            self._ignore: tuple[str, ...] = ()
            self._secrets, self.form = _NO_SECRETS, _PLAIN_FORM
            self.digest: bytes = sha256(_DIGEST_LABEL + (canonical(payload) if written is None else written)).digest()
            return
        self._ignore = check_ignore(ignore)
        self._secrets = _check_secrets(secrets)
        secret_id = next(iter(self._secrets), "")
        self.form = _form(self._ignore, secret_id)
        self.digest = self._digest(self._ignore, self._secrets.get(secret_id))

    @property
    def secret(self) -> bytes | None:
        """The current secret, if there is one."""
        return next(iter(self._secrets.values()), None)

    def written(self) -> bytes:
        """The whole payload in canonical form, with what is ignored."""
        return canonical(self._payload) if self._written is None else self._written

    def fingerprint(self) -> Fingerprint:
        """What a claim writes: digest, form, and short digests, from which a later mismatch can name the fields."""
        made = self._fingerprint
        if made is None:
            payload = _without(self._payload, self._ignore) if self._ignore else self._payload
            named = _named(payload)
            secret = next(iter(self._secrets.values())) if self._secrets else None
            names, content_of, chosen = _ordered(named, self._apart)
            written = [canonical(named[name]) for name, _ in names]
            fields = tuple(self._fields(names, written, secret))
            if content_of is not None and named is payload:  # its fields are written already
                content: bytes | None = _keyed(content_of % chosen(written), secret)[:CONTENT_BYTES]
            else:
                content = None if self._apart is None else _content(payload, self._apart, secret)
            made = self._fingerprint = _new(Fingerprint, (self.digest, self.form, fields, content))
        return made

    def matches(self, digest: bytes, form: str) -> bool:
        """Whether a record with this digest and form was opened for the same intent, judged under its form.

        An adopted record cannot be compared, and matches.
        Misconfigured if the form, or the secret it names, is not known here: then there is no answer.
        PayloadRefused if a field that is ignored today, and was not then, has no exact form.
        """
        if form == self.form:
            return hmac.compare_digest(self.digest, digest)
        if form == ADOPTED:
            return True
        ours = self._digest(*self._under(form))
        return hmac.compare_digest(ours, digest)

    def differing(self, stored: Fingerprint) -> tuple[str, ...]:
        """Names of the top-level fields that changed, went missing or are new; () if that is not known."""
        if stored.form == ADOPTED:
            return ()
        ignore, secret = self._under(stored.form)
        payload, theirs = _without(self._payload, ignore), dict(stored.fields)
        if members_of(payload) is None or not theirs:
            return ()
        ours = _named(payload)
        # A full list was cut: a name that sorts after its last one may have been there, too.
        last = max(theirs) if len(theirs) >= FIELDS_MAX else None
        both = [(name, _quoted(name)) for name in theirs.keys() & ours.keys()]
        now = dict(self._fields(both, [canonical(ours[name]) for name, _ in both], secret))
        changed = {n for n, was in theirs.items() if now.get(n) != was}
        new = {n for n in ours.keys() - theirs.keys() if last is None or n < last}
        return tuple(sorted(changed | new)[:FIELDS_MAX])

    def _under(self, form: str) -> tuple[tuple[str, ...], bytes | None]:
        ignore, secret_id = _parse_form(form)
        if not secret_id:
            return ignore, None
        if secret_id not in self._secrets:
            raise Misconfigured(
                f"a record is keyed with secret {secret_id}, which is not among the secrets given: "
                "give the old secrets too, after the current one"
            )
        return ignore, self._secrets[secret_id]

    def _digest(self, ignore: tuple[str, ...], secret: bytes | None) -> bytes:
        written = None if ignore else self._written
        data = _DIGEST_LABEL + (canonical(_without(self._payload, ignore)) if written is None else written)
        return sha256(data).digest() if secret is None else hmac.digest(secret, data, "sha256")

    def _fields(
        self, names: Sequence[tuple[str, bytes]], written: Sequence[bytes], secret: bytes | None
    ) -> list[tuple[str, bytes]]:
        # The salt makes equal values of two records differ, the name those of two fields. The end of each part is
        # hashed, too: the length of the salt comes first, and a name is quoted as in the canonical form.
        salt = self._salt.encode()
        label = b"%b%d:%b" % (_FIELDS_LABEL, len(salt), salt)
        pairs = zip(names, written, strict=True)
        if secret is None:
            return [(name, sha256(label + quoted + value).digest()[:4]) for (name, quoted), value in pairs]
        return [(name, hmac.digest(secret, label + quoted + value, "sha256")[:4]) for (name, quoted), value in pairs]


def _keyed(data: bytes, secret: bytes | None) -> bytes:
    return sha256(data).digest() if secret is None else hmac.digest(secret, data, "sha256")


def _content(payload: Any, apart: tuple[str, ...], secret: bytes | None) -> bytes | None:
    """A digest of the payload without the paths in `apart`; None where they leave nothing: that is no content."""
    left = _without(payload, apart)
    return None if left is None or left == {} else _keyed(_CONTENT_LABEL + canonical(left), secret)[:CONTENT_BYTES]


class _Names(NamedTuple):
    """The field names that a record keeps, and how the fields that do not make the key are put together as content."""

    ordered: tuple[tuple[str, bytes], ...]  # sorted, each with its quoted form
    content: bytes | None  # a template that gives what `canonical` would; None where it must be made by `_content`
    chosen: Callable[[Sequence[bytes]], tuple[bytes, ...]]


def _ordered(named: dict[str, Any], apart: tuple[str, ...] | None = None) -> _Names:
    """As a function has the same names each time, so are these."""
    if len(named) <= FIELDS_MAX:
        return _few_ordered(tuple(named), apart)
    return _few_ordered(tuple(sorted(named)[:FIELDS_MAX]), None)


@lru_cache(maxsize=256)
def _few_ordered(names: tuple[str, ...], apart: tuple[str, ...] | None) -> _Names:
    ordered = tuple([(name, _quoted(name)) for name in sorted(names)])
    left = [number for number, (name, _) in enumerate(ordered) if name not in (apart or ())]
    if apart is None or not left or any("." in path or path == "*" for path in apart):
        return _Names(ordered, None, tuple)
    entries = b",".join(ordered[number][1].replace(b"%", b"%%") + b":%b" for number in left)
    one = left[0]
    chosen = itemgetter(*left) if len(left) > 1 else lambda written: (written[one],)
    return _Names(ordered, b"%b{%b}" % (_CONTENT_LABEL, entries), chosen)


def _quoted(name: str) -> bytes:
    return encode_json(name).encode()


# --- The form: what a record was fingerprinted with ---------------------------------------------------------------


def check_ignore(paths: Collection[str]) -> tuple[str, ...]:
    """The paths sorted, each once. A step is a field or key; `*` is every list index or every key.

    >>> check_ignore({"items.*.client_ts", "client_ts"})
    ('client_ts', 'items.*.client_ts')
    """
    if isinstance(paths, (str, bytes)):
        raise TypeError(f"ignore takes a collection of names, not one string: write {{{paths!r}}}")
    given = tuple(paths)
    for path in given:
        if not isinstance(path, str):
            raise TypeError(f"ignore takes names as str, not {type(path).__name__}")
    return _checked(given)


def declared_ignore(paths: Any) -> tuple[str, ...]:
    """As `check_ignore`, for declared paths. An index is refused: it would match no element of a list."""
    if not isinstance(paths, Iterable):
        raise Misconfigured(f"ignore= takes names of fields, not {paths!r}")
    checked = check_ignore(paths)  # type: ignore[arg-type]
    for path in checked:
        steps = path.split(".")
        if any(map(str.isdigit, steps)):
            every = ".".join("*" if step.isdigit() else step for step in steps)
            raise Misconfigured(f"ignore= has {path!r}, and an index matches nothing; * is every one: {every!r}")
    return checked


@lru_cache(maxsize=256)
def _checked(paths: tuple[str, ...]) -> tuple[str, ...]:
    if len(paths) > IGNORE_MAX:
        raise Misconfigured(f"ignore has {len(paths)} paths; {IGNORE_MAX} is the limit")
    for path in paths:
        if not all(path.split(".")):
            raise Misconfigured(f"ignore has a path with an empty name: {path!r}")
    checked = tuple(sorted({str.__str__(path) for path in paths}))
    if len(_form(checked, "0" * 8)) > FORM_MAX:
        raise Misconfigured(f"the ignore paths are longer than {FORM_MAX} characters together")
    return checked


def _check_secrets(secrets: Sequence[bytes]) -> dict[str, bytes]:
    if not isinstance(secrets, (tuple, list)) or not all(isinstance(secret, bytes) for secret in secrets):
        raise TypeError("secrets takes a list of bytes: the current secret, then the old ones")
    return _by_id(tuple(secrets))


@lru_cache(maxsize=64)
def _by_id(secrets: tuple[bytes, ...]) -> dict[str, bytes]:
    if not all(secrets):
        raise Misconfigured("a secret is empty")
    by_id = {hmac.digest(secret, _SECRET_LABEL, "sha256")[:4].hex(): secret for secret in secrets}
    if len(by_id) < len(set(secrets)):
        raise Misconfigured(
            "two secrets share one short id, so a record could not name its secret; replace one of them"
        )
    return by_id


@lru_cache(maxsize=256)
def _form(ignore: tuple[str, ...], secret_id: str) -> str:
    try:
        paths = ",".join(quote(path, safe="*") for path in ignore)
    except UnicodeEncodeError:
        raise Misconfigured("ignore has a path with a lone surrogate") from None
    return "1" + (f" ignore={paths}" if paths else "") + (f" secret={secret_id}" if secret_id else "")


@lru_cache(maxsize=256)
def _parse_form(form: str) -> tuple[tuple[str, ...], str]:
    found = re.fullmatch(r"1(?: ignore=([\w.~*%,-]+))?(?: secret=([0-9a-f]{8}))?", form, re.ASCII)
    if found is None or len(form) > FORM_MAX:
        raise Misconfigured(f"a record has fingerprint form {form[:80]!r}, unknown to this version of samekey")
    ignore = _checked(tuple(map(unquote, found[1].split(",")))) if found[1] else ()
    if _form(ignore, found[2] or "") != form:
        raise Misconfigured(f"a record has a damaged fingerprint form: {form[:80]!r}")
    return ignore, found[2] or ""


# --- Ignored fields, and what counts as a mapping -----------------------------------------------------------------


def _without(value: Any, ignore: tuple[str, ...]) -> Any:
    return _pruned(value, _tree(ignore)) if ignore else value


@lru_cache(maxsize=256)
def _tree(ignore: tuple[str, ...]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path in ignore:  # sorted: `a` comes before `a.b`, and dropping `a` drops `a.b`
        *steps, last = path.split(".")
        node: dict[str, Any] | None = tree
        for step in steps:
            node = node if node is None else node.setdefault(step, {})
        if node is not None:
            node[last] = None
    return tree


def _pruned(value: Any, tree: dict[str, Any]) -> Any:
    """The value without what `tree` names. Containers on the path are copied; the caller's value is not changed."""
    if loses_in_a_copy(value):
        return value  # `canonical` refuses it, and names the path
    if issubclass(type(value), (list, tuple)):
        if hasattr(type(value), "_field_defaults"):
            return _pruned_fields(value, tree)
        if "*" not in tree:
            return value
        return [] if tree["*"] is None else [_pruned(item, tree["*"]) for item in elements_of(value)]
    members = members_of(value)
    if members is None:
        return value
    kept = dict(members)
    for step, below in tree.items():
        for key in tuple(kept) if step == "*" else (step,) if step in kept else ():
            if below is None:
                del kept[key]
            else:
                kept[key] = _pruned(kept[key], below)
    return kept


def _pruned_fields(value: Any, tree: dict[str, Any]) -> list[Any]:
    """A NamedTuple is a list, and its elements have names."""
    kept = []
    for item, name in zip(elements_of(value), chain(type(value)._fields, repeat("")), strict=False):
        for below in [tree[step] for step in ("*", name) if step in tree]:
            if below is None:
                break
            item = _pruned(item, below)
        else:
            kept.append(item)
    return kept


def _named(payload: Any) -> dict[str, Any]:
    """The members of a payload that a record may name."""
    members: dict[Any, Any] | None = payload if type(payload) is dict else members_of(payload)
    if not members:
        return {}
    if _STR.issuperset(map(type, members)) and max(map(len, members)) <= NAME_MAX:
        return members
    return {str.__str__(k): v for k, v in members.items() if isinstance(k, str) and len(k) <= NAME_MAX}

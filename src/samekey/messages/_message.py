"""A message as every adapter shows it, and which key it has.

The key is the logical one: a field of the body, a header that the sender sets, or the content. It is never the id of
a delivery, because a broker or a sender that repeats a message gives the repetition a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from samekey.core.errors import CallerError, KeyMissing, Misconfigured, PayloadRefused
from samekey.core.fingerprint import declared_ignore
from samekey.core.json_text import read_json
from samekey.core.key import as_text, key_text, part_text
from samekey.guard.binding import Content, apart_of
from samekey.messages._ack import Poison, TooBig

MESSAGE_MAX_BYTES = 256 * 1024  # the largest message of SQS, and what the parking store keeps


@dataclass(slots=True)
class Message:
    """One delivery. The handler's function gets it; `value` is what the body says."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    source: str = ""  # the queue, topic, subject or stream that it came from
    tries: int = 1  # how often it was tried, this time included; deliveries that cost no try do not count
    id: str = ""  # the broker's own, for logs
    raw: Any = None  # the library's own object
    value: Any = None


@dataclass(frozen=True, slots=True)
class header:
    """The value of this header, which the sender sets. Upper and lower case are the same."""

    name: str

    def of(self, message: Message) -> str:
        wanted = self.name.lower()
        for name, text in message.headers.items():
            if name.lower() == wanted:
                return text
        raise KeyMissing(f"the message has no header {self.name!r}")


KeyRule = str | tuple[str, ...] | list[str] | header | Content | Callable[[Message], Any]
TenantRule = str | header | Callable[[Message], Any]
SourceRule = str | header | Callable[[Message], Any]
Read = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class Identified:
    """What a message asks."""

    key: str
    tenant: str | None
    payload: Any
    written: bytes | None  # the payload in canonical form, where reading it gave that
    source: str


class Identity:
    """How messages become keys and payloads; a mistake in the rules is raised at the start."""

    def __init__(
        self,
        *,
        key: KeyRule,
        tenant: TenantRule | None,
        ignore: Collection[str],
        source: SourceRule | None,
        read: Read | None,
        max_bytes: int,
    ) -> None:
        for what, rule in (("key=", key), ("tenant=", tenant), ("source=", source)):
            if isinstance(rule, str) and not all(rule.split(".")):
                raise Misconfigured(f"{what} {rule!r} is not the path of one value")
        if not isinstance(key, (str, tuple, list, header, Content)) and not callable(key):
            raise Misconfigured(
                "key= of a message handler is the path of a field, several of them, header(...), CONTENT or a function "
                f"of the message, not {type(key).__name__}"
            )
        if isinstance(key, (tuple, list)) and not key:
            raise Misconfigured("key= is empty: name at least one field")
        self.ignore = declared_ignore(ignore)
        self.apart = None if isinstance(key, header) else apart_of(key)
        self._key, self._tenant, self._source, self._read, self._max_bytes = key, tenant, source, read, max_bytes

    def of(self, message: Message) -> Identified | Poison | TooBig:
        """Key, tenant and payload of this message, or why it can have none. Nothing is claimed yet."""
        if len(message.body) > self._max_bytes:
            return TooBig(len(message.body), self._max_bytes)
        try:
            written = None
            if self._read is None:
                message.value, written = read_json(message.body)
            else:
                message.value = self._read(message.body)
            key = self._key_of(message)
            tenant = None if self._tenant is None else part_text(_found(self._tenant, message, "tenant"), "tenant")
            return Identified(key, tenant, message.value, written, self._source_of(message))
        except PayloadRefused as refused:
            return Poison(refused.path or "the body")
        except CallerError as error:
            return Poison(str(error))
        except (ValueError, LookupError, TypeError, AttributeError) as error:  # of a rule, or of read=
            return Poison(type(error).__name__)

    def _key_of(self, message: Message) -> str:
        rule = self._key
        if isinstance(rule, Content):
            return rule.key_of(message.value, self.ignore)
        if isinstance(rule, (tuple, list)):
            return key_text(tuple(_follow(message.value, path, "key") for path in rule))
        found = _found(rule, message, "key")
        return part_text(found, "key") if isinstance(rule, str) else as_text(found)

    def _source_of(self, message: Message) -> str:
        if self._source is None:
            return message.source
        try:
            return str(_found(self._source, message, "source"))
        except KeyMissing:
            return message.source


def _found(rule: Any, message: Message, what: str) -> Any:
    if isinstance(rule, str):
        return _follow(message.value, rule, what)
    return rule.of(message) if isinstance(rule, header) else rule(message)


def _follow(value: Any, path: str, what: str) -> Any:
    for step in path.split("."):
        if not isinstance(value, Mapping) or step not in value:
            raise KeyMissing(f"the {what} {path!r} is not in the message: no {step!r}")
        value = value[step]
    return value

"""Who may use the console: tokens, roles, signed cookies, proofs for forms, and the limit on sign-ins.

There are two roles. A viewer looks; an operator also acts. A person signs in with the token of a role and a name, or a
reverse proxy at a named address sends the name in a header. A name that was typed beside a shared token is a claim and
no proof, so the audit log marks it.

A sign-in is a cookie: its facts and an HMAC over them. The key is made of the tokens, so every process of one console
accepts it, and a changed token ends every sign-in. Nothing is kept on the server but sign-ins that people ended.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from samekey.core.errors import Misconfigured

SESSION_SECONDS = 12 * 3600.0  # one shift
TOKEN_MIN_CHARS = 16  # shorter ones can be guessed
NAME_MAX_CHARS = 80
COOKIE_MAX_CHARS = 1024

TRIES = 5  # wrong tokens of one address
TRIES_OF_ALL = 100  # wrong tokens of all addresses together: guessing from many addresses
TRIES_SECONDS = 600.0
ADDRESSES_MAX = 10_000  # remembered; the oldest is forgotten first
ENDED_MAX = 10_000  # sign-ins that were ended and have not run out


class Role(StrEnum):
    """What a person may do: a viewer looks, an operator also acts."""

    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Person:
    """Who asks."""

    name: str
    role: Role
    claimed: bool  # the name was typed beside a shared token; a proxy's name is a proof
    session: str  # what the proofs of its forms are bound to
    until: float = 0.0

    @property
    def acts(self) -> bool:
        return self.role is Role.OPERATOR

    @property
    def signature(self) -> str:
        """The name as the audit log keeps it."""
        return f"{self.name} (name not proven)" if self.claimed else self.name


@dataclass(frozen=True, slots=True)
class Access:
    """The credentials of one console: tokens, or a header that a proxy sends.

    >>> Access(operator_token="x" * 16).role_of("x" * 16)
    <Role.OPERATOR: 'operator'>
    """

    operator_token: str = field(default="", repr=False)
    viewer_token: str = field(default="", repr=False)
    user_header: str = ""
    trust: tuple[str, ...] = ()  # addresses or networks of the proxy
    operators: frozenset[str] = frozenset()  # names in the header that may act
    secret: bytes = field(default=b"", repr=False)  # for several processes that a proxy leads to, without tokens
    _key: bytes = field(default=b"", repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (self.operator_token or self.viewer_token or self.user_header):
            raise Misconfigured(
                "the console needs a credential: set SAMEKEY_CONSOLE_TOKEN, give --token-file, "
                "or name a proxy with --user-header and --trust"
            )
        for what, token in (("operator's", self.operator_token), ("viewer's", self.viewer_token)):
            if token and len(token) < TOKEN_MIN_CHARS:
                raise Misconfigured(f"the {what} token is shorter than {TOKEN_MIN_CHARS} characters: it can be guessed")
        if self.operator_token and self.operator_token == self.viewer_token:
            raise Misconfigured("the operator's and the viewer's token are equal: every viewer could act")
        if bool(self.user_header) != bool(self.trust):
            raise Misconfigured(
                "a header with the name of the user needs the address of the proxy that sends it: --trust"
            )
        for address in self.trust:
            try:
                ipaddress.ip_network(address, strict=False)
            except ValueError:
                raise Misconfigured(
                    f"--trust takes an address or a network such as 10.0.0.0/8, not {address!r}"
                ) from None
        known = self.operator_token + "\0" + self.viewer_token
        own = self.secret or (known.encode() if known != "\0" else secrets.token_bytes(32))
        object.__setattr__(self, "_key", hmac.digest(b"samekey.console.1", own, "sha256"))

    @property
    def takes_tokens(self) -> bool:
        return bool(self.operator_token or self.viewer_token)

    def role_of(self, token: str) -> Role | None:
        """The role of this token; compared in constant time."""
        given = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        found = None
        for role, known in ((Role.VIEWER, self.viewer_token), (Role.OPERATOR, self.operator_token)):
            if known and hmac.compare_digest(given, hashlib.sha256(known.encode()).digest()):
                found = role
        return found

    def person_of_proxy(self, address: str | None, name: str | None) -> Person | None:
        """Who the proxy names; None unless the request comes from the proxy itself."""
        if not self.user_header or not name or not self._trusted(address):
            return None
        kept = check_name(name)
        if kept is None:
            return None
        role = Role.OPERATOR if kept in self.operators else Role.VIEWER
        return Person(kept, role, claimed=False, session=self._sign(f"proxy:{kept}"))

    def _trusted(self, address: str | None) -> bool:
        try:
            here = ipaddress.ip_address(address or "")
        except ValueError:
            return False
        return any(here in ipaddress.ip_network(one, strict=False) for one in self.trust)

    # -- cookies and proofs -----------------------------------------------------------------------------------

    def begin(self, name: str, role: Role, now: float) -> tuple[Person, str]:
        """A new sign-in, and its cookie."""
        person = Person(name, role, claimed=True, session=secrets.token_urlsafe(18), until=now + SESSION_SECONDS)
        facts = json.dumps([person.session, person.name, person.role.value, person.until]).encode()
        body = urlsafe_b64encode(facts).decode()
        return person, f"{body}.{self._sign('cookie:' + body)}"

    def person_of_cookie(self, cookie: str | None, now: float) -> Person | None:
        """Who signed in with this cookie; None if it is foreign, changed or over."""
        if not cookie or len(cookie) > COOKIE_MAX_CHARS:
            return None
        body, _, signature = cookie.partition(".")
        if not hmac.compare_digest(signature.encode("utf-8", "replace"), self._sign("cookie:" + body).encode()):
            return None
        session, name, role, until = json.loads(urlsafe_b64decode(body))
        if until <= now or self._token_gone(Role(role)):
            return None
        return Person(name, Role(role), claimed=True, session=session, until=until)

    def _token_gone(self, role: Role) -> bool:
        return not (self.operator_token if role is Role.OPERATOR else self.viewer_token)

    def proof(self, person: Person, purpose: str = "form") -> str:
        """What a form of this sign-in carries: another site cannot know it."""
        return self._sign(f"{purpose}:{person.session}")

    def proves(self, person: Person, given: str, purpose: str = "form") -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.proof(person, purpose).encode())

    def sign(self, text: str) -> str:
        """A signature for what a page carries back to the server, such as the plan of a bulk action."""
        return self._sign("page:" + text)

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode("utf-8", "surrogatepass"), "sha256").hexdigest()


def check_name(given: str) -> str | None:
    """The name as it is kept; None if it is empty, too long or cannot be printed."""
    name = given.strip()
    return name if name and len(name) <= NAME_MAX_CHARS and name.isprintable() else None


class Tries:
    """Wrong tokens, by address and in all; who has none left waits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()
        self._all: list[float] = []

    def left(self, address: str) -> int:
        """How many more wrong tokens this address may send now."""
        mine = self._recent(self._wrong.get(address, ()))
        self._all = self._recent(self._all)
        return max(0, min(TRIES - len(mine), TRIES_OF_ALL - len(self._all)))

    def wrong(self, address: str) -> int:
        """Count one wrong token; how many are left."""
        now = self._clock()
        self._wrong[address] = [*self._recent(self._wrong.pop(address, ())), now][-TRIES:]
        self._all = [*self._recent(self._all), now][-TRIES_OF_ALL:]
        while len(self._wrong) > ADDRESSES_MAX:
            self._wrong.popitem(last=False)
        return self.left(address)

    def wait_seconds(self, address: str) -> float:
        """Until the address may try again."""
        waiting = [self._recent(self._wrong.get(address, ())), self._recent(self._all)]
        full = [times[0] for times, most in zip(waiting, (TRIES, TRIES_OF_ALL), strict=True) if len(times) >= most]
        return max((at + TRIES_SECONDS - self._clock() for at in full), default=0.0)

    def _recent(self, times: Sequence[float]) -> list[float]:
        since = self._clock() - TRIES_SECONDS
        return [at for at in times if at > since]


class Ended:
    """Sign-ins that people ended before their time was over."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, float] = OrderedDict()

    def add(self, person: Person) -> None:
        self._sessions[person.session] = person.until
        while len(self._sessions) > ENDED_MAX:
            self._sessions.popitem(last=False)

    def __contains__(self, person: Person) -> bool:
        return person.session in self._sessions

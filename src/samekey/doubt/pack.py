"""A provider's contract as dated data: `load_pack("stripe")`, or the path of a TOML file of your own.

Each part names its source. What a pack does not say is not known, and is read carefully: no kept decline, no window
longer than the one that is stated. The functions here make boundaries, a classifier of HTTP answers, and the warnings
that `samekey doctor` shows.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Any

from samekey.core.boundary import Asks, Boundary, Compensatable, Keyed, Lookup
from samekey.core.errors import Misconfigured, NotDone, Refused
from samekey.core.policy import LEASE_SECONDS

OLD_DAYS = 180  # after so long a pack's facts may be others
PROVIDER_KEY_CHARS = 36
TYPES = frozenset({"charge", "capture", "refund", "chargeback", "void", "fee", "payout", "other"})
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_COLUMNS = frozenset(
    {"line", "ref", "prior", "our_key", "amount", "debit", "currency", "at", "type", "party", "payout", "auth"}
)


@dataclass(frozen=True, slots=True)
class StatementMap:
    """Which column of a statement is what; `types` maps its own names to ours."""

    name: str
    columns: Mapping[str, str]
    types: Mapping[str, str]
    unit: str = "major"  # amounts are decimals; "minor": whole minor units
    currency: str | None = None  # of a statement without a column for it
    exponents: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pack:
    """What a provider's documentation says, and when it was read."""

    name: str
    read: date
    facts: Mapping[str, Any]

    @property
    def header(self) -> str | None:
        return self._part("key").get("header")

    @property
    def window_seconds(self) -> float | None:
        text = self._part("key").get("window")
        return None if text is None else seconds(text)

    @property
    def keeps_declines(self) -> bool:
        return self._part("keeps").get("declines") is True

    @property
    def quiet_seconds(self) -> float:
        """By how long a lookup may lag: a look before that is of no use."""
        return seconds(self._part("lookup").get("lag", "0s"))

    def keyed(self, *, lookup: Lookup | None = None, marked: bool = False, lease: float = LEASE_SECONDS) -> Keyed:
        """The boundary of an effect that sends the provider's key: its window, less one lease."""
        window = self.window_seconds
        if window is None:
            raise Misconfigured(f"the pack {self.name} does not say how long keys live: declare Asks(lookup)")
        return PackKeyed(window - lease, self.keeps_declines, lookup=lookup, marked=marked, pack=self)

    def asks(self, lookup: Lookup, *, believe_absent_after: float | None = None, **options: Any) -> Asks:
        """The boundary of an effect that is looked up; an absence is believed no sooner than a lookup may lag."""
        lag = seconds(self._part("lookup").get("lag_max", "0s"))
        if believe_absent_after is not None and believe_absent_after < lag:
            raise Misconfigured(f"a lookup at {self.name} may lag by {lag:.0f} s, and believe_absent_after is shorter")
        return PackAsks(lookup, believe_absent_after=believe_absent_after, **options, pack=self)

    def classify(
        self, status: int, body: Mapping[str, Any] | None = None, *, sent_key: bool = True
    ) -> Exception | None:
        """What an HTTP answer means for the effect: None is success; raise any exception that is returned.

        A server error is unknown, kept or not: sending again may bring the kept error for ever, and only a lookup ends
        the doubt. An answer to a concurrent request under the same key is unknown, too.
        """
        if 200 <= status < 300:
            return None
        error = (body or {}).get("error")
        facts: Mapping[str, Any] = error if isinstance(error, Mapping) else (body or {})
        code = str(facts.get("code") or facts.get("errorCode") or "")
        concurrent = self._part("concurrent")
        if (code and code == concurrent.get("code")) or status in _as_list(concurrent.get("status")):
            return OutcomeUnknown(f"another request under this key is running at {self.name}")
        if status in _as_list(self._part("keeps").get("before_execution")):
            return NotDone(f"{self.name} answered {status} before it ran")
        if status == 402 or code in ("card_declined", "insufficient_funds"):
            return NotDone(code or "declined", declined=sent_key and self.keeps_declines)
        if status >= 500 or status in (408, 409, 425):
            return OutcomeUnknown(f"{self.name} answered {status}")
        if status in (403, 404, 405, 410, 422):
            return Refused(code or f"{self.name} answered {status}", declined=sent_key and self.keeps_declines)
        return OutcomeUnknown(f"{self.name} answered {status}")

    def statement(self, name: str | None = None) -> StatementMap:
        maps = self._part("statement")
        if not maps:
            raise Misconfigured(f"the pack {self.name} has no statement map")
        name = next(iter(maps)) if name is None else name
        return statement_map(name, maps[name], self._part("minor_units"))

    def warnings(self, *, retries_seconds: float | None = None, today: date | None = None) -> Iterator[str]:
        """What does not fit: for `samekey doctor`."""
        window = self.window_seconds
        if window is not None and retries_seconds is not None and retries_seconds > window:
            yield (
                f"your retries last {retries_seconds / 3600:.0f} h, and {self.name} forgets a key after "
                f"{window / 3600:.0f} h: a later retry charges again where no record stops it"
            )
        longest = self._part("key").get("max")
        if longest is not None and longest < PROVIDER_KEY_CHARS:
            yield f"{self.name} takes keys of {longest} characters, and ours have {PROVIDER_KEY_CHARS}"
        if today is not None and (today - self.read).days > OLD_DAYS:
            yield f"the pack {self.name} was read on {self.read}: look whether its facts still hold"

    def _part(self, name: str) -> Mapping[str, Any]:
        part: Mapping[str, Any] = self.facts.get(name, {})
        return part


@dataclass(frozen=True)
class PackKeyed(Keyed):
    """`Keyed` with the facts of this pack."""

    pack: Pack | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class PackAsks(Asks):
    """`Asks` with the facts of this pack."""

    pack: Pack | None = field(default=None, compare=False, repr=False)


def pack_of(boundary: Boundary | None) -> Pack | None:
    """The pack that this boundary is made of."""
    if isinstance(boundary, Compensatable):
        return pack_of(boundary.inner)
    return boundary.pack if isinstance(boundary, PackKeyed | PackAsks) else None


class OutcomeUnknown(Exception):
    """Raised by an effect: the provider's answer does not tell whether it happened."""


def load_pack(name: str) -> Pack:
    """A built-in pack by its name, or one of yours by the path of its TOML file."""
    if re.fullmatch("[a-z0-9_]+", name):
        try:
            text = (resources.files("samekey.doubt") / "packs" / f"{name}.toml").read_text(encoding="utf-8")
        except FileNotFoundError:
            raise Misconfigured(f"there is no pack {name!r}; built in are: {', '.join(built_in())}") from None
    else:
        path = Path(name)
        if not path.is_file():
            raise Misconfigured(f"there is no file {name!r}")
        text = path.read_text(encoding="utf-8")
    try:
        facts = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(f"{name} is no TOML: {error}") from error
    about = facts.get("pack", {})
    if not isinstance(about.get("read"), date) or not about.get("name"):
        raise Misconfigured(f"{name}: [pack] needs a name and the day on which its facts were read")
    for part, known in facts.items():
        if part in ("key", "keeps", "concurrent", "lookup") and not known.get("source"):
            raise Misconfigured(f"{name}: [{part}] names no source")
    return Pack(about["name"], about["read"], facts)


def built_in() -> list[str]:
    folder = resources.files("samekey.doubt") / "packs"
    return sorted(one.name.removesuffix(".toml") for one in folder.iterdir() if one.name.endswith(".toml"))


def statement_map(name: str, facts: Mapping[str, Any], minor_units: Mapping[str, int]) -> StatementMap:
    columns = {one: facts[one] for one in _COLUMNS if one in facts and one != "currency"}
    fixed = None
    if "currency" in facts:
        if re.fullmatch("[A-Z]{3}", facts["currency"]):
            fixed = facts["currency"]
        else:
            columns["currency"] = facts["currency"]
    missing = {"ref", "amount", "at"} - set(columns)
    if missing or not (fixed or "currency" in columns):
        raise Misconfigured(f"the statement map {name} needs columns for ref, amount, currency and at")
    types: Mapping[str, str] = facts.get("types", {})
    odd = sorted(set(types.values()) - TYPES)
    if odd:
        raise Misconfigured(f"the statement map {name}: {odd[0]!r} is no type; types are {', '.join(sorted(TYPES))}")
    if facts.get("unit", "major") not in ("major", "minor"):
        raise Misconfigured(f"the statement map {name}: unit is major or minor")
    return StatementMap(name, columns, dict(types), facts.get("unit", "major"), fixed, dict(minor_units))


def seconds(text: str) -> float:
    """
    >>> seconds("24h"), seconds("0s")
    (86400.0, 0.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if found is None:
        raise Misconfigured(f"a time is written as 30s, 5m, 24h or 7d, not {text!r}")
    return float(found[1]) * _SECONDS[found[2]]


def _as_list(value: Any) -> Collection[int]:
    return value if isinstance(value, list) else [] if value is None else [value]

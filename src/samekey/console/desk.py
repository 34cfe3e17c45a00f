"""The console of one store: what its pages share, and the log of what people did in it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from samekey.console.access import Access, Ended, Person, Tries
from samekey.console.comparing import Comparing
from samekey.console.figures import Watch
from samekey.console.rates import Counting
from samekey.console.searching import Known, Searching
from samekey.console.sources import Sources
from samekey.core.errors import Misconfigured
from samekey.core.ports import AsyncStore
from samekey.core.record import Audit, Record
from samekey.core.register import storable
from samekey.core.sealing import Sealer
from samekey.ops import AsyncOps

log = logging.getLogger("samekey.console")

WHY_MAX_CHARS = 500

Ask = Callable[[Record], Awaitable[str]]  # asks the provider about a doubt; a sentence about the verdict


class Console:
    """One store, its figures, its rooms, and who may act."""

    def __init__(
        self,
        store: AsyncStore,
        access: Access,
        *,
        name: str = "",
        tenant: str | None = None,
        read_only: bool = False,
        ask: Ask | None = None,
        operations: tuple[str, ...] = (),
        sources: Sources | None = None,
        sealer: Sealer | None = None,
        secret: bytes | None = None,
    ) -> None:
        self.store, self.access = store, access
        self.ops = AsyncOps(store)
        self.name = name or store.name
        self.tenant, self.read_only = tenant, read_only
        self.ask = ask
        self.sources = sources or Sources()
        self.sealer = sealer
        self.tries, self.ended = Tries(), Ended()
        self.watch = Watch(self.ops, tenant)
        self.counting = Counting(store)
        self.known = Known()
        for operation in operations:
            self.known.add(operation)
        if tenant is not None:
            self.known.tenants = {tenant: None}
        self.searching = Searching(store, known=self.known, secret=secret, sealer=sealer)
        self.comparing = Comparing(store, tenant)
        self.live = 0  # open streams of live updates

    async def operations(self) -> list[str]:
        """The operations that the console has seen, for its filters."""
        for name in self.counting.operations if self.tenant is None else ():
            self.known.add(name)
        return sorted(self.known.operations)

    def covers(self, record: Record) -> bool:
        """Whether this console shows the record; one of another tenant looks as if there were none."""
        return self.tenant is None or record.key.tenant == self.tenant

    def refusal(self, person: Person) -> str | None:
        """Why this person may not act; None if it may."""
        if self.read_only:
            return "This console is read only: it was started with --read-only."
        if not person.acts:
            return "You are signed in as a viewer. An operator can do this."
        return None

    async def note(
        self, person: Person | None, action: str, outcome: str, why: str, record: Record | None = None
    ) -> None:
        """Write an action that changed no record into the audit log.

        A read-only console writes nothing into the store; its log has the entry.
        """
        who = "" if person is None else person.signature
        key = None if record is None else record.key
        text = "" if key is None else key.short
        log.info("%s by %r: %s (%s) %s", action, who, outcome, why[:WHY_MAX_CHARS], text)
        if self.read_only:
            return
        entry = Audit(
            at=0.0,
            who=storable(who) or "unknown",
            action=action,
            operation="" if key is None else key.operation,
            tenant=self.tenant if key is None else key.tenant,
            text="" if key is None else key.text,
            before="" if record is None else record.state.value,
            after=outcome,
            why=storable(why[: 2 * WHY_MAX_CHARS]),
        )
        await self.store.note_action(entry)


def checked_why(given: str) -> str:
    """The reason, as it is kept; Misconfigured if there is none."""
    why = " ".join(given.split())
    if not why:
        raise Misconfigured("an action needs a reason: how you know")
    if len(why) > WHY_MAX_CHARS:
        raise Misconfigured(f"the reason is {len(why)} characters long; {WHY_MAX_CHARS} is the limit")
    if not why.isprintable():
        raise Misconfigured("the reason holds characters that cannot be printed")
    return why

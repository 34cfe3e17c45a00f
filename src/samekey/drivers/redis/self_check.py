"""The self-check: what a Redis server reports about itself, and what that means for claims. Does not use the driver."""

from __future__ import annotations

from dataclasses import dataclass

from samekey.core.errors import StoreUnavailable

OLDEST = (6, 2)  # SET .. PXAT: a record and its retention in one command

Section = dict[str, str]


def info_of(reply: bytes) -> Section:
    """The lines of INFO as a mapping."""
    lines = (line.partition(":") for line in reply.decode(errors="replace").splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in lines if value}


@dataclass(frozen=True, slots=True)
class Facts:
    """What the server reported when the connection was made; "" where it reports nothing."""

    server: str
    run_id: str
    role: str
    maxmemory: int
    maxmemory_policy: str
    aof: bool
    appendfsync: str  # always, everysec, no
    failed_over: bool  # it was a replica and has been promoted
    replicas: int

    @property
    def keeps_all(self) -> bool:
        """Whether a restart of this server loses nothing that it acknowledged."""
        return self.aof and self.appendfsync == "always" and not self.failed_over

    @property
    def evicts(self) -> bool:
        return self.maxmemory > 0 and self.maxmemory_policy != "noeviction"

    @property
    def volatile(self) -> str:
        """Why this server alone cannot keep a claim; "" if it can."""
        if self.evicts:
            return f"it forgets records when its memory is full (maxmemory-policy {self.maxmemory_policy})"
        if not self.aof:
            return "a restart forgets the claims since its last snapshot, or all of them (appendonly is off)"
        return ""

    def guarantee(self, wait_replicas: int) -> str:
        if self.volatile:
            return f"no claim is safe here: {self.volatile}"
        crash = {
            "always": "claims survive crashes of clients, of the server and of its machine",
            # A crash of the server too: during a slow fsync Redis may delay acknowledged writes for 2 s.
            "everysec": "claims survive crashes of clients; a crash of the server or machine may forget 2 s of them",
        }.get(self.appendfsync, "claims survive crashes of clients; a crash of the server may forget the last of them")
        if wait_replicas:
            return f"{crash}; each is on {wait_replicas} replica(s) before it counts, and a failover seldom forgets one"
        return f"{crash}; a failover may forget the last ones"

    def warnings(self, wait_replicas: int) -> tuple[str, ...]:
        found = []
        if self.volatile:
            found.append(self.volatile)
        elif self.appendfsync == "no":
            found.append("appendfsync is no: a power loss may forget half a minute of claims")
        if self.replicas and not wait_replicas:
            found.append("it has replicas: a failover may forget the last claims (wait_replicas=1 makes that rare)")
        if self.replicas < wait_replicas:
            found.append(
                f"wait_replicas={wait_replicas}, but {self.replicas} replica(s) follow: nothing can be claimed"
            )
        return tuple(found)

    def listed(self) -> tuple[tuple[str, str], ...]:
        return (
            ("server", self.server),
            ("role", self.role),
            ("appendonly", "yes" if self.aof else "no"),
            ("appendfsync", self.appendfsync or "not shown"),
            ("maxmemory", str(self.maxmemory)),
            ("maxmemory-policy", self.maxmemory_policy),
            ("replicas", str(self.replicas)),
        )


def facts_of(name: str, info: Section, settings: dict[str, str]) -> Facts:
    """The facts, checked: the server must be a master, recent enough, and done with loading."""
    version = info.get("valkey_version") or info.get("redis_version", "")
    if info.get("role", "master") != "master":
        raise StoreUnavailable(f"{name} is a replica: claims go to the master only")
    if info.get("loading", "0") == "1":
        raise StoreUnavailable(f"{name} is still loading its records")
    compatible = info.get("redis_version", "0.0").split(".")
    if tuple(int(part) for part in compatible[:2] if part.isdigit()) < OLDEST:
        raise StoreUnavailable(f"{name} is Redis {version}: {'.'.join(map(str, OLDEST))} is the oldest that works")
    return Facts(
        server=f"{'Valkey' if 'valkey_version' in info else 'Redis'} {version}",
        run_id=info.get("run_id", "unknown") or "unknown",
        role=info.get("role", "master"),
        maxmemory=int(info.get("maxmemory", "0")),
        maxmemory_policy=info.get("maxmemory_policy", "noeviction"),
        aof=info.get("aof_enabled", "0") == "1",
        appendfsync=settings.get("appendfsync", ""),
        failed_over=bool(info.get("master_replid2", "").strip("0")),
        replicas=int(info.get("connected_slaves", "0")),
    )

"""The programme of `programme.py`: crashes, pauses, lost replies, declines and a store that forgets.

Every customer is a process (customer.py), every store a real server, and the provider - here, in the process that
nobody touches - keeps its own books: what it says is what happened. It knows no keys: it charges whenever it is asked
to, so that nothing but the library stands between a retry and a second charge.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socketserver
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from samekey.testing.servers import RedisServer
from tests.servers.proxy import FaultProxy

CUSTOMER = Path(__file__).parent / "customer.py"
LEASE_SECONDS = 1.0
WAIT_SECONDS = 60.0  # for what must come, on a busy machine
SETTLE_SECONDS = 15.0  # of retries before we take "not now" for an answer: powertools keeps a lock of ten seconds
PAUSE_SECONDS = 0.1


# -- the provider, who is also the judge ---------------------------------------------------------------------------


class Books:
    """What was charged, and who stands where."""

    def __init__(self) -> None:
        self.mutex = threading.Condition()
        self.charges: dict[str, list[str]] = defaultdict(list)  # receipts by key
        self.references: dict[str, list[str]] = defaultdict(list)
        self.asked: Counter[str] = Counter()  # requests by key, charged or not
        self.inside: Counter[str] = Counter()  # came to the door
        self.door, self.desk = True, True  # open: who comes may go on to pay; may go home with the receipt
        self.trouble: dict[str, str] = {}  # key: what happens to its next request (soft, hard, silent)

    def hear(self, said: dict[str, Any]) -> Any:
        with self.mutex:
            match said:
                case {"enter": key}:
                    self.inside[key] += 1
                    self.mutex.notify_all()
                    self.mutex.wait_for(lambda: self.door, WAIT_SECONDS)
                    return None
                case {"find": reference}:
                    return self.references[reference]
                case {"charge": key, "reference": reference}:
                    return self._charge(key, reference)
        raise ValueError(said)

    def _charge(self, key: str, reference: str) -> dict[str, str]:
        self.asked[key] += 1
        trouble = self.trouble.pop(key, "")
        if trouble in ("soft", "hard"):
            return {"declined": trouble}
        receipt = f"{key} receipt {len(self.charges[key]) + 1}"
        self.charges[key].append(receipt)
        self.references[reference].append(receipt)
        self.mutex.notify_all()
        self.mutex.wait_for(lambda: self.desk, WAIT_SECONDS)
        return {} if trouble == "silent" else {"charged": receipt}

    def until(self, true: Callable[[], bool]) -> None:
        with self.mutex:
            if not self.mutex.wait_for(true, WAIT_SECONDS):
                raise TimeoutError("nobody came to the provider")

    def set(self, *, door: bool | None = None, desk: bool | None = None) -> None:
        with self.mutex:
            self.door = self.door if door is None else door
            self.desk = self.desk if desk is None else desk
            self.mutex.notify_all()


class _Conversation(socketserver.StreamRequestHandler):
    server: _Office

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # a customer that is killed hangs up
            for line in self.rfile:
                self.wfile.write(json.dumps(self.server.books.hear(json.loads(line))).encode() + b"\n")


class _Office(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, books: Books) -> None:
        self.books = books
        super().__init__(("127.0.0.1", 0), _Conversation)


@contextlib.contextmanager
def provider() -> Iterator[tuple[Books, int]]:
    books = Books()
    with _Office(books) as office:
        threading.Thread(target=office.serve_forever, daemon=True).start()
        yield books, office.server_address[1]
        office.shutdown()


# -- customers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reply:
    kind: str  # answer, busy, doubt, reused, declined, fenced, error, gone
    result: Any = None
    text: str = ""


class Customer:
    """A process with a library in it."""

    def __init__(self, python: str, driver: str, url: str, port: int) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [python, str(CUSTOMER), driver, url, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._orders, self._said = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
        self._came = threading.Condition()
        self._replies: dict[int, Reply] = {}
        self._number = 0
        self._alive = True
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.reply(0)

    def order(self, key: str, amount: int = 200) -> int:
        self._number += 1
        self._orders.write(json.dumps({"number": self._number, "key": key, "amount": amount}) + "\n")
        self._orders.flush()
        return self._number

    def reply(self, number: int) -> Reply:
        with self._came:
            if not self._came.wait_for(lambda: number in self._replies or not self._alive, WAIT_SECONDS):
                return Reply("gone", text="no reply")
            return self._replies.get(number, Reply("gone"))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for pipe in (self._orders, self._said):
            with contextlib.suppress(OSError):  # an order that nobody reads any more
                pipe.close()

    def pause(self) -> None:
        """Stopped when it returns: the signal alone may still be on its way."""
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def _listen(self) -> None:
        for line in self._said:
            said = json.loads(line)
            with self._came:
                self._replies[said["number"]] = Reply(said["kind"], said.get("result"), said.get("text", ""))
                self._came.notify_all()
        with self._came:
            self._alive = False
            self._came.notify_all()


# -- a scene: what every scenario plays on -------------------------------------------------------------------------


@dataclass
class Scene:
    python: str
    driver: str
    url: str  # through the proxy
    books: Books
    port: int
    proxy: FaultProxy
    redis: RedisServer
    keys: list[str]
    answers: dict[str, list[Reply]] = field(default_factory=lambda: defaultdict(list))
    customers: list[Customer] = field(default_factory=list)

    def customer(self) -> Customer:
        self.customers.append(Customer(self.python, self.driver, self.url, self.port))
        return self.customers[-1]

    def ask(self, customer: Customer, amount: int = 200) -> dict[str, int]:
        """Order every key from this customer; the replies come later."""
        return {key: customer.order(key, amount) for key in self.keys}

    def hear(self, customer: Customer, orders: dict[str, int]) -> None:
        for key, number in orders.items():
            self.answers[key].append(customer.reply(number))

    def call(self, customer: Customer, amount: int = 200) -> None:
        self.hear(customer, self.ask(customer, amount))

    def insist(self, customer: Customer) -> None:
        """Ask until there is an answer or a clear word, as an honest client would."""
        left = list(self.keys)
        deadline = time.monotonic() + SETTLE_SECONDS
        while left:
            orders = {key: customer.order(key) for key in left}
            self.hear(customer, orders)
            left = [key for key in left if self.answers[key][-1].kind in ("busy", "fenced")]
            if time.monotonic() > deadline:
                return
            time.sleep(PAUSE_SECONDS)

    def all_inside(self, times: int = 1) -> None:
        self.books.until(lambda: all(self.books.inside[key] >= times for key in self.keys))

    def all_charged(self) -> None:
        self.books.until(lambda: all(self.books.charges[key] for key in self.keys))

    def lease_ends(self) -> None:
        time.sleep(1.5 * LEASE_SECONDS)


# -- the scenarios: what is done, and what must not come of it -----------------------------------------------------


def repeated(scene: Scene) -> None:
    """the same order again, from another process"""
    scene.call(scene.customer())
    scene.call(scene.customer())


def in_parallel(scene: Scene) -> None:
    """four processes with the same order at once"""
    crowd = [scene.customer() for _ in range(4)]
    orders = [scene.ask(one) for one in crowd]
    for one, asked in zip(crowd, orders, strict=True):
        scene.hear(one, asked)
    scene.insist(crowd[0])


def another_payload(scene: Scene) -> None:
    """the same key for another amount"""
    customer = scene.customer()
    scene.call(customer)
    scene.call(customer, amount=500)


def soft_decline(scene: Scene) -> None:
    """declined for lack of money, then asked again after a top-up"""
    customer = scene.customer()
    scene.books.trouble = dict.fromkeys(scene.keys, "soft")
    scene.call(customer)
    scene.call(customer)


def hard_decline(scene: Scene) -> None:
    """declined for good (a stolen card), then asked again"""
    customer = scene.customer()
    scene.books.trouble = dict.fromkeys(scene.keys, "hard")
    scene.call(customer)
    scene.books.trouble = dict.fromkeys(scene.keys, "hard")
    scene.call(customer)


def lost_answer(scene: Scene) -> None:
    """charged, and the provider's answer is lost: the effect ends in a timeout; asked again"""
    customer = scene.customer()
    scene.books.trouble = dict.fromkeys(scene.keys, "silent")
    scene.call(customer)
    scene.insist(customer)


def killed_before(scene: Scene) -> None:
    """killed with -9 after the claim, before the charge; asked again after the lease"""
    customer = scene.customer()
    scene.books.set(door=False)
    scene.ask(customer)
    scene.all_inside()
    customer.kill()
    scene.books.set(door=True)
    scene.lease_ends()
    scene.insist(scene.customer())


def killed_after(scene: Scene) -> None:
    """killed with -9 right after the charge; asked again after the lease"""
    customer = scene.customer()
    scene.books.set(desk=False)
    scene.ask(customer)
    scene.all_charged()
    customer.kill()
    scene.books.set(desk=True)
    scene.lease_ends()
    scene.insist(scene.customer())


def long_effect(scene: Scene) -> None:
    """the effect takes three leases; somebody else asks in the meantime"""
    holder = scene.customer()
    scene.books.set(door=False)
    orders = scene.ask(holder)
    scene.all_inside()
    scene.lease_ends()
    other = scene.customer()
    also = scene.ask(other)
    scene.lease_ends()
    scene.books.set(door=True)
    scene.hear(holder, orders)
    scene.hear(other, also)
    scene.insist(other)


def _paused(scene: Scene, trouble: str = "") -> None:
    holder = scene.customer()
    other = scene.customer()
    scene.books.set(door=False)
    orders = scene.ask(holder)
    scene.all_inside()
    holder.pause()
    scene.books.set(door=True)
    scene.lease_ends()
    scene.insist(other)
    if trouble:
        scene.books.trouble = dict.fromkeys(scene.keys, trouble)
    holder.resume()
    scene.hear(holder, orders)
    scene.books.trouble = {}
    scene.insist(scene.customer())


def paused(scene: Scene) -> None:
    """stopped past its lease before the charge, while somebody else asks; then resumed"""
    _paused(scene)


def paused_then_declined(scene: Scene) -> None:
    """the same, and the charge of the one that was resumed is declined; asked again"""
    _paused(scene, "soft")


def lost_claim(scene: Scene) -> None:
    """the store's reply to the claim is lost"""
    customer = scene.customer()
    for key in scene.keys:
        customer.reply(customer.order(f"{key}-before"))  # or the reply that is lost would be a greeting
        scene.proxy.lose_replies(1)
        scene.answers[key].append(customer.reply(customer.order(key)))
        scene.proxy.lose_replies(0)
    scene.insist(scene.customer())


def lost_settle(scene: Scene) -> None:
    """a reply of the store is lost while the customer is at the provider: to a renewal, or to the last write"""
    customer = scene.customer()
    for key in scene.keys:
        scene.books.set(desk=False)
        number = customer.order(key)
        scene.books.until(lambda key=key: bool(scene.books.charges[key]))  # type: ignore[misc]
        scene.proxy.lose_replies(1)
        scene.books.set(desk=True)
        scene.answers[key].append(customer.reply(number))
        scene.proxy.lose_replies(0)
    scene.insist(scene.customer())


def wiped(scene: Scene) -> None:
    """Redis loses everything after the answer; a process that was running all the time asks again"""
    other = scene.customer()
    scene.call(scene.customer())
    scene.call(other)
    scene.redis.call("FLUSHALL")
    scene.insist(other)


SCENARIOS: dict[str, Callable[[Scene], None]] = {
    "repeated": repeated,
    "in parallel": in_parallel,
    "another payload": another_payload,
    "soft decline": soft_decline,
    "hard decline": hard_decline,
    "lost answer": lost_answer,
    "killed before": killed_before,
    "killed after": killed_after,
    "long effect": long_effect,
    "paused": paused,
    "paused, declined": paused_then_declined,
    "lost claim": lost_claim,
    "lost settle": lost_settle,
    "Redis wiped": wiped,
}
EFFECTS_WANTED = {"hard decline": 0}  # elsewhere one


# -- the verdict ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What came of one scenario, in keys."""

    keys: int
    doubled: int  # charged more than once
    most: int  # charges of one key
    undone: int  # asked and asked, and neither charged nor told why
    differing: int  # two callers were given two answers
    wrong: int  # another payload was given the first one's answer
    refused: int  # a true repetition was refused as another payload
    doubts: int  # told that nobody knows
    asked_again: int  # a final decline was asked for again
    errors: tuple[str, ...]  # what else was said

    @property
    def broken(self) -> bool:
        return bool(self.doubled or self.undone or self.differing or self.wrong or self.refused)

    @property
    def text(self) -> str:
        of = f"of {self.keys}"
        said = []
        if self.doubled:
            said.append(f"{self.doubled} {of} charged {'twice' if self.most == 2 else f'{self.most} times'}")
        if self.undone:
            said.append(f"{self.undone} {of} never charged")
        if self.differing:
            said.append(f"{self.differing} {of} told two answers")
        if self.wrong:
            said.append(f"{self.wrong} {of} given the other's answer")
        if self.refused:
            said.append(f"{self.refused} {of} true repetitions refused")
        if said:
            return f"**{'; '.join(said)}**"
        if self.doubts:
            return f"holds; {self.doubts} in doubt"
        if self.asked_again:
            return "holds; asks again"
        return "holds"


def judge(name: str, scene: Scene) -> Outcome:
    books, keys = scene.books, scene.keys
    other = name == "another payload"
    wanted = EFFECTS_WANTED.get(name, 1)
    heard = {key: [one.kind for one in scene.answers[key]] for key in keys}
    results = {key: {str(one.result) for one in scene.answers[key] if one.kind == "answer"} for key in keys}
    charged = {key: len(books.charges[key]) for key in keys}
    told = ("doubt",)  # an honest "nobody knows" is no effect that went missing
    return Outcome(
        keys=len(keys),
        doubled=sum(charged[key] > 1 for key in keys),
        most=max(charged.values()),
        undone=sum(charged[key] < wanted and not any(one in told for one in heard[key]) for key in keys),
        differing=sum(len(results[key]) > 1 for key in keys),
        wrong=sum(other and heard[key][-1] == "answer" and charged[key] == 1 for key in keys),
        refused=sum(not other and "reused" in heard[key] for key in keys),
        doubts=sum(heard[key][-1] == "doubt" for key in keys),
        asked_again=sum(wanted == 0 and books.asked[key] > 1 for key in keys),
        errors=_errors(scene),
    )


def _errors(scene: Scene) -> tuple[str, ...]:
    said = {(key, one.text) for key in scene.keys for one in scene.answers[key] if one.kind == "error"}
    return tuple(sorted({re.sub(r"\S*[0-9a-f]{8}\S*", "...", text.splitlines()[0])[:160] for _, text in said}))


def play(name: str, *, python: str, driver: str, url: str, behind: int, redis: RedisServer, keys: int = 10) -> Outcome:
    """One scenario, with new keys, a new provider and new processes; `behind`: the port whose replies get lost."""
    with provider() as (books, port), FaultProxy(behind) as proxy:
        through = url.replace(f":{behind}/", f":{proxy.port}/")
        named = [f"{name.replace(' ', '-').replace(',', '')}-{os.urandom(4).hex()}" for _ in range(keys)]
        scene = Scene(python, driver, through, books, port, proxy, redis, named)
        try:
            SCENARIOS[name](scene)
            return judge(name, scene)
        finally:
            books.set(door=True, desk=True)
            for customer in scene.customers:
                customer.kill()

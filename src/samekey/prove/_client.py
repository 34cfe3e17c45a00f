"""Steps carried out over sockets, within a budget.

The client is the standard library's. It can send two key headers, half a body, or a last byte later than the rest. It
follows no redirect, uses no proxy and never retries by itself.
"""

from __future__ import annotations

import io
import ipaddress
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import BadStatusLine, HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, UnknownProtocol
from typing import Any
from urllib.parse import urlsplit

from samekey.core.errors import CallerError, Misconfigured, SamekeyError
from samekey.prove._bodies import found_at
from samekey.prove._steps import Break, Count, HangUp, Heal, Pause, Reply, Request, Send, Step, Target, Together

ANSWER_MAX_BYTES = 4 << 20  # of one answer; a longer one cannot be compared and counts as none
READ_BYTES = 64 << 10
CONNECT_SECONDS = 5.0


class Unreachable(SamekeyError):
    """The endpoint does not answer."""


class NotYours(CallerError):
    """The address is not of this machine, and the user did not allow the examination."""


class ProbeFailed(SamekeyError):
    """The effects cannot be counted: the probe gave no number, or a command of the user failed."""


class OutOfBudget(SamekeyError):
    """The examination used up its budget."""


@dataclass(slots=True)
class Budget:
    """What the examination may use in all. Counting and commands use its time only."""

    requests: int = 400
    seconds: float = 180.0
    bytes: int = 256 << 20
    used_requests: int = 0
    used_bytes: int = 0

    def spend(self, size: int) -> None:
        if self.used_requests + 1 > self.requests:
            raise OutOfBudget(f"the {self.requests} requests it may send are used up")
        if self.used_bytes + size > self.bytes:
            raise OutOfBudget(f"the {self.bytes} bytes it may send are used up")
        self.used_requests += 1
        self.used_bytes += size


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Where the number of effects is found: an address to GET, a command to run, or (neither) in the answers."""

    url: str | None = None
    command: str | None = None
    field: tuple[str, ...] = ()  # where in the JSON the number is

    def __str__(self) -> str:
        """For a report: without the query and without the arguments of a command, which may hold a password."""
        if self.command:
            return f"the command {_program(self.command)}"
        return self.url.partition("?")[0] if self.url else "what the answers name"

    def __bool__(self) -> bool:
        return bool(self.url or self.command)


@dataclass(slots=True)
class Client:
    """Carries out the steps of scenarios against one target."""

    target: Target
    probe: Probe
    budget: Budget
    timeout_seconds: float = 10.0
    break_commands: tuple[str, ...] = ()
    heal_command: str | None = None
    latency_seconds: float = 0.0  # of the last answer
    _is_broken: bool = False
    _ends: float = 0.0

    def __post_init__(self) -> None:
        self._ends = time.monotonic() + self.budget.seconds

    def greet(self) -> None:
        """Raise Unreachable if the endpoint accepts no connection."""
        connection = self._connection(self.target.url)
        try:
            connection.connect()
        except OSError as error:
            raise Unreachable(f"{self.target.url} does not answer: {_described(error)}") from error
        finally:
            connection.close()

    def perform(self, step: Step) -> Any:
        if time.monotonic() >= self._ends:
            raise OutOfBudget(f"the {self.budget.seconds:g} seconds it may take are over")
        match step:
            case Send(request):
                self.budget.spend(len(request.body))
                started = time.monotonic()
                reply = self._send(request)
                self.latency_seconds = time.monotonic() - started
                return reply
            case Together(requests):
                for request in requests:
                    self.budget.spend(len(request.body))
                return self._together(requests)
            case HangUp(request, part, after_seconds):
                self.budget.spend(int(len(request.body) * part))
                return self._hang_up(request, part, after_seconds)
            case Count():
                return self._count()
            case Pause(seconds):
                return time.sleep(min(seconds, max(0.0, self._ends - time.monotonic())))
            case Break(way):
                self._is_broken = True
                return self._trouble(self.break_commands[way])
            case Heal():
                if trouble := self.leave_in_order():
                    raise ProbeFailed(trouble)  # no scenario can be tried on an endpoint that may be broken
                return None

    def leave_in_order(self) -> str:
        """Heal what was broken, also where the examination ended early; return why that failed, or ""."""
        if not self._is_broken:
            return ""
        self._is_broken = False
        trouble = self._trouble(self.heal_command or "")
        return f"{trouble}; the endpoint may still be broken" if trouble else ""

    def _trouble(self, command: str) -> str:
        try:
            self._run(command)
        except ProbeFailed as failed:
            return failed.message
        return ""

    # -- requests --------------------------------------------------------------------------------------------------

    def _send(self, request: Request, gate: threading.Barrier | None = None) -> Reply:
        until = time.monotonic() + self.timeout_seconds
        connection = self._connection(request.url)
        try:
            connection.connect()
            early = ""
            try:
                self._write(connection, request, gate)
            except OSError as error:  # the endpoint answered and closed before the end of a large body: read its answer
                early = _described(error)
            try:
                return self._read(connection, until)
            except (OSError, HTTPException) as error:
                return Reply(0, trouble=early or _described(error))
        except OSError as error:
            if gate is not None:
                gate.abort()
            return Reply(0, trouble=_described(error))
        finally:
            connection.close()

    def _together(self, requests: tuple[Request, ...]) -> list[Reply]:
        """Open every connection and write every request except its last byte; then send the last bytes at once."""
        gate = threading.Barrier(len(requests))
        replies = [Reply(0, trouble="not sent")] * len(requests)

        def one(number: int) -> None:
            replies[number] = self._send(requests[number], gate)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(len(requests))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return replies

    def _hang_up(self, request: Request, part: float, after_seconds: float) -> None:
        connection = self._connection(request.url)
        try:
            connection.connect()
            self._head(connection, request)
            connection.send(request.body[: int(len(request.body) * part)])
            time.sleep(min(after_seconds, self.timeout_seconds))
        except OSError:
            pass  # the endpoint hung up first; what counts is its answer to the next request
        finally:
            connection.close()

    def _connection(self, url: str) -> HTTPConnection:
        parts = urlsplit(url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return kind(
            parts.hostname or "", parts.port, timeout=min(self.timeout_seconds, max(0.1, self._ends - time.monotonic()))
        )

    def _head(self, connection: HTTPConnection, request: Request) -> None:
        parts = urlsplit(request.url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        named = any(name.lower() == "host" for name, _ in request.headers)
        connection.putrequest(request.method, path, skip_host=named, skip_accept_encoding=True)
        for name, value in request.headers:
            connection.putheader(name, value)
        for key in request.keys:
            connection.putheader(self.target.key_header, key)
        connection.putheader("Connection", "close")
        if request.method != "GET":
            connection.putheader("Content-Length", str(len(request.body)))
        connection.endheaders()

    def _write(self, connection: HTTPConnection, request: Request, gate: threading.Barrier | None) -> None:
        if gate is None:
            self._head(connection, request)
            connection.send(request.body)
            return
        if request.body:
            self._head(connection, request)
            connection.send(request.body[:-1])
        try:
            gate.wait(timeout=CONNECT_SECONDS)
        except threading.BrokenBarrierError:
            pass  # one request could not connect: its reply reports it, and the others go on
        if request.body:
            connection.send(request.body[-1:])
        else:
            self._head(connection, request)

    def _read(self, connection: HTTPConnection, until: float) -> Reply:
        def left() -> float:
            seconds = until - time.monotonic()
            if seconds <= 0:
                raise TimeoutError(f"the answer did not end within {self.timeout_seconds:g} s")
            return seconds

        made: Any = lambda sock, **given: HTTPResponse(_Punctual(sock, left), **given)  # type: ignore[arg-type]  # noqa: E731
        connection.response_class = made
        response: HTTPResponse = connection.getresponse()
        body = bytearray()
        while part := response.read1(READ_BYTES):
            body += part
            if len(body) > ANSWER_MAX_BYTES:
                return Reply(0, trouble=f"the answer is longer than {ANSWER_MAX_BYTES} bytes")
        announced = response.getheader("Content-Length")
        if announced is not None and announced.isdecimal() and announced.lstrip("0") != str(len(body)).lstrip("0"):
            return Reply(0, trouble=f"{len(body)} bytes of an answer of {announced[:20]}")
        headers = tuple((name.lower(), value) for name, value in response.getheaders())
        return Reply(response.status, headers, bytes(body))

    # -- probe and commands ----------------------------------------------------------------------------------------

    def _count(self) -> int:
        if self.probe.command is not None:
            return _number(self._run(self.probe.command), self.probe)
        reply = self._send(Request(self.probe.url or "", (), b"", self.target.headers, "GET"))
        if not reply.status:
            raise ProbeFailed(f"{self.probe} does not answer: {reply.trouble}")
        if reply.status != 200:
            raise ProbeFailed(f"{self.probe} answered {reply}")
        return _number(reply.body, self.probe)

    def _run(self, command: str) -> bytes:
        try:
            done = subprocess.run(  # noqa: S603 - the user's own command, and no shell reads it
                shlex.split(command), capture_output=True, timeout=self.timeout_seconds, check=True
            )
        except subprocess.TimeoutExpired as error:
            raise ProbeFailed(f"the command {_program(command)} took longer than {self.timeout_seconds:g} s") from error
        except subprocess.CalledProcessError as error:
            raise ProbeFailed(f"the command {_program(command)} failed: exit code {error.returncode}") from error
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise ProbeFailed(f"the command {_program(command)} failed: {_described(error)}") from error
        return done.stdout


class _Punctual(io.RawIOBase):
    """Reads from a socket until a deadline.

    The timeout of a socket applies to each piece. A server that sends one byte of a header every second, or one
    `100 Continue` after the other, would keep us for ever.
    """

    def __init__(self, sock: Any, left: Callable[[], float]) -> None:
        self._sock, self._left, self._longest = sock, left, sock.gettimeout()
        self._raw = sock.makefile("rb", buffering=0)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(min(self._left(), self._longest))
        got: int | None = self._raw.readinto(buffer)
        return got

    def close(self) -> None:
        self._raw.close()
        super().close()


def _program(command: str) -> str:
    return repr(command.split(maxsplit=1)[0]) if command.strip() else "''"


def _number(text: bytes, probe: Probe) -> int:
    """A number, the length of a list, or what `field` leads to."""
    try:
        found = found_at(probe.field, text)
    except ValueError:
        raise ProbeFailed(f"{probe} gives no number: {text[:60]!r}") from None
    if isinstance(found, list):
        return len(found)
    if isinstance(found, bool) or not isinstance(found, int):
        raise ProbeFailed(f"{probe} gives no whole number: {text[:60]!r}")
    return found


def _described(error: Exception) -> str:
    if isinstance(error, BadStatusLine | UnknownProtocol) and not isinstance(error, OSError):
        # Not the text of the exception: it quotes what was received, which may be secret.
        return f"{type(error).__name__}: what came back is not HTTP"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def check_ours(*urls: str | None, said: bool) -> None:
    """Refuse addresses of other machines, unless the user allowed them (`said`)."""
    for url in urls:
        if url is None:
            continue
        host = _host(url)
        if said:
            continue
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"{host} is not known: {error}") from error
        if not all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found):
            raise NotYours(
                f"{host} is not this machine, and examining it makes real effects there",
                hint="if you may break it: --yes-this-is-mine",
            )


def _host(url: str) -> str:
    """Return the host of an address that can be examined."""
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.port is None or parts.port else None
    except ValueError:  # of the port
        host = None
    if not host or parts.scheme not in ("http", "https") or not (url.isascii() and url.isprintable()) or " " in url:
        raise Misconfigured(f"{url!r} is no http or https address")
    if parts.username is not None:
        raise Misconfigured("a name and password in the address are not sent: give them as a header")
    return host

"""Celery: a task whose messages are handled once.

    @once_task(app, guard, key="order_id", boundary=Keyed())
    def charge(order_id, amount):
        ...

Or `@app.task(base=OnceTask, once=Once(guard, key=..., boundary=...))`. The task acknowledges late, also when its child
process is lost, and never because of a time limit: `OnceTask` refuses a task that asks for anything else.

| action         | Celery                                                                                            |
|----------------|---------------------------------------------------------------------------------------------------|
| ack            | the task returns; of a replay it returns the stored result, so a chain or a chord goes on          |
| later, free    | its own signature is sent again, with the same task id and the same `retries`, then `Retry`        |
| later, counted | the same with `retries + 1`                                                                       |
| park, dead     | the parking store has it first, then `Reject(requeue=False)`                                      |
| silent         | as later: a copy of the message is sent before this one is acknowledged, and the record decides   |

`self.retry()`, `Ignore` and `Reject` of your own code pass untouched; whether the effect happened is unknown then.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection
from typing import Any, cast

from celery import Celery, Task, bootsteps
from celery.exceptions import Ignore, Reject, Retry
from celery.worker.request import Request

from samekey.core.boundary import Boundary
from samekey.core.call import Call
from samekey.core.errors import CallerError, Misconfigured, StoreError
from samekey.core.parking import Parked, make_parked
from samekey.core.policy import Policy
from samekey.guard.adapters import Running
from samekey.guard.binding import Binding
from samekey.guard.guards import Guard
from samekey.guard.operations import Operation, refuse_atomic
from samekey.messages._ack import Action, Delivery, Poison, Rules, decide
from samekey.messages._message import header

_log = logging.getLogger("samekey.messages")

VISIBILITY_SECONDS = 3600.0  # kombu's own for Redis
_FORCED = {"acks_late": True, "reject_on_worker_lost": True, "acks_on_timeout": False}


class TaskId:
    """`key=TASK_ID`: it survives `retry`, and not a second `delay` of the sender."""


TASK_ID = TaskId()


class Once:
    """How the messages of one task are handled: the rules of `Handler`, for arguments in place of a body."""

    def __init__(
        self,
        guard: Guard,
        *,
        key: Any,
        boundary: Boundary,
        tenant: Any = None,
        ignore: Collection[str] = (),
        policy: Policy | None = None,
        rules: Rules = Rules(),  # noqa: B008 - frozen
        name: str | None = None,
    ) -> None:
        if not isinstance(cast(Any, guard), Guard):
            raise Misconfigured(f"a Celery task is guarded by Guard, not {type(guard).__name__}")
        refuse_atomic(boundary)
        self.guard, self.key, self.boundary, self.tenant = guard, key, boundary, tenant
        self.ignore, self.policy, self.rules, self.name = ignore, policy, rules, name
        self._bound: dict[str, tuple[Binding | None, Operation]] = {}

    def declare(self, task: Task) -> tuple[Binding, Operation]:
        """The rules of this task, checked and put into the registry; once for each task."""
        known = self._bound.get(task.name)
        if known is None:
            by_header = isinstance(self.key, (header, TaskId))
            rule: Any = (lambda *_, **__: "") if by_header else self.key
            binding = Binding(task.run, key=rule, tenant=self.tenant, ignore=self.ignore, atomic=None)
            known = self._bound[task.name] = (
                binding,
                self.guard.operation(
                    self.name or task.name,
                    ignore=binding.ignore,
                    boundary=self.boundary,
                    policy=self.policy,
                    apart=None if by_header else binding.apart,
                    by="message",
                ),
            )
        return cast("tuple[Binding, Operation]", known)

    def call_of(self, task: Task, args: Any, kwargs: Any) -> Call | Poison:
        binding, operation = self.declare(task)
        try:
            bound = binding.bind(args, kwargs)
            key = bound.key
            if isinstance(self.key, TaskId):
                key = str(task.request.id)
            elif isinstance(self.key, header):
                key = _header(task, self.key.name)
            source = (task.request.delivery_info or {}).get("routing_key") or "celery"
            labels = {"source": str(source), "task_id": str(task.request.id or "")}
            return self.guard.new_call(operation, key, bound.payload, bound.tenant, labels)
        except Misconfigured:
            raise
        except (CallerError, TypeError) as error:
            return Poison(str(error))


class OnceRequest(Request):  # type: ignore[misc] # Celery has no types
    """In the parent process. A task that ran into its hard time limit is given back, and its record decides."""

    def on_timeout(self, soft: Any, timeout: Any) -> None:
        super().on_timeout(soft, timeout)
        if not soft:
            self.reject(requeue=True)


class OnceTask(Task):  # type: ignore[misc] # Celery has no types
    """The base class of guarded tasks; `once` has their rules."""

    abstract = True
    Request = "samekey.messages.celery:OnceRequest"
    acks_late = True
    reject_on_worker_lost = True
    acks_on_failure_or_timeout = False
    acks_on_failure = True
    acks_on_timeout = False
    once: Once | None = None

    @classmethod
    def bind(cls, app: Any) -> Any:
        for name, value in _FORCED.items():
            if getattr(cls, name) is not value:
                raise Misconfigured(f"a guarded task needs {name}={value}: otherwise a crash would drop its message")
        return super().bind(app)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        once = self.once
        if once is None:
            raise Misconfigured(f"the task {self.name} has no rules: give it once=Once(guard, key=..., boundary=...)")
        call = once.call_of(self, args, kwargs)
        direct = bool(self.request.called_directly)
        if isinstance(call, Poison):
            return self._carry_out(self._decide(call), None, args, kwargs)
        opened = once.guard.begin(call, wait=None if direct else 0)
        if not isinstance(opened, Running):
            if direct and hasattr(opened, "error"):
                raise opened.error
            return self._carry_out(self._decide(opened), call, args, kwargs)
        try:
            result = self.run(*args, **kwargs)
        except (Retry, Ignore, Reject) as decided:
            opened.fail(decided)  # the message is dealt with already: the record says that the outcome is unknown
            raise
        except Exception as error:
            lost = opened.lost
            ended = opened.fail(error)
            if direct:
                raise
            _log.warning("the task %s raised %s", self.name, type(error).__name__, exc_info=error)
            return self._carry_out(self._decide(ended, lost=lost), call, args, kwargs)
        except BaseException:
            opened.cut("the worker process ends")
            raise
        lost = opened.lost
        ended = opened.succeed(result)
        return result if direct else self._carry_out(self._decide(ended, lost=lost), call, args, kwargs)

    def _decide(self, outcome: Any, *, lost: bool = False) -> Action:
        assert self.once is not None  # noqa: S101 - checked by the caller
        tries = int(self.request.retries or 0) + 1
        return decide(outcome, Delivery(tries, lost, jitter=time.time() % 1), self.once.rules)

    def _carry_out(self, action: Action, call: Call | None, args: Any, kwargs: Any) -> Any:
        assert self.once is not None  # noqa: S101 - checked by the caller
        if action.verb in ("park", "dead"):
            try:
                self.once.guard.store.park(self._parked(action, call, args, kwargs))
            except (StoreError, Misconfigured, TypeError, ValueError) as error:
                _log.error("a message of %s could not be set aside, and comes again: %s", self.name, error)
                action = Action("later", 2.0)
            else:
                raise Reject(action.reason, requeue=False)
        if action.verb == "ack":
            return action.result
        if action.verb == "silent":
            # A copy goes out first, so that the late ack of this delivery takes no message away.
            action = Action("later", self.once.guard.policy.lease_seconds)
        retries = int(self.request.retries or 0) + action.counted
        again = self.signature_from_request(self.request, args, kwargs, countdown=action.seconds, retries=retries)
        again.apply_async(retry=True)
        raise Retry(f"samekey: later (row {action.row or '-'})", when=action.seconds)

    def _parked(self, action: Action, call: Call | None, args: Any, kwargs: Any) -> Parked:
        assert self.once is not None  # noqa: S101 - checked by the caller
        _, operation = self.once.declare(self)
        body = json.dumps({"task": self.name, "args": list(args), "kwargs": kwargs}).encode()
        return make_parked(
            at=time.time(),
            operation=operation.name,
            tenant=None if call is None else call.key.tenant,
            key="" if call is None else call.key.text,
            destination=f"celery:{(self.request.delivery_info or {}).get('routing_key') or ''}",
            headers={"task_id": str(self.request.id or "")},
            body=body,
            kind=action.kind,
            reason=action.reason,
        )


def once_task(app: Celery, guard: Guard, *, key: Any, boundary: Boundary, **options: Any) -> Callable[[Any], Any]:
    """`app.task` for a guarded task; options of `Once` and of Celery's own decorator may be mixed."""
    names = ("tenant", "ignore", "policy", "rules")
    own = {name: options.pop(name) for name in names if name in options}
    once = Once(guard, key=key, boundary=boundary, name=options.get("name"), **own)

    def decorate(function: Any) -> Any:
        return app.task(base=OnceTask, once=once, **options)(function)

    return decorate


class Visibility(bootsteps.StartStopStep):  # type: ignore[misc] # Celery has no types
    """A step of the worker's consumer, for Redis: renews the visibility of every message in hand.

    Running, prefetched, or waiting for its ETA: without it kombu delivers a message again after the visibility
    timeout, whatever its worker does. `app.steps["consumer"].add(Visibility)`.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._timer: Any = None

    def start(self, parent: Any) -> None:
        qos = getattr(parent.task_consumer.channel, "qos", None)
        if not all(hasattr(qos, name) for name in ("_delivered", "unacked_index_key", "pipe_or_acquire")):
            return  # not Redis
        options = parent.app.conf.broker_transport_options or {}
        every = float(options.get("visibility_timeout", VISIBILITY_SECONDS)) / 3
        self._timer = parent.timer.call_repeatedly(every, renew_visibility, (qos,))

    def stop(self, parent: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()


def renew_visibility(qos: Any) -> None:
    """Set the time of every delivery in hand to now, where the broker still has it."""
    tags = list(qos._delivered)
    if tags:
        with qos.pipe_or_acquire() as pipe:
            pipe.zadd(qos.unacked_index_key, {tag: time.time() for tag in tags}, xx=True).execute()


def _header(task: Task, name: str) -> str:
    for known, value in (task.request.headers or {}).items():
        if known.lower() == name.lower():
            return str(value)
    raise CallerError(f"the message has no header {name!r}")

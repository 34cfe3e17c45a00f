import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Request
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from fastapi_shop.bodies import Bill, NewOrder, Refusal
from fastapi_shop.tables import DATABASE, Order, Payment, customer, engine
from samekey import AsyncGuard, Atomic, Keyed, Opaque, Policy, current
from samekey.clients.httpx import AsyncKeyTransport
from samekey.http import Endpoint, rules
from samekey.http.fastapi import samekey_route

PROVIDER = os.environ["SHOP_PROVIDER"]
LEASE = float(os.environ.get("SHOP_LEASE_SECONDS", "30"))  # a dead worker's key is looked at after this

guard = AsyncGuard(DATABASE, policy=Policy(lease=LEASE))
calling: Any = {"base_url": PROVIDER, "timeout": LEASE * 0.8, "headers": {"Shop-Worker": str(os.getpid())}}
cards = httpx.AsyncClient(transport=AsyncKeyTransport(hosts={httpx.URL(PROVIDER).host}), **calling)
vouchers = httpx.AsyncClient(**calling)  # their issuer knows no keys: sent once

# Every request that moves something must have a key. It belongs to the customer: `current().tenant`.
whose: Any = {"principal": lambda request: customer(request.header("authorization")), "required": True}

KEYED = Endpoint(boundary=Keyed(), **whose)  # the provider honours keys: after a crash the next try adopts the charge
OPAQUE = Endpoint(boundary=Opaque(), **whose)  # the provider cannot tell: after a crash it is in doubt, for a person
ATOMIC = Endpoint(boundary=Atomic("session"), connection=lambda request: request.native["shop.session"], **whose)


class OneTransaction(samekey_route(guard=guard, endpoint=ATOMIC)):  # type: ignore[misc]
    """A transaction around guard and handler; the answer goes out after its commit."""

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        answer: list[Any] = []

        async def keep(message: Any) -> None:
            answer.append(message)

        async with AsyncSession(engine) as session, session.begin():
            scope["shop.session"] = session  # "session" is the name of Starlette's own
            await super().handle(scope, receive, keep)
        for message in answer:
            await send(message)


refusals: Any = {400: {"model": Refusal}, 403: {"model": Refusal}}  # ours are in the document by themselves
orders = APIRouter(route_class=OneTransaction, responses=refusals)
money = APIRouter(responses=refusals)
samekey_route(guard=guard, endpoint=KEYED, router=money)  # at start it checks the store and names unguarded routes


@orders.post("/orders", status_code=201)
async def place(wanted: NewOrder, request: Request) -> dict[str, int]:
    """Order and key commit together: exactly one row."""
    order = Order(customer=current().tenant, item=wanted.item)
    request.scope["shop.session"].add(order)
    await request.scope["shop.session"].flush()
    return {"order": order.id}


def body_of(answer: httpx.Response) -> dict[str, Any]:
    """What the provider answered."""
    if answer.status_code == 402:
        current().release()  # declined, and the provider says so: nothing happened, the key is free again
        raise HTTPException(403, "declined")
    return dict(answer.raise_for_status().json())


@money.post("/charges", status_code=201)
async def charge(bill: Bill) -> dict[str, Any]:
    paid = body_of(await cards.post("/charges", json=bill.model_dump()))  # under the hold's own key
    async with AsyncSession(engine) as session, session.begin():
        await session.merge(Payment(id=paid["id"], customer=current().tenant, **bill.model_dump()))  # maybe again
    return {"charge": paid["id"], "amount": paid["amount"]}


@money.post("/vouchers", status_code=201)
@rules(OPAQUE)
async def redeem(bill: Bill) -> dict[str, Any]:
    return body_of(await vouchers.post("/vouchers", json=bill.model_dump()))


@asynccontextmanager
async def closing(app: FastAPI) -> AsyncIterator[None]:
    yield
    for close in (cards.aclose, vouchers.aclose, guard.close, engine.dispose):
        await close()


app = FastAPI(title="Shop", lifespan=closing)
app.include_router(orders)
app.include_router(money)


async def signed_in(authorization: Annotated[str | None, Header()] = None) -> str:
    name = await customer(authorization)
    if name is None:
        raise HTTPException(401, "who are you?")
    return name


@app.get("/orders", responses={401: {"model": Refusal}})
async def my_orders(name: Annotated[str, Depends(signed_in)]) -> list[str]:
    async with AsyncSession(engine) as session:
        return [*await session.scalars(select(Order.item).where(Order.customer == name).order_by(Order.id))]

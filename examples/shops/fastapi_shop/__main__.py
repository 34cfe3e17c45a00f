"""`python -m fastapi_shop` makes the tables and two customers, ann and bob, with the tokens ann-token and bob-token."""

import asyncio

from sqlalchemy.ext.asyncio import AsyncSession

from fastapi_shop.tables import Base, Customer, digest, engine


async def prepare() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with AsyncSession(engine) as session, session.begin():
        for name in ("ann", "bob"):
            await session.merge(Customer(name=name, token=digest(f"{name}-token")))


asyncio.run(prepare())

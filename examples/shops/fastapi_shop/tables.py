import hashlib
import os

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

DATABASE = os.environ["SHOP_DATABASE"]  # for orders and keys

engine = create_async_engine(DATABASE.replace("postgresql:", "postgresql+psycopg:"))


class Base(DeclarativeBase): ...


class Customer(Base):
    __tablename__ = "customers"
    name: Mapped[str] = mapped_column(primary_key=True)
    token: Mapped[str] = mapped_column(unique=True)  # its digest


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    item: Mapped[str]


class Payment(Base):
    __tablename__ = "payments"
    id: Mapped[str] = mapped_column(primary_key=True)
    customer: Mapped[str]
    order: Mapped[str]
    amount: Mapped[int]


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


async def customer(authorization: str | None) -> str | None:
    """The name of the user of `Authorization: Bearer TOKEN`."""
    token = (authorization or "").removeprefix("Bearer ")
    async with AsyncSession(engine) as session:
        return await session.scalar(select(Customer.name).where(Customer.token == digest(token)))

from typing import Annotated

from pydantic import BaseModel, Field

Text = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[A-Za-z0-9 -]+$")]


class NewOrder(BaseModel):
    item: Text


class Bill(BaseModel):
    order: Text
    amount: Annotated[int, Field(gt=0, lt=2**31)]


class Refusal(BaseModel):
    """FastAPI's own."""

    detail: str

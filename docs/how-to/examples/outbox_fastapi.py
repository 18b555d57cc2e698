"""A FastAPI application that writes an order and sends a message about it in one transaction of SQLAlchemy.

export PAIRMQ_PRIMARY=amqp://guest:guest@127.0.0.1:5672/ PAIRMQ_SECONDARY=postgresql://shop:secret@127.0.0.1/shop
uvicorn outbox_fastapi:app
"""

import os
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from pairmq import Message, Pair
from pairmq_web.fastapi import get_pair, pair_lifespan

engine = create_async_engine(os.environ["PAIRMQ_SECONDARY"].replace("postgresql:", "postgresql+psycopg:", 1))
new_session = async_sessionmaker(engine)
app = FastAPI(lifespan=pair_lifespan())  # the brokers, and all options, from PAIRMQ_* variables


class Base(DeclarativeBase):
    """The application's tables."""


class Order(Base):
    """One order."""

    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)


@app.post("/orders/{number}", status_code=201)
async def place(number: int, pair: Annotated[Pair, Depends(get_pair)]) -> str:
    try:
        async with new_session() as session, session.begin():
            session.add(Order(number=number))
            receipt = await pair.outbox("orders").send(Message(str(number).encode()), connection=session)
    except IntegrityError as error:
        raise HTTPException(409, "there is such an order, and no message was sent") from error
    return receipt.route.value

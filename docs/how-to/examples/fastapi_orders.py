"""A FastAPI application that takes orders, also while RabbitMQ is unavailable.

export PAIRMQ_PRIMARY=amqp://guest:guest@127.0.0.1:5672/ PAIRMQ_SECONDARY=redis://127.0.0.1:6379/0
uvicorn fastapi_orders:app
"""

from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException

from pairmq import Message, Pair, SendError
from pairmq_web.fastapi import get_pair, pair_lifespan, readiness_router

app = FastAPI(lifespan=pair_lifespan())  # the brokers, and all options, from PAIRMQ_* variables
app.include_router(readiness_router("orders"))


@app.post("/orders/{number}", status_code=202)
async def place(number: int, pair: Annotated[Pair, Depends(get_pair)]) -> str:
    try:
        receipt = await pair.sender("orders").send(Message(str(number).encode()), timeout=10)
    except SendError as error:
        raise HTTPException(503, str(error)) from error
    return receipt.route.value

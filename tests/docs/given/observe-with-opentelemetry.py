"""Two brokers, the program's own providers, and a receiver that has one message."""

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

from pairmq import Entity, Message, Pair

primary, secondary = "redis://127.0.0.1:6379/0", "redis://127.0.0.1:6380/0"
meters, tracers = MeterProvider(), TracerProvider()


async def one_delivery():
    async with Pair.connect(primary, secondary) as sending, sending.receiver("orders") as taking:
        await sending.primary.admin.create(Entity("orders"))
        await sending.sender("orders").send(Message(b"42"))
        yield await anext(taking)


async def handle(message):
    assert message.body == b"42"


receiver = one_delivery()

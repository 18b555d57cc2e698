"""Two brokers with a message in a queue, a warehouse, and receivers that end: the page's loops would not."""

import pairmq

primary, secondary = "redis://127.0.0.1:6379/0", "redis://127.0.0.1:6380/0"
left = [b"42"]


async def ship(message):
    assert message.body == b"42"


async def as_many_as_there_are(receiver):
    while left:
        left.pop()
        for delivery in await receiver.receive(max_messages=1, wait=10):
            yield delivery


pairmq.PairReceiver.__aiter__ = as_many_as_there_are

async with pairmq.Pair.connect(primary, secondary) as preparing:
    await preparing.primary.admin.create(pairmq.Entity("orders"))
    await preparing.sender("orders").send(pairmq.Message(left[0]))

"""A program that sends through a pair, and serves the pair's dashboard meanwhile."""

import asyncio
import os

from pairmq import Entity, Message, Pair
from pairmq.dashboard import serving


async def main() -> None:
    """Send three messages."""
    pair = Pair.connect(os.environ["PAIRMQ_PRIMARY"], os.environ["PAIRMQ_SECONDARY"])
    async with serving(pair, port=0) as address, pair:
        print("dashboard:", address.operator_url, flush=True)
        await pair.primary.admin.create(Entity("orders"))
        sender = pair.sender("orders")
        for number in range(3):
            receipt = await sender.send(Message(str(number).encode()))
            print(receipt.route.value)


asyncio.run(main())

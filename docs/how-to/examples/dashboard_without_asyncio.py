"""A program without asyncio that sends through a pair, and serves the pair's dashboard meanwhile."""

import os

from pairmq import Entity, Message
from pairmq.dashboard import serving
from pairmq.sync import Pair

with (
    Pair.connect(os.environ["PAIRMQ_PRIMARY"], os.environ["PAIRMQ_SECONDARY"]) as pair,
    pair.beside(lambda inner: serving(inner, port=0)) as address,
):
    print("dashboard:", address.operator_url, flush=True)
    pair.primary.admin.create(Entity("orders"))
    sender = pair.sender("orders")
    for number in range(3):
        print(sender.send(Message(str(number).encode())).route.value)

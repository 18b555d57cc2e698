"""A receiver whose deliveries are journalled."""

from __future__ import annotations

from pairmq.model import Entity, Message, Source
from pairmq.model.events import Settlement
from pairmq.observe.journal._deliveries import JournalledReceiver
from pairmq.transport import Receiver


class Silent(Receiver):
    async def receive(self, max_messages, wait):
        return []

    async def complete(self, delivery):
        pass


def test_journalled_receiver_journals_what_its_receiver_dead_letters_itself():
    inner, events, reported = Silent(), [], []
    journalled = JournalledReceiver(inner, Source(Entity("orders")), events.append, "pair")
    journalled.on_dead_lettered = reported.append
    inner.dead_lettered(Message(b"1", message_id="m"), "malformed", "no header", 3)
    (event,) = events
    assert (event.message_id, event.settlement, event.reason) == ("m", Settlement.DEAD_LETTERED, "malformed")
    assert (event.delivery_count, event.error, len(reported)) == (3, None, 1)

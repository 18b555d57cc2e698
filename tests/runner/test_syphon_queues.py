"""A syphon that empties only some of the backlog queues, where several processes share the work."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from pairmq import ConfigurationError, Entity, Message, Pair
from pairmq.core import Diversion, PairOptions, divert
from pairmq.testing import SimulatedBroker, in_virtual_time, virtual_wall

OPTIONS = PairOptions(backlog_queue_count=3, enable_syphon=True)


@in_virtual_time
async def test_only_the_chosen_queues_are_made_and_emptied():
    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    await east.transport().admin.create(Entity("orders"))
    names = OPTIONS.backlog_queue_names("east")
    at = datetime.fromtimestamp(virtual_wall(), UTC)
    for name in names[:2]:
        await west.transport().admin.create(Entity(name))
        west.store(Entity(name), divert(Message(b"x", message_id=name), Diversion(Entity("orders"), at, "other", 1)))
    async with Pair(east.transport(), west.transport(), OPTIONS, syphon_queues=(1, 2)) as pair:
        await asyncio.sleep(5)
        assert [message.message_id for message in east.messages("orders")] == [names[1]]
        assert len(west.messages(names[0])) == 1
        assert await pair.secondary.admin.exists(Entity(names[2]))


@pytest.mark.parametrize(
    ("queues", "options", "said"),
    [((3,), OPTIONS, "0 to 2"), ((), OPTIONS, "0 to 2"), ((0,), PairOptions(), "enable_syphon is off")],
)
def test_a_choice_that_can_not_be_is_refused(queues, options, said):
    with pytest.raises(ConfigurationError, match=said):
        Pair.connect("memory://p", "memory://s", options=options, syphon_queues=queues)

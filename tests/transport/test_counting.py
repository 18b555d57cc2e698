"""Many queues counted at once: what fails is told beside what does not."""

from __future__ import annotations

from pairmq.model import Entity, Message
from pairmq.testing import Fault, Operation, SimulatedBroker, in_virtual_time
from pairmq.transport import Depth, QueueCounts, counts_of


@in_virtual_time
async def test_each_queue_is_counted_or_says_why_not() -> None:
    broker = SimulatedBroker("east")
    queues = [Entity(name) for name in ("empty", "missing", "silent", "full")]
    async with broker.transport() as transport:
        for queue in queues:
            if queue.path != "missing":
                await transport.admin.create(queue)
        await transport.sender(Entity("full")).send(Message(b"1"))
        broker.fail(Fault.HANG, Operation.ADMIN, entities=["silent"])
        empty, missing, silent, full = await counts_of(transport, queues, 5.0)
    assert (empty.counts, full.counts) == (QueueCounts(), QueueCounts(active=1))
    assert (empty.pending, full.pending, missing.pending, silent.pending) == (0, 1, 0, None)
    assert [each.missing for each in (empty, missing, silent, full)] == [False, True, False, False]
    assert silent == Depth(queues[2], error="simulated://east: no answer within 5 s")

"""A consumer's pair and transport, and a journal for them."""

from pairmq import Entity, Pair
from pairmq.model import Source
from pairmq.plugins import registry

pair = Pair.connect("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6380/0")
await pair.open()
transport = registry.transport("redis://127.0.0.1:6379/0")
source = Source(Entity("orders"))
await pair.primary.admin.create(source.entity)

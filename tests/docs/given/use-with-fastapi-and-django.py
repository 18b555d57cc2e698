"""A database of the program's own, and a pair that is open."""

from contextlib import asynccontextmanager

from pairmq import Entity, EntityKind, Pair


@asynccontextmanager
async def open_database():
    yield object()


pair = Pair.connect("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6380/0")
await pair.open()

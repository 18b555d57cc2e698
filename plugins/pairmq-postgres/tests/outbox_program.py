"""A program of its own for the tests that kill one.

    outbox_program.py PRIMARY SECONDARY before     stores a message, prints ``stored``, and never commits
    outbox_program.py PRIMARY SECONDARY after      commits it, prints ``committed``, and never closes the pair
    outbox_program.py PRIMARY SECONDARY transfer   moves money between accounts, a message for each transfer, forever
    outbox_program.py PRIMARY SECONDARY syphon     moves the outbox to the primary, forever
    outbox_program.py PRIMARY SECONDARY apply      applies each message to another table, once, forever

The last three go on after every failure of a broker or the database.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
import uuid
from dataclasses import replace

import psycopg

from pairmq import Deduplicator, Message, Pair, PairMQError, PairOptions
from pairmq import sync as blocking
from pairmq_postgres import PostgresInbox

OPTIONS = PairOptions(backlog_queue_count=1, attempt_timeout=20.0, failover_interval=0, ping_primary_interval=0.2)
ACCOUNTS = 8
AGAIN = 0.05


def database(secondary: str) -> str:
    """What libpq connects to."""
    return secondary.partition("?")[0]


def store(primary: str, secondary: str, *, commit: bool) -> None:
    with blocking.Pair.connect(primary, secondary, options=OPTIONS) as pair:
        connection = psycopg.connect(database(secondary))
        pair.outbox("orders").send(Message(b"after" if commit else b"before"), connection=connection)
        if commit:
            connection.commit()
        print("committed" if commit else "stored", flush=True)
        time.sleep(1000)


def transfer(primary: str, secondary: str) -> None:
    with blocking.Pair.connect(primary, secondary, options=OPTIONS) as pair:
        outbox = pair.outbox("orders")
        while True:
            try:
                with psycopg.connect(database(secondary)) as connection:
                    while True:
                        _transfer(outbox, connection)
                        time.sleep(random.random() * AGAIN)
            except (psycopg.Error, PairMQError):
                time.sleep(AGAIN)


def _transfer(outbox: blocking.PairOutbox, connection: psycopg.Connection) -> None:
    giver, taker = sorted(random.sample(range(ACCOUNTS), 2))
    number, amount = str(uuid.uuid4()), random.randint(-100, 100)
    connection.execute("UPDATE account SET held = held - %s WHERE number = %s", (amount, giver))
    connection.execute("UPDATE account SET held = held + %s WHERE number = %s", (amount, taker))
    connection.execute("INSERT INTO transfer VALUES (%s, %s, %s, %s)", (number, giver, taker, amount))
    body = json.dumps([giver, taker, amount]).encode()
    outbox.send(Message(body, message_id=number), connection=connection)
    if random.random() < 0.2:
        connection.rollback()
    else:
        connection.commit()


async def syphon(primary: str, secondary: str) -> None:
    async with Pair.connect(primary, secondary, options=replace(OPTIONS, enable_syphon=True)):
        await asyncio.Event().wait()


async def apply(primary: str, secondary: str) -> None:
    once = Deduplicator(PostgresInbox())
    async with Pair.connect(primary, secondary, options=OPTIONS) as pair:
        while True:
            try:
                receiver = pair.receiver("orders")
                async with await psycopg.AsyncConnection.connect(database(secondary)) as connection, receiver:
                    while True:
                        for delivery in await receiver.receive(5, 5.0):
                            await _apply(once, delivery, connection)
            except (psycopg.Error, PairMQError):
                await asyncio.sleep(AGAIN)


async def _apply(once: Deduplicator, delivery, connection: psycopg.AsyncConnection) -> None:
    async with connection.transaction(), once.first(delivery, connection=connection) as first:
        if first:
            giver, taker, amount = json.loads(delivery.body)
            await connection.execute("UPDATE mirror SET held = held - %s WHERE number = %s", (amount, giver))
            await connection.execute("UPDATE mirror SET held = held + %s WHERE number = %s", (amount, taker))
            await connection.execute("INSERT INTO applied VALUES (%s)", (delivery.message.message_id,))
    await delivery.complete()


if __name__ == "__main__":
    *urls, what = sys.argv[1:]
    if what in ("before", "after"):
        store(*urls, commit=what == "after")
    elif what == "transfer":
        transfer(*urls)
    else:
        asyncio.run({"syphon": syphon, "apply": apply}[what](*urls))

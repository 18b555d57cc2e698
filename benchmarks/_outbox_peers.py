"""Relays of other outboxes, in an interpreter of their own: fills the outbox, prints ``ready``, waits, and relays.

python _outbox_peers.py event-forge|django-celery-outbox POSTGRES RABBITMQ MESSAGES
"""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from typing import Any

BODY = "x" * 1024


def notified() -> None:
    """Say that all is ready, and wait for a line."""
    print("ready", flush=True)
    sys.stdin.readline()


async def event_forge(database: str, broker: str, messages: int) -> None:
    """Without its pause of at least a second between two batches."""
    import aio_pika
    from event_forge.config import OutboxConfig
    from event_forge.publishers.aio_pika_publisher import AioPikaPublisher
    from event_forge.repositories.sqlalchemy import SQLAlchemyOutboxRepository
    from event_forge.repositories.sqlalchemy.entities import OutboxMessageEntity
    from event_forge.services.outbox_service import OutboxService
    from sqlalchemy import insert
    from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

    class Repository(SQLAlchemyOutboxRepository):
        """Version 1.5.0 lacks a method that it requires; nothing here calls it."""

        async def find_and_lock_by_id(self, message_id: str, locker_id: str) -> Any:
            raise NotImplementedError

    engine = create_async_engine(database.replace("postgresql://", "postgresql+asyncpg://"), pool_size=20)
    async with engine.begin() as connection:
        await connection.run_sync(OutboxMessageEntity.metadata.create_all)
    repository = Repository(async_sessionmaker(engine, expire_on_commit=False))
    async with engine.begin() as connection:
        rows = [
            {
                "id": str(uuid.uuid4()),
                "aggregate_type": "orders",
                "aggregate_id": "1",
                "event_type": "placed",
                "payload": {"body": BODY},
                "status": "pending",
                "retry_count": 0,
                "max_retries": 3,
            }
            for _ in range(messages)
        ]
        await connection.execute(insert(OutboxMessageEntity), rows)
    link = await aio_pika.connect(broker)
    channel = await link.channel()
    exchange = await channel.declare_exchange("peers", aio_pika.ExchangeType.TOPIC, durable=True)
    queue = await channel.get_queue("orders")
    await queue.bind(exchange, "#")
    publisher = AioPikaPublisher(broker, "peers")
    await publisher.connect()
    service = OutboxService(repository, publisher, OutboxConfig(batch_size=100))
    notified()
    while True:
        await service._poll_and_process()


def django_celery_outbox(database: str, broker: str, messages: int) -> None:
    """With publisher confirms, as all others here."""
    import django
    from celery import Celery
    from django.conf import settings
    from psycopg.conninfo import conninfo_to_dict

    parts: dict[str, Any] = conninfo_to_dict(database)
    settings.configure(
        INSTALLED_APPS=["django_celery_outbox"],
        USE_TZ=True,
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": parts["dbname"],
                "USER": parts["user"],
                "PASSWORD": parts["password"],
                "HOST": parts["host"],
                "PORT": parts["port"],
            }
        },
    )
    django.setup()
    from django.core.management import call_command
    from django_celery_outbox.models import CeleryOutbox
    from django_celery_outbox.relay import Relay, RelayConfig

    logging.disable(logging.CRITICAL)
    call_command("migrate", verbosity=0)
    app = Celery("peers", broker=broker)
    app.conf.update(broker_transport_options={"confirm_publish": True}, task_default_queue="orders")
    with app.connection_for_write() as connection:
        app.amqp.queues["orders"](connection.default_channel).declare()
    rows = [
        CeleryOutbox(task_id=str(uuid.uuid4()), task_name="peers.place", args=[BODY], kwargs={})
        for _ in range(messages)
    ]
    CeleryOutbox.objects.bulk_create(rows, batch_size=1000)
    notified()
    Relay(app=app, config=RelayConfig.init(batch_size=100, publish_concurrency=4)).start()


if __name__ == "__main__":
    what, *urls, count = sys.argv[1:]
    if what == "event-forge":
        asyncio.run(event_forge(*urls, int(count)))
    else:
        django_celery_outbox(*urls, int(count))

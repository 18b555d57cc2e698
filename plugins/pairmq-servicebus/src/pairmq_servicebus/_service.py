"""The administration over HTTP: questions to it, what its client needs help with, and settings as it describes them.

The client has three faults:

- It says ``https://`` whatever the server speaks: local servers of plain HTTP are reached by rewriting that.
- It goes on using a token of a key for a minute after its end: it is made anew before that.
- It shows a shared access signature as a bearer token, which the service does not take.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

import aiohttp
from azure.core.exceptions import ResourceNotFoundError
from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import QueueProperties as QueueDescription
from azure.servicebus.management import TopicProperties as TopicDescription

from pairmq.model import Entity, EntityKind, FailureReason
from pairmq.transport import QueueProperties, raise_failure
from pairmq_servicebus import _errors
from pairmq_servicebus._client import Namespace, connection_string
from pairmq_servicebus._entities import METADATA
from pairmq_servicebus._url import Identity, SharedSignature

T = TypeVar("T")

_TOKEN_LIFE = 45 * 60.0  # s: the client makes them for an hour

MOST_DELIVERIES: Final = 2**31 - 1
"""The service's way of saying *without a limit*."""

MOST_COUNTED: Final = 2000
"""Where a server counts deliveries at all and refuses `MOST_DELIVERIES`, this is as far as it counts."""

_ENDLESS = timedelta(days=10_000_000)  # the service says 10 675 199 days for *unlimited*
_DEFAULT_LOCK = 60.0  # s
_TOPIC_SETTINGS = frozenset(
    ("max_size_in_megabytes", "default_message_time_to_live", "auto_delete_on_idle", "enable_batched_operations")
)


class Service:
    """Asks the administration of one namespace; needs the claim *Manage*."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._session: aiohttp.ClientSession | None = None
        self._client: ServiceBusAdministrationClient | None = None
        self._made_at = 0.0

    async def ask(self, doing: str, question: Callable[[ServiceBusAdministrationClient], Awaitable[T]]) -> T:
        """Ask something of the client, whose exceptions become the error."""
        if self._namespace.closed:
            raise _errors.closed(doing)
        try:
            return await question(self._good_client())
        except Exception as error:
            raise_failure(_errors.failure(error, doing, maybe_applied=True))

    async def describe(self, entity: Entity, doing: str) -> QueueProperties:
        """Read an entity's settings, and take note of whether it is a queue with one consumer at a time.

        Reason *not-found* also for an entity of the other kind.
        """

        async def question(client: ServiceBusAdministrationClient) -> QueueProperties:
            try:
                if entity.kind is EntityKind.TOPIC:
                    return properties_of(await client.get_topic(entity.path))
                found = properties_of(await client.get_queue(entity.path))
                self._namespace.single_consumers.note(
                    entity, found.single_consumer, requires_session=found.requires_session
                )
                return found
            except AttributeError:
                # The client stumbles over the description of an entity of the other kind.
                raise ResourceNotFoundError(f"there is no {entity.kind} of that name") from None

        return await self.ask(doing, question)

    async def close(self) -> None:
        session, self._session, self._client = self._session, None, None
        if session is not None:
            with contextlib.suppress(Exception):
                await session.close()

    def _good_client(self) -> ServiceBusAdministrationClient:
        """The client, made anew before its token ends; no IO."""
        now = asyncio.get_running_loop().time()
        if self._client is None or now - self._made_at > _TOKEN_LIFE:
            self._client = self._make()
            self._made_at = now
        return self._client

    def _make(self) -> ServiceBusAdministrationClient:
        namespace, url = self._namespace, self._namespace.url
        if self._session is None:
            # aiohttp would go on with the former addresses of a name for ten seconds, also where they do not answer.
            connector = aiohttp.TCPConnector(ssl=namespace.tls or True, use_dns_cache=False)
            self._session = aiohttp.ClientSession(connector=connector)
        credential = url.credential
        authorization = credential.token if isinstance(credential, SharedSignature) else None
        options: dict[str, Any] = {
            "transport": AdminTransport(self._session, plain=url.admin.plain, authorization=authorization),
            "retry_total": 0,
            "connection_timeout": url.connect_timeout,
            "read_timeout": url.operation_timeout,
            "user_agent": "pairmq-servicebus",
        }
        if isinstance(credential, Identity):
            assert namespace.identity is not None  # noqa: S101 - made with the namespace
            return ServiceBusAdministrationClient(url.admin.host, namespace.identity, **options)
        text = connection_string(url, url.admin.host)
        return ServiceBusAdministrationClient.from_connection_string(text, **options)


class AdminTransport(AioHttpTransport):  # type: ignore[misc]  # exported lazily, so that its type is unknown
    def __init__(self, session: aiohttp.ClientSession, *, plain: bool, authorization: str | None) -> None:
        super().__init__(session=session, session_owner=False, use_env_settings=False)
        self._plain = plain
        self._authorization = authorization

    async def send(self, request: Any, **config: Any) -> Any:
        if self._plain:
            request.url = "http://" + request.url.removeprefix("https://")
        if self._authorization is not None:
            request.headers["Authorization"] = self._authorization
        return await super().send(request, **config)


def queue_settings(asked: QueueProperties | None, doing: str) -> dict[str, Any]:
    """Give what makes a queue of these settings; what is None is left to the service, whose default is *unlimited*.

    Reason *malformed* when a setting is not a setting; the service checks the ranges.
    """
    if asked is None:
        return {"dead_lettering_on_message_expiration": True}
    return {
        "max_size_in_megabytes": asked.max_size_megabytes,
        "max_delivery_count": asked.max_delivery_count or MOST_DELIVERIES,
        "default_message_time_to_live": _duration(asked.default_time_to_live, "default_time_to_live", doing),
        "auto_delete_on_idle": _duration(asked.auto_delete_after, "auto_delete_after", doing),
        "lock_duration": _duration(asked.lock_duration, "lock_duration", doing),
        "dead_lettering_on_message_expiration": asked.dead_letter_on_expiration,
        "enable_batched_operations": asked.batched_operations,
        "requires_session": asked.requires_session or asked.single_consumer,
        "user_metadata": METADATA if asked.single_consumer else None,
    }


def fewer_deliveries(settings: dict[str, Any]) -> bool:
    """Change settings that ask for no limit of deliveries to the largest every server takes; returns if they did."""
    if settings.get("max_delivery_count") != MOST_DELIVERIES:
        return False
    settings["max_delivery_count"] = MOST_COUNTED
    return True


def topic_settings(asked: QueueProperties | None, doing: str) -> dict[str, Any]:
    """Give what makes a topic; what only its subscriptions have is left out. Raises as `queue_settings`."""
    return {name: value for name, value in queue_settings(asked, doing).items() if name in _TOPIC_SETTINGS}


def properties_of(found: QueueDescription | TopicDescription) -> QueueProperties:
    """Read a description; of a topic, what it has of a queue's settings."""
    shared = {
        "max_size_megabytes": found.max_size_in_megabytes,
        "default_time_to_live": _seconds(found.default_message_time_to_live),
        "auto_delete_after": _seconds(found.auto_delete_on_idle),
        "batched_operations": bool(found.enable_batched_operations),
    }
    if isinstance(found, TopicDescription):
        return QueueProperties(**shared, lock_duration=None, dead_letter_on_expiration=False)  # type: ignore[arg-type]
    lock = _seconds(found.lock_duration)
    # The partitions of a partitioned queue number their messages separately, and are browsed in no certain order
    # (Service Bus documentation: "Partitioned queues and topics"): what is settled can't be determined.
    sessions, partitioned = bool(found.requires_session), bool(found.enable_partitioning)
    single_consumer = sessions and not partitioned and METADATA in (found.user_metadata or "")
    return QueueProperties(
        **shared,  # type: ignore[arg-type]  # each of its own type
        max_delivery_count=found.max_delivery_count,
        lock_duration=_DEFAULT_LOCK if lock is None else lock,
        dead_letter_on_expiration=bool(found.dead_lettering_on_message_expiration),
        requires_session=sessions and not single_consumer,
        single_consumer=single_consumer,
        drops_duplicates=bool(found.requires_duplicate_detection),
        forwards_to=found.forward_to or None,
    )


def _duration(seconds: float | None, name: str, doing: str) -> timedelta | None:
    if seconds is None:
        return None
    if not 0 < seconds <= _ENDLESS.total_seconds():
        text = f"{name} is {seconds!r}: seconds above 0, or None for the service's default"
        raise _errors.refused(doing, text, FailureReason.MALFORMED)
    return timedelta(seconds=seconds)


def _seconds(duration: timedelta | str | None) -> float | None:
    if not isinstance(duration, timedelta) or duration >= _ENDLESS:
        return None
    return duration.total_seconds()

"""What the client for asyncio and the one without it share: how they are made, their receivers, and names."""

from __future__ import annotations

import logging
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from pairmq import Entity, EntityKind, Pair, PairOptions
from pairmq_servicebus.paired._arguments import Sides, entity_path_of
from pairmq_servicebus.paired._receiving import ARGUMENTS, SharedReceiver
from pairmq_servicebus.paired._sending import SHUT_DOWN, Handler, OnReceipt, Opening, OwnHandler, Sending

if TYPE_CHECKING:
    from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential, TokenCredential
    from azure.core.credentials_async import AsyncTokenCredential

Token = TypeVar("Token", "TokenCredential", "AsyncTokenCredential")
"""What gets tokens: azure-core has a type for asyncio and one without it."""

Receiver = TypeVar("Receiver")
PairedSender = TypeVar("PairedSender")
PairedReceiver = TypeVar("PairedReceiver", bound=SharedReceiver[Any])

_log = logging.getLogger("pairmq")


@dataclass(frozen=True)
class Own(Generic[OwnHandler]):
    """The sender of Azure's that belongs to a paired one; made when something is scheduled at the primary itself."""

    entity: str
    namespace: str
    identifier: str
    make: Callable[[], OwnHandler]


class SharedClient(ABC, Generic[Token, Receiver, OwnHandler, PairedSender, PairedReceiver]):
    """A client whose senders fail over; see the two classes that are made of it."""

    _CLIENT: ClassVar[Any]
    """Azure's own class, of which one is made."""

    def __init__(
        self,
        fully_qualified_namespace: str,
        credential: Token | AzureNamedKeyCredential | AzureSasCredential,
        *,
        secondary: str,
        options: PairOptions | None = None,
        on_receipt: OnReceipt | None = None,
        admin_endpoint: str | None = None,
        secondary_admin_endpoint: str | None = None,
        allow_remote_emulator: bool = False,
        **kwargs: Any,
    ) -> None:
        sides = Sides(kwargs, allow_remote_emulator)
        self._start(
            self._CLIENT(fully_qualified_namespace, credential, **kwargs),
            Pair.connect(
                sides.of_credential(fully_qualified_namespace, credential, admin_endpoint),
                sides.secondary(secondary, secondary_admin_endpoint),
                options=options,
            ),
            None,
            on_receipt,
        )

    @classmethod
    def from_connection_string(
        cls,
        conn_str: str,
        *,
        secondary: str,
        options: PairOptions | None = None,
        on_receipt: OnReceipt | None = None,
        admin_endpoint: str | None = None,
        secondary_admin_endpoint: str | None = None,
        allow_remote_emulator: bool = False,
        **kwargs: Any,
    ) -> Self:
        """Make a client of the primary's connection string; other arguments, and errors, are the class's."""
        sides = Sides(kwargs, allow_remote_emulator)
        made = cls.__new__(cls)
        made._start(
            cls._CLIENT.from_connection_string(conn_str, **kwargs),
            Pair.connect(
                sides.of_connection_string(conn_str, admin_endpoint, primary=True),
                sides.secondary(secondary, secondary_admin_endpoint),
                options=options,
            ),
            entity_path_of(conn_str),
            on_receipt,
        )
        return made

    # `from_connection_string` makes an instance without `__init__`, as Azure's does.
    def _start(self, own: Any, pair: Pair, entity_path: str | None, on_receipt: OnReceipt | None) -> None:
        self._own = own
        self._pair = pair
        self._opening = Opening(pair)
        self._entity_path = entity_path
        self._on_receipt = on_receipt

    @abstractmethod
    def _is_closed(self) -> bool: ...

    @abstractmethod
    def _make_sender(self, sending: Sending, own: Own[OwnHandler]) -> PairedSender: ...

    @abstractmethod
    def _make_receiver(self, queue: str, make_own: Callable[[], Receiver], given: Any) -> PairedReceiver: ...

    # What is paired.

    def get_queue_sender(
        self, queue_name: str, *, client_identifier: str | None = None, socket_timeout: float | None = None
    ) -> PairedSender:
        """Make a sender to a queue of the primary; no IO.

        Args:
            queue_name: the queue's path.
            client_identifier: the sender's name; one is made when left out.
            socket_timeout: for what is scheduled at the primary itself; sends have the pair's ``attempt_timeout``.

        Raises:
            ValueError: the name is invalid, or not that of the connection string.
        """
        return self._sender(queue_name, "queue", client_identifier, socket_timeout)

    def get_topic_sender(
        self, topic_name: str, *, client_identifier: str | None = None, socket_timeout: float | None = None
    ) -> PairedSender:
        """Make a sender to a topic of the primary; as `get_queue_sender`."""
        return self._sender(topic_name, "topic", client_identifier, socket_timeout)

    def _check_name(self, name: str, kind: str) -> None:
        if self._is_closed():
            raise ValueError(SHUT_DOWN)
        if self._entity_path is not None and name != self._entity_path:
            raise ValueError(f"the {kind} {name!r} is not the EntityPath of the connection string")

    def _sender(
        self, name: str, kind: str, client_identifier: str | None, socket_timeout: float | None
    ) -> PairedSender:
        self._check_name(name, kind)
        Entity(name, EntityKind(kind))
        identifier = client_identifier or f"SBSender-{uuid.uuid4()}"

        def make_own() -> OwnHandler:
            # It keeps the client alive as long as the sender: a program may hold on to nothing else.
            make = self._own.get_queue_sender if kind == "queue" else self._own.get_topic_sender
            made: OwnHandler = make(name, client_identifier=identifier, socket_timeout=socket_timeout)
            return made

        return self._make_sender(
            Sending(self._pair, self._opening, name, kind),
            Own(name, self.fully_qualified_namespace, identifier, make_own),
        )

    def get_queue_receiver(
        self, queue_name: str, *, session_id: Any = None, sub_queue: Any = None, **kwargs: Any
    ) -> Receiver | PairedReceiver:
        """Make a receiver of a queue; of one with ``continuity`` one that reads its lane on the secondary as well.

        Any other is the client's own, on the primary; so are those of sessions and of dead-letter queues.

        Args:
            queue_name: the queue's path.
            session_id: as for ``ServiceBusClient``.
            sub_queue: likewise.
            kwargs: likewise.

        Raises:
            ValueError: an argument is invalid, the name is not that of the connection string, or the client is closed.
        """

        def make_own() -> Receiver:
            own = {**kwargs, "session_id": session_id, "sub_queue": sub_queue}
            receiver: Receiver = self._own.get_queue_receiver(
                queue_name, **{name: value for name, value in own.items() if value is not None}
            )
            return receiver

        if sub_queue is not None or not self._pair.options.continues(queue_name):
            return make_own()
        if session_id is not None:
            _log.warning("queue %s has continuity, but a receiver of sessions reads the primary only", queue_name)
            return make_own()
        self._check_name(queue_name, "queue")
        unknown = sorted(kwargs.keys() - ARGUMENTS)
        if unknown:
            warnings.warn(f"Unsupported keyword args: {', '.join(unknown)}", stacklevel=2)
        return self._make_receiver(queue_name, make_own, kwargs)

    # What is not.

    def get_subscription_receiver(self, topic_name: str, subscription_name: str, **kwargs: Any) -> Receiver:
        """Make the client's own receiver of a subscription of the primary."""
        receiver: Receiver = self._own.get_subscription_receiver(topic_name, subscription_name, **kwargs)
        return receiver

    @property
    def fully_qualified_namespace(self) -> str:
        """The primary's."""
        namespace: str = self._own.fully_qualified_namespace
        return namespace

    def __getattr__(self, name: str) -> Any:
        # Whatever else the client can do: it is the client's, on the primary.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self._own, name)


class SharedSender(Handler[OwnHandler]):
    """A sender that fails over; see the two classes that are made of it."""

    def __init__(self, sending: Sending, own: Own[OwnHandler], on_receipt: OnReceipt | None) -> None:
        super().__init__(sending, own.identifier, own.namespace, own.make)
        self._sending = sending
        self._on_receipt = on_receipt
        self.entity_name = own.entity

    def __str__(self) -> str:
        return f"Sender client id: {self.client_identifier}, entity: {self.entity_name}"

"""What the client for asyncio and the one without it share: arguments, making, receivers, and names."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import uuid
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Self, TypeAlias, TypeVar
from urllib.parse import quote, urlencode

from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import TransportType

from pairmq import ConfigurationError, Entity, EntityKind, Pair, PairOptions
from pairmq_servicebus._client import ClientSettings
from pairmq_servicebus._transport import ServiceBusTransport
from pairmq_servicebus._url import NamespaceUrl, parse_servicebus_url, read_connection_string
from pairmq_servicebus.paired._receiving import ARGUMENTS, SharedReceiver
from pairmq_servicebus.paired._sending import SHUT_DOWN, Handler, OnReceipt, Opening, OwnHandler, Sending

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential
    from azure.core.credentials_async import AsyncTokenCredential

Credential: TypeAlias = "TokenCredential | AsyncTokenCredential | AzureNamedKeyCredential | AzureSasCredential"

_PASSED_ON: Final = frozenset(("http_proxy", "logging_enable", "user_agent"))
_NETWORK: Final = _PASSED_ON | {"connection_verify", "ssl_context", "transport_type"}
"""What sends need as well as receivers, to either namespace."""

_PRIMARY_ONLY: Final = frozenset(("custom_endpoint_address",))
_RECEIVING_ONLY: Final = frozenset(
    ("retry_backoff_factor", "retry_backoff_max", "retry_mode", "retry_total", "try_timeout", "uamqp_transport")
)
"""Of the retries of sends the pair's own options decide."""

KNOWN: Final = _NETWORK | _PRIMARY_ONLY | _RECEIVING_ONLY

_VARIABLE: Final = "GIVEN"
_CONNECTION_STRING = re.compile(r"\s*(Endpoint|SharedAccess\w+|EntityPath|UseDevelopmentEmulator)\s*=", re.IGNORECASE)


Token = TypeVar("Token", "TokenCredential", "AsyncTokenCredential")
"""What gets tokens: azure-core has a type for asyncio and one without it."""
Receiver = TypeVar("Receiver")
PairedSender = TypeVar("PairedSender")
PairedReceiver = TypeVar("PairedReceiver", bound=SharedReceiver[Any])
_log = logging.getLogger("pairmq")


class Sides:
    """Makes the pair's two transports of the keyword arguments of the client's constructor; no IO."""

    def __init__(self, client_arguments: Mapping[str, Any], allow_remote_emulator: bool) -> None:
        unknown = sorted(set(client_arguments) - KNOWN)
        if unknown:
            raise TypeError(
                f"unknown argument {', '.join(unknown)}: ServiceBusClient's are {', '.join(sorted(KNOWN))}; a pair's "
                "own settings are in options=PairOptions(…)"
            )
        self._given = {name: value for name, value in client_arguments.items() if value is not None}
        self._allow_remote_emulator = allow_remote_emulator

    def of_connection_string(self, text: str, admin: str | None, *, primary: bool) -> ServiceBusTransport:
        """Make the transport of a namespace; ``admin`` is its administration, where that is on another host.

        Raises `ConfigurationError`, which says why it can't work, without secrets.
        """
        if not _CONNECTION_STRING.match(text):
            raise ConfigurationError("the primary is not a connection string: one begins with Endpoint=sb://…")
        emulator = read_connection_string(text, "the connection string").emulator
        query = {"connection-string-env": _VARIABLE, **self._options(admin, tls=not emulator)}
        # As if it stood in an environment variable: every form of a connection string is understood there.
        url = parse_servicebus_url(f"sb://?{urlencode(query)}", {_VARIABLE: text})
        return self._transport(url, None, primary)

    def of_credential(self, namespace: str, credential: Credential, admin: str | None) -> ServiceBusTransport:
        """Make the primary's transport of a key, a signature, or an object that gets tokens, blocking or not."""
        host = re.sub(r"^[a-z]+://", "", namespace.strip()).partition("/")[0]
        if isinstance(credential, AzureNamedKeyCredential):
            name, key = credential.named_key
            return self.of_connection_string(
                f"Endpoint=sb://{host}/;SharedAccessKeyName={name};SharedAccessKey={key}", admin, primary=True
            )
        if isinstance(credential, AzureSasCredential):
            return self.of_connection_string(
                f"Endpoint=sb://{host}/;SharedAccessSignature={credential.signature}", admin, primary=True
            )
        if not callable(getattr(credential, "get_token", None)):
            raise TypeError(
                f"a {type(credential).__name__} is not a credential: give an AzureNamedKeyCredential, "
                "an AzureSasCredential, or an object with get_token"
            )
        query = urlencode({"credential": "default", **self._options(admin, tls=True)})
        url = parse_servicebus_url(f"sb://{quote(host, safe=':[]')}/?{query}")
        return self._transport(url, _as_async(credential), primary=True)

    def secondary(self, given: str, admin: str | None) -> str | ServiceBusTransport:
        """What `Pair.connect` takes for a secondary: the transport of a connection string, or the URL of any broker."""
        if _CONNECTION_STRING.match(given):
            return self.of_connection_string(given, admin, primary=False)
        if admin is not None:
            raise ConfigurationError("secondary_admin_endpoint is for a connection string: a URL has the option admin")
        return given

    def _options(self, admin: str | None, *, tls: bool) -> dict[str, str]:
        options = {} if admin is None else {"admin": admin}
        if self._allow_remote_emulator:
            options["allow-remote-emulator"] = "true"
        if tls and "connection_verify" in self._given:
            options["tls-ca"] = str(self._given["connection_verify"])
        if tls and self._websocket:
            options["transport"] = "websocket"
        return options

    @property
    def _websocket(self) -> bool:
        # A proxy needs one, and a custom endpoint has one by default: the client's own rules.
        default = TransportType.AmqpOverWebsocket if "custom_endpoint_address" in self._given else TransportType.Amqp
        kind = self._given.get("transport_type", default)
        return "http_proxy" in self._given or kind is TransportType.AmqpOverWebsocket

    def _transport(self, url: NamespaceUrl, credential: object, primary: bool) -> ServiceBusTransport:
        names = _PASSED_ON | _PRIMARY_ONLY if primary else _PASSED_ON
        arguments = {name: self._given[name] for name in names if name in self._given}
        return ServiceBusTransport(url, ClientSettings(credential, self._given.get("ssl_context"), arguments))


def entity_path_of(connection_string: str) -> str | None:
    """The one entity that a connection string is for, or None; the settings' names may be in any case."""
    for setting in connection_string.split(";"):
        name, _, value = setting.partition("=")
        if name.strip().lower() == "entitypath":
            return value.strip() or None
    return None


class _InThreads:
    """A blocking credential for the pair, which may not block its event loop."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        token: AccessToken = await asyncio.to_thread(self._credential.get_token, *scopes, **options)
        return token

    async def close(self) -> None:
        """Nothing: the credential belongs to the application."""

    async def __aenter__(self) -> _InThreads:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _as_async(credential: Any) -> Any:
    # The one for asyncio is a context manager for asyncio, whatever its method may be wrapped in.
    ours = inspect.iscoroutinefunction(credential.get_token) or hasattr(credential, "__aenter__")
    return credential if ours else _InThreads(credential)


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

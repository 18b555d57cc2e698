"""The abstract interfaces to a broker, and the values that transports report."""

from pairmq.transport._batches import behind_failed, in_chunks, outcomes_in_order, send_chunks
from pairmq.transport._dial import dial, lookup
from pairmq.transport._forks import keep_from_children
from pairmq.transport._header import MalformedHeader, decode_header, encode_header
from pairmq.transport._naming import (
    ENDPOINT_OPTIONS,
    checked_name,
    chosen_endpoint,
    endpoint_with_default_name,
    is_local_address,
)
from pairmq.transport._scope import AT_ONCE, Arrivals, Endable, Scope, in_turns, start_task
from pairmq.transport._transactional import (
    Claim,
    ClaimStore,
    Inbox,
    OtherDatabase,
    Transactional,
    driver_connection,
    unusable,
)
from pairmq.transport._transport import (
    Admin,
    Receiver,
    Sender,
    SessionReceiver,
    Transport,
    counts_of,
    is_nothing_sent,
    nothing_sent,
    raise_failure,
)
from pairmq.transport._url import LOOPBACK, TLS_OPTIONS, BrokerUrl, TlsOptions, UrlOptions, bracketed
from pairmq.transport._values import (
    Capabilities,
    ConfirmRisk,
    Depth,
    Endpoint,
    QueueCounts,
    QueuePositions,
    QueueProperties,
)
from pairmq.transport._worker import Job, OwnThreads, Worker
from pairmq.transport._wrappers import AdminWrapper, ReceiverWrapper, SenderWrapper, TransportWrapper

__all__ = [
    "AT_ONCE",
    "ENDPOINT_OPTIONS",
    "LOOPBACK",
    "TLS_OPTIONS",
    "Admin",
    "AdminWrapper",
    "Arrivals",
    "BrokerUrl",
    "Capabilities",
    "Claim",
    "ClaimStore",
    "ConfirmRisk",
    "Depth",
    "Endable",
    "Endpoint",
    "Inbox",
    "Job",
    "MalformedHeader",
    "OtherDatabase",
    "OwnThreads",
    "QueueCounts",
    "QueuePositions",
    "QueueProperties",
    "Receiver",
    "ReceiverWrapper",
    "Scope",
    "Sender",
    "SenderWrapper",
    "SessionReceiver",
    "TlsOptions",
    "Transactional",
    "Transport",
    "TransportWrapper",
    "UrlOptions",
    "Worker",
    "behind_failed",
    "bracketed",
    "checked_name",
    "chosen_endpoint",
    "counts_of",
    "decode_header",
    "dial",
    "driver_connection",
    "encode_header",
    "endpoint_with_default_name",
    "in_chunks",
    "in_turns",
    "is_local_address",
    "is_nothing_sent",
    "keep_from_children",
    "lookup",
    "nothing_sent",
    "outcomes_in_order",
    "raise_failure",
    "send_chunks",
    "start_task",
    "unusable",
]

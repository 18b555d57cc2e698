"""Frames of an AMQP 1.0 client, to be sent to the local server and its engine."""

from __future__ import annotations

from typing import Any

from servicebus_local import amqp
from servicebus_local.amqp import frames, performatives
from servicebus_local.amqp.performatives import SENDER, Attach, TransferFrame


def frame(body: Any, channel: int = 0, payload: bytes = b"", kind: int = frames.AMQP_FRAME) -> bytes:
    return frames.write_frame(performatives.write_performative(body) + payload, channel=channel, kind=kind)


def attach(handle: int, role: bool, name: str = "") -> Attach:
    return Attach(
        name or f"link-{handle}-{role}",
        handle,
        role,
        source=amqp.Source("a"),
        target=amqp.Target("b"),
        initial_delivery_count=0 if role is SENDER else None,
    )


def transfer(number: int, *, handle: int = 0, **fields: Any) -> TransferFrame:
    return TransferFrame(handle, number, number.to_bytes(4, "big"), 0, **fields)

"""What all clients share, and the beat in which changes become durable before anybody hears of them."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from servicebus_local.broker import Broker, StoreError
from servicebus_local.faults import FaultPlan
from servicebus_local.front._tokens import Authorizer

_log = logging.getLogger(__name__)

_RETRY = 1.0  # s after which a store that failed is tried again


class Connected(Protocol):
    """A client, as all of them are looked after."""

    def write(self) -> None:
        """Write what there is to say."""

    def close(self) -> None:
        """Say good-bye."""

    def drop(self) -> None:
        """Reset the socket."""

    def check_entities(self) -> None:
        """Detach the links of entities that are gone."""


class Holder(Protocol):
    """A link that holds a session."""

    def check_session(self) -> None:
        """Detach it if the session's lock ran out."""


class Shared:
    """What all clients share.

    What clients ask for in one turn of the event loop is done in the broker at once; at the turn's end the broker makes
    all of it durable in one go, and only then the answers are written.
    """

    def __init__(
        self, broker: Broker, authorizer: Authorizer, faults: FaultPlan, container_id: str, max_message_bytes: int
    ) -> None:
        self.broker = broker
        self.authorizer = authorizer
        self.faults = faults
        self.container_id = container_id
        self.max_message_bytes = max_message_bytes
        self.clients: set[Connected] = set()
        self.holders: set[Holder] = set()
        self._writers: dict[Connected, None] = {}
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None

    def changed(self) -> None:
        """Note that the broker may have changed: it is made durable at the end of this turn."""
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._end_turn)

    def entities_changed(self) -> None:
        """Note that entities were made, changed or deleted: links to what is gone are detached."""
        for client in list(self.clients):
            client.check_entities()
        self.changed()

    def wants_to_write(self, client: Connected) -> None:
        """Let a client write at the end of this turn."""
        self._writers[client] = None
        self.changed()

    def end(self) -> bool:
        """Make everything durable; False if that fails: nothing may be confirmed then."""
        if self._turn is not None:
            self._end_turn()
        return self._turn is None

    def cancel(self) -> None:
        """Let no timer ring any more."""
        for handle in (self._timer, self._turn):
            if handle is not None:
                handle.cancel()

    def _end_turn(self) -> None:
        for holder in list(self.holders):
            holder.check_session()
        try:
            self.broker.flush()
        except StoreError as error:
            # Answers wait until it is durable.
            _log.error("can't write what clients sent, trying again: %s", error)
            self._turn = asyncio.get_running_loop().call_later(_RETRY, self._end_turn)
            return
        self._turn = None
        writers, self._writers = self._writers, {}
        for client in writers:
            client.write()
        self._arm()

    def _arm(self) -> None:
        """Have the broker look at its timers when the next of them is due."""
        due = self.broker.next_deadline()
        if due == self._due and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = None, due
        if due is not None:
            delay = max(0.0, due - time.time())
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.broker.advance()
        self.changed()

"""What operators do to a running broker and what they can see; and faults that need no kill, and their ends."""

from __future__ import annotations

import abc
import json
from collections.abc import Sequence
from typing import Any, Final

from pairmq_rabbitmq.testing._node import binary, string

DEFAULT_VHOST: Final = "/"

# The user in the server's records.
_ACTOR = '<<"pairmq">>'


class Operator(abc.ABC):
    """Commands to a broker, which have taken effect when they return; each raises `ServerError` if it can't be done."""

    _watermark: str | None = None
    """The share of memory that raised no alarm, while one is raised."""

    @abc.abstractmethod
    def erl(self, expression: str, *, timeout: float = 30.0) -> str:
        """Evaluate an expression in the server, and return the value as Erlang writes it. Raises `ServerError`."""

    @abc.abstractmethod
    def _json(self, expression: str) -> Any:
        """The same, for a value that JSON can represent."""

    def add_user(
        self,
        name: str,
        password: str,
        *,
        vhost: str | None = DEFAULT_VHOST,
        configure: str = ".*",
        write: str = ".*",
        read: str = ".*",
        tags: Sequence[str] = (),
    ) -> None:
        """Create a user, with permissions in one virtual host as `set_permissions` gives them; nowhere with None."""
        words = ", ".join(f"binary_to_atom({binary(tag)})" for tag in tags)
        self.erl(
            f"ok = rabbit_auth_backend_internal:add_user({binary(name)}, {binary(password)}, {_ACTOR}),"
            f" rabbit_auth_backend_internal:set_tags({binary(name)}, [{words}], {_ACTOR})"
        )
        if vhost is not None:
            self.set_permissions(name, vhost=vhost, configure=configure, write=write, read=read)

    def change_password(self, name: str, password: str) -> None:
        """Change a user's password; open connections stay."""
        self.erl(f"ok = rabbit_auth_backend_internal:change_password({binary(name)}, {binary(password)}, {_ACTOR})")

    def set_permissions(
        self, name: str, *, vhost: str = DEFAULT_VHOST, configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> None:
        """Set a user's permissions; open channels use the previous ones for a while.

        They are expressions for the names that it may declare and delete, publish to and read from; ``""`` is for none.
        """
        arguments = ", ".join(binary(text) for text in (name, vhost, configure, write, read))
        self.erl(f"ok = rabbit_auth_backend_internal:set_permissions({arguments}, {_ACTOR})")

    def delete_user(self, name: str) -> None:
        """Delete a user, whose connections are closed."""
        self.erl(f"ok = rabbit_auth_backend_internal:delete_user({binary(name)}, {_ACTOR})")

    def add_vhost(self, name: str, *, user: str = "guest") -> None:
        """Create a virtual host in which one user may do everything."""
        self.erl(f"false = rabbit_vhost:exists({binary(name)}), rabbit_vhost:add({binary(name)}, {_ACTOR})")
        self.set_permissions(user, vhost=name)

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host and everything in it; its connections are closed."""
        self.erl(f"ok = rabbit_vhost:delete({binary(name)}, {_ACTOR})")

    def delete_queue(self, name: str, *, vhost: str = DEFAULT_VHOST) -> None:
        self.erl(
            f"{{ok, Queue}} = rabbit_amqqueue:lookup(rabbit_misc:r({binary(vhost)}, queue, {binary(name)})),"
            f" {{ok, _}} = rabbit_amqqueue:delete(Queue, false, false, {_ACTOR})"
        )

    def set_policy(self, name: str, pattern: str, definition: dict[str, Any]) -> None:
        """Set a policy for the queues whose names fit the pattern; its definition is such as ``{"max-length": 3,
        "overflow": "reject-publish"}``."""
        self.erl(
            f"ok = rabbit_policy:set({binary(DEFAULT_VHOST)}, {binary(name)}, {binary(pattern)},"
            f' maps:to_list(rabbit_json:decode({binary(json.dumps(definition))})), 0, <<"queues">>, {_ACTOR})'
        )

    def queues(self, vhost: str = DEFAULT_VHOST) -> dict[str, tuple[int, int]]:
        """Count the messages, asking each queue now: name to (ready, delivered and not acknowledged)."""
        found = self._json(
            f"true = rabbit_vhost:exists({binary(vhost)}),"
            " Overview = fun Ask(Id, Left) -> case"
            " try ra:leader_query(Id, fun rabbit_fifo:overview/1, 60000)"
            # From 4.3 on it accepts a function by its name only.
            " catch error:function_clause -> ra:leader_query(Id, {rabbit_fifo, overview, []}, 60000) end"
            " of {ok, {_, O}, _} -> O;"
            # A new queue has no process yet, or an older state until its leader has begun.
            " {error, _} when Left > 0 -> timer:sleep(50), Ask(Id, Left - 1) end end,"
            " [begin [R, U] = case amqqueue:get_type(Q) of"
            # What the server itself reports about a quorum queue is some seconds old: its leader knows.
            " rabbit_quorum_queue -> O = Overview(amqqueue:get_pid(Q), 100),"
            " [maps:get(K, O) || K <- [num_ready_messages, num_checked_out]];"
            " _ -> [N || {_, N} <- rabbit_amqqueue:info(Q, [messages_ready, messages_unacknowledged])] end,"
            " [element(4, element(2, Q)), R, U] end"
            f" || Q <- rabbit_amqqueue:list({binary(vhost)})]"
        )
        return {name: (ready, unacknowledged) for name, ready, unacknowledged in found}

    def connections(self) -> int:
        return int(self.erl("length(rabbit_networking:connections())"))

    # Faults, while the server's process stays.

    def go_down(self) -> None:
        """Stop the broker in 0.1 s but keep its virtual machine: clients are disconnected, new ones refused."""
        self.erl("rabbit:stop()", timeout=60)

    def come_up(self) -> None:
        """Start the broker again after `go_down`, in 0.6 s; without effect when it is running."""
        self._watermark = None  # starting sets it anew
        self.erl("rabbit:start(), true = rabbit:is_running()", timeout=60)

    def block(self) -> None:
        """Raise the memory alarm: connections that publish are not read any more, until `unblock`."""
        if self._watermark is None:
            self._watermark = self.erl("vm_memory_monitor:get_vm_memory_high_watermark()")
        # Asking for the alarms waits until this one has been sent to the connections.
        self._set_watermark(
            "0.0", "true = lists:keymember({resource_limit, memory, node()}, 1, rabbit_alarm:get_alarms())"
        )

    def unblock(self) -> None:
        """End the memory alarm; without effect when `block` was not called."""
        if self._watermark is not None:
            self._set_watermark(
                self._watermark,
                "false = lists:keymember({resource_limit, memory, node()}, 1, rabbit_alarm:get_alarms())",
            )
            self._watermark = None

    def refuse_clients(self) -> None:
        """Refuse new connections and keep those that are open, until `accept_clients`."""
        self.erl("rabbit_maintenance:suspend_all_client_listeners()")

    def accept_clients(self) -> None:
        """Accept new connections again after `refuse_clients`."""
        self.erl("rabbit_maintenance:resume_all_client_listeners()")

    def drop_clients(self, reason: str = "dropped by a test") -> None:
        """Close all connections in order, as an operator does (reply code 320); new ones are accepted."""
        self.erl(f"rabbit_networking:close_all_connections({string(reason)})")

    def _set_watermark(self, value: str, check: str) -> None:
        self.erl(f"vm_memory_monitor:set_vm_memory_high_watermark({value}), {check}")

"""Faults of a running broker that take no kill, and their ends."""

from __future__ import annotations

from pairmq_rabbitmq.testing._erlang import Evaluator, string


class Faults(Evaluator):
    """What can go wrong with a broker while its process stays."""

    _watermark: str | None = None
    """The share of memory that raised no alarm, while one is raised."""

    def go_down(self) -> None:
        """Take the broker away in 0.1 s and leave its virtual machine: clients are cut off, new ones refused.

        Raises:
            ServerError: it does not run or does not answer.
        """
        self.erl("rabbit:stop()", timeout=60)

    def come_up(self) -> None:
        """Bring the broker back after `go_down`, in 0.6 s; without effect when it is there.

        Raises:
            ServerError: it does not run, or the broker does not start.
        """
        self._watermark = None  # starting sets it anew
        self.erl("rabbit:start(), true = rabbit:is_running()", timeout=60)

    def block(self) -> None:
        """Raise the memory alarm: connections that publish are not read any more, until `unblock`.

        Raises:
            ServerError: it does not run or does not answer.
        """
        if self._watermark is None:
            self._watermark = self.erl("vm_memory_monitor:get_vm_memory_high_watermark()")
        # Asking for the alarms waits until this one has been told to the connections.
        self._set_watermark(
            "0.0", "true = lists:keymember({resource_limit, memory, node()}, 1, rabbit_alarm:get_alarms())"
        )

    def unblock(self) -> None:
        """End the memory alarm; without effect when `block` was not called.

        Raises:
            ServerError: it does not run or does not answer.
        """
        if self._watermark is not None:
            self._set_watermark(
                self._watermark,
                "false = lists:keymember({resource_limit, memory, node()}, 1, rabbit_alarm:get_alarms())",
            )
            self._watermark = None

    def refuse_clients(self) -> None:
        """Refuse new connections and keep those that are open, until `accept_clients`.

        Raises:
            ServerError: it does not run or does not answer.
        """
        self.erl("rabbit_maintenance:suspend_all_client_listeners()")

    def accept_clients(self) -> None:
        """Take new connections again after `refuse_clients`.

        Raises:
            ServerError: it does not run or does not answer.
        """
        self.erl("rabbit_maintenance:resume_all_client_listeners()")

    def drop_clients(self, reason: str = "dropped by a test") -> None:
        """Close all connections in order, as an operator does (reply code 320); new ones are taken.

        Args:
            reason: what the clients are told.

        Raises:
            ServerError: it does not run or does not answer.
        """
        self.erl(f"rabbit_networking:close_all_connections({string(reason)})")

    def _set_watermark(self, value: str, check: str) -> None:
        self.erl(f"vm_memory_monitor:set_vm_memory_high_watermark({value}), {check}")

"""A rule-based state machine that puts your own code through failovers, in virtual time.

    class ShopUnderFailover(FailoverMachine):
        entities = ("orders",)

        async def process_started(self):
            self.shop = Shop(self.pair)

        @rule(number=st.integers())
        def orders(self, number):
            if self.run(self.shop.order(number)): # reported to the customer as done
                self.promise("orders", b"%d" % number)

    TestShopUnderFailover = ShopUnderFailover.TestCase

Hypothesis mixes your rules with the machine's own (brokers stop, hang and recover, confirmations are lost, time passes,
the process is restarted or killed, operators interfere) and cuts a failure down to the few steps that it needs.
"""

try:
    import hypothesis as _hypothesis  # noqa: F401  # only to say clearly what is missing
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "the state machine needs hypothesis: install it with: pip install 'pairmq[testing]'", name="hypothesis"
    ) from None

from pairmq.testing.machine._machine import TROUBLES, FailoverMachine
from pairmq.testing.machine._world import BrokenPromise

__all__ = ["TROUBLES", "BrokenPromise", "FailoverMachine"]

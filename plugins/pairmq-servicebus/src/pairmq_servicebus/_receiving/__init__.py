"""Reading under peek-lock: a queue or subscription, the dead-letter queue of either, or one session.

A `BusReceiver` has one link at a time, opened as its source wants it, and a lane for it. A `Receive` fetches messages
over the link, the `Shelf` keeps what was handed out until it is settled, and settling goes by the same lane.
"""

from pairmq_servicebus._receiving._link import ReceiveLink
from pairmq_servicebus._receiving._opening import open_receive_link
from pairmq_servicebus._receiving._receiver import BusReceiver
from pairmq_servicebus._receiving._sessions import accept_session
from pairmq_servicebus._receiving._shelf import delivery_of

__all__ = ["BusReceiver", "ReceiveLink", "accept_session", "delivery_of", "open_receive_link"]

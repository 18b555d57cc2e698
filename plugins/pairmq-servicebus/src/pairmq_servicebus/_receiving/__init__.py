"""Reading under peek-lock: a queue or subscription, the dead-letter queue of either, or one session.

A `BusReceiver` has one link at a time, opened as its source wants it, and a lane for it. A `Receive` fetches messages
over the link, the `Shelf` keeps what was handed out until it is settled, and settling goes by the same lane.
"""

from pairmq_servicebus._receiving._link import ReceiveLink, open_receive_link
from pairmq_servicebus._receiving._receiver import BusReceiver, accept_session
from pairmq_servicebus._receiving._settling import delivery_of

__all__ = ["BusReceiver", "ReceiveLink", "accept_session", "delivery_of", "open_receive_link"]

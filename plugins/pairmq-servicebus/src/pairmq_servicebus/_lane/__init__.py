"""One link, and a task that makes its calls one after the other.

The client's links are not made for concurrent calls: sends mix up their answers, and settlements that wait for each
other's reads take a fifth of a second each. So every link has one lane. Its task opens the link when there is a job for
it, and nobody else waits for the client: a caller that stops waiting gets control back at once. A job that nobody
waits for any more is cut off, and its link, now in doubt, is dropped; the next job opens another one.
"""

from pairmq_servicebus._lane._job import Job, OpenLink
from pairmq_servicebus._lane._lane import Lane
from pairmq_servicebus._lane._lanes import Lanes

__all__ = ["Job", "Lane", "Lanes", "OpenLink"]

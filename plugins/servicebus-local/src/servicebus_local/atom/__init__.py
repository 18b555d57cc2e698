"""The administration of a namespace, as the service offers it: Atom entries over HTTP.

Authorization rules of entities are accepted and not kept: a local server has the keys that it was started with.
"""

from servicebus_local.atom._app import Administration, Control

__all__ = ["Administration", "Control"]

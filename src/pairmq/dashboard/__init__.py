"""A page to look at a pair, and to hold, fail over and mark its entities; needs ``pairmq[dashboard]``."""

try:
    import starlette  # noqa: F401  # only whether they are there
    import uvicorn  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"the dashboard needs more packages: pip install 'pairmq[dashboard]' ({error})", name=error.name
    ) from None

from pairmq.dashboard._app import Dashboard
from pairmq.dashboard._looks import Brokers
from pairmq.dashboard._server import Address, is_loopback, serve, serving

__all__ = ["Address", "Brokers", "Dashboard", "is_loopback", "serve", "serving"]

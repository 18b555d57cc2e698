"""``pairmq servicebus-server``: the local server of the distribution ``servicebus-local``, with a URL for PairMQ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import typer

from pairmq.model import PairMQError

if TYPE_CHECKING:
    from servicebus_local.command import Announcement

KEY_VARIABLE = "PAIRMQ_SERVICEBUS_KEY"
"""The environment variable that holds the key: arguments can be read by other users of a machine."""

app = typer.Typer(name="servicebus-server", pretty_exceptions_enable=False, add_completion=False)


@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def servicebus_server(context: typer.Context) -> int:
    """Run a local server with the protocols of Azure Service Bus: the options are those of ``servicebus-local``."""
    try:
        from servicebus_local.command import run
    except ModuleNotFoundError as error:
        raise PairMQError(f"the server needs {error.name}: pip install 'pairmq-servicebus[server]'") from None
    prog = context.command_path
    return run(context.args, prog=prog, key_variable=KEY_VARIABLE, announcement=_announcement())


def _announcement() -> type[Announcement]:
    from servicebus_local.command import Announcement

    class WithUrl(Announcement):
        @property
        def url(self) -> str:
            """Over TLS if the server has it for both ports and made the certificate itself."""
            port, options = self.port, {"emulator": "true", "admin": f"http://{self.name}:{self.admin_port}"}
            if self.ca_file is not None and self.tls_port is not None and self.admin_tls_port is not None:
                port = self.tls_port
                options = {"tls-ca": str(self.ca_file), "admin": f"https://{self.name}:{self.admin_tls_port}"}
            login = f"{quote(self.key_name, safe='')}:{quote(self.key, safe='')}"
            return f"sb://{login}@{self.name}:{port}/?{urlencode(options, safe=':/[]')}"

        def as_json(self) -> dict[str, Any]:
            return {**super().as_json(), "url": self.url}

        def lines(self) -> list[str]:
            first, second, *rest = super().lines()
            return [first, second, f"for PairMQ: {self.url}", *rest]

    return WithUrl

"""``pairmq postgres migrate``: makes the tables, or prints the SQL that does."""

from __future__ import annotations

import sys
from typing import Annotated

import psycopg
import typer

from pairmq.model import ConfigurationError
from pairmq_postgres import _errors
from pairmq_postgres._errors import NotSent, SchemaVersion
from pairmq_postgres._schema import VERSION, migrate, script
from pairmq_postgres._url import parse_url

URL_VARIABLE = "PAIRMQ_POSTGRES_URL"
"""The environment variable that holds the URL: arguments can be read by other users of a machine."""

app = typer.Typer(name="postgres", pretty_exceptions_enable=False, add_completion=False)


@app.callback()
def postgres() -> None:
    """Prepare a PostgreSQL database for queues."""


@app.command(name="migrate")
def migrate_command(
    url: Annotated[
        str, typer.Argument(envvar=URL_VARIABLE, help="The database, with a role that may create a schema.")
    ] = "",
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL for a database administrator; connect nowhere.")] = (
        False
    ),
    since: Annotated[
        int, typer.Option("--since", min=0, max=VERSION, help="With --sql: the version that the tables have.")
    ] = 0,
) -> int:
    """Make PairMQ's tables in a database, or bring those of an earlier version up to date.

    Exit status: 0 when the database has the tables of this version, 1 when not, 2 for a wrong URL.
    """
    if sql:
        typer.echo(script(since), nl=False)
        return 0
    if not url:
        return _failed(f"no URL: give one, or set {URL_VARIABLE}", 2)
    try:
        parsed = parse_url(url)
    except ConfigurationError as error:
        return _failed(str(error), 2)
    try:
        before, after = migrate(parsed.parameters())
    except SchemaVersion:
        return _failed(f"{parsed.endpoint}: its tables are of a later version: upgrade pairmq-postgres", 1)
    except psycopg.Error as error:
        # Nothing is in doubt here, and an error without an SQLSTATE is one of connecting.
        failure = _errors.failure(error if error.sqlstate else NotSent(error), f"migrate {parsed.endpoint}")
        return _failed(str(failure), 1)
    done = f"version {after} already" if before == after else f"from version {before} to {after}"
    typer.echo(f"{parsed.endpoint}: {done}")
    return 0


def _failed(text: str, status: int) -> int:
    typer.echo(f"error: {text}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(app(standalone_mode=False))

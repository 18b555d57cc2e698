"""The command line in this process: ``run(["status", …])`` gives its exit status; `pairmq.cli.main` would exit."""

from pairmq.cli._app import app, run

__all__ = ["app", "run"]

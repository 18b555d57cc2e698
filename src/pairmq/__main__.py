"""``python -m pairmq`` is the command ``pairmq``."""

from pairmq.cli import main

main()

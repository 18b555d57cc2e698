"""``python -m pairmq.cli`` is the command ``pairmq``."""

from pairmq.cli import main

main()

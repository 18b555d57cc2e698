"""``python -m pairmq_servicebus.server`` is the command ``pairmq servicebus-server``."""

from pairmq_servicebus.server.command import main

if __name__ == "__main__":
    main()

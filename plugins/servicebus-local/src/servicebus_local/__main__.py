"""``python -m servicebus_local`` is the command ``servicebus-local``."""

from servicebus_local.command import main

if __name__ == "__main__":
    main()

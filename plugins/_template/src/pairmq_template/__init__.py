"""The template for transports of your own: queues in one SQLite file; `transport` holds all of it."""

"""SQLite for PairMQ: ``sqlite:///absolute/path/to/file.db``. Also the template for transports of your own."""

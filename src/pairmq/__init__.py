"""PairMQ: what happens to your messages when the broker goes away."""

"""Two brokers, and what the line on the page is made of."""

from pairmq import Pair, PairOptions

primary, secondary = "redis://127.0.0.1:6379/0", "redis://127.0.0.1:6380/0"

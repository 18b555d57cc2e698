"""The one error of decoding."""


class MalformedMessage(ValueError):
    """A message that PairMQ can't represent as it is; the text says why in a sentence."""

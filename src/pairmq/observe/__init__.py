"""Observers that come with PairMQ."""

from pairmq.observe._log import LogObserver

__all__ = ["LogObserver"]

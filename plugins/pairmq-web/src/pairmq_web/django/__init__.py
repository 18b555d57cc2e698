"""The pair of a Django project: ``INSTALLED_APPS`` takes ``pairmq_web.django``, and `get_pair` gives the pair."""

from pairmq_web.django._pair import close_pair, get_pair

__all__ = ["close_pair", "get_pair"]

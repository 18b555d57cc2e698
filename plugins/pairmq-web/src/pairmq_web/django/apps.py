"""What Django loads for ``pairmq_web.django`` in ``INSTALLED_APPS``."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, register
from django.core.signals import setting_changed

from pairmq import ConfigurationError
from pairmq_web.django._pair import close_pair, given_settings


class PairMQConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """Checks the settings, and heeds tests that override them."""

    name = "pairmq_web.django"
    label = "pairmq"
    verbose_name = "PairMQ"

    def ready(self) -> None:
        """Register the check of ``manage.py check``, without connecting to anything."""
        register(_check)
        setting_changed.connect(_changed, dispatch_uid="pairmq")


def _check(**kwargs: Any) -> list[CheckMessage]:
    try:
        given_settings()
    except ConfigurationError as error:
        return [Error(str(error), id="pairmq.E001")]
    return []


def _changed(*, setting: str, **kwargs: Any) -> None:
    if setting == "PAIRMQ":
        close_pair()

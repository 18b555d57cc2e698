"""The worker's step that hosts the syphon, as far as no worker is needed for it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import Celery

from pairmq import ConfigurationError
from pairmq_kombu.worker import Syphon


def test_a_worker_without_a_pair_gets_an_error() -> None:
    application = Celery("tests", broker="memory://", set_as_current=False)
    worker = SimpleNamespace(app=application)
    with pytest.raises(ConfigurationError, match="pairmq://"):
        Syphon(worker).start(worker)

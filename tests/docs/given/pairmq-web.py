"""A program of Django's, whose settings are those of the page."""

from django.conf import settings

from pairmq import Entity
from pairmq.sync import Pair

urls = {"PRIMARY": "amqp://guest:guest@127.0.0.1:5672/", "SECONDARY": "redis://127.0.0.1:6379/0"}
settings.configure(INSTALLED_APPS=["pairmq_web.django"], PAIRMQ={**urls, "READY": ["orders"]})

with Pair.connect(urls["PRIMARY"], urls["SECONDARY"]) as preparing:
    preparing.primary.admin.create(Entity("orders"))

"""A Django project, in one file, that writes an order and sends a message about it in one transaction.

export PAIRMQ_PRIMARY=amqp://guest:guest@127.0.0.1:5672/ PAIRMQ_SECONDARY=postgresql://shop:secret@127.0.0.1/shop
python outbox_django.py runserver --noreload 8000
"""

import os
import sys

from django.conf import settings
from psycopg.conninfo import conninfo_to_dict

shop = conninfo_to_dict(os.environ["PAIRMQ_SECONDARY"])
settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": shop["dbname"],
            "USER": shop["user"],
            "PASSWORD": shop["password"],
            "HOST": shop["host"],
            "PORT": shop.get("port", 5432),
        }
    },
    INSTALLED_APPS=["pairmq_web.django"],
    PAIRMQ={},  # the brokers, and all options, from PAIRMQ_* variables
    ROOT_URLCONF=__name__,
    USE_TZ=True,
)

from django.core.management import execute_from_command_line  # noqa: E402  # Django has to have its settings first
from django.core.wsgi import get_wsgi_application  # noqa: E402

application = get_wsgi_application()  # for Gunicorn and uWSGI

from django.db import IntegrityError, connection, models, transaction  # noqa: E402
from django.http import HttpRequest, HttpResponse  # noqa: E402
from django.urls import path  # noqa: E402
from django.views.decorators.http import require_POST  # noqa: E402

from pairmq import Message  # noqa: E402
from pairmq_web.django import get_pair  # noqa: E402


class Order(models.Model):
    """One order."""

    number = models.IntegerField(primary_key=True)

    class Meta:
        app_label = "shop"
        db_table = "orders"


@require_POST
def place(request: HttpRequest, number: int) -> HttpResponse:
    try:
        with transaction.atomic():
            Order.objects.create(number=number)
            receipt = get_pair().outbox("orders").send(Message(str(number).encode()), connection=connection)
    except IntegrityError:
        return HttpResponse("there is such an order, and no message was sent", status=409)
    return HttpResponse(receipt.route.value, status=201)


urlpatterns = [path("orders/<int:number>", place)]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)

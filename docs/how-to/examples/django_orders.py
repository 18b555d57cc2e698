"""A Django project, in one file, that takes orders, also while RabbitMQ is unavailable.

export PAIRMQ_PRIMARY=amqp://guest:guest@127.0.0.1:5672/ PAIRMQ_SECONDARY=redis://127.0.0.1:6379/0
python django_orders.py runserver --noreload 8000
"""

import sys

from django.conf import settings

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    INSTALLED_APPS=["pairmq_web.django"],
    PAIRMQ={"READY": ["orders"]},  # the brokers, and all options, from PAIRMQ_* variables
    ROOT_URLCONF=__name__,
    USE_TZ=True,
)

from django.core.management import execute_from_command_line  # noqa: E402  # Django has to have its settings first
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.http import HttpRequest, HttpResponse  # noqa: E402
from django.urls import path  # noqa: E402
from django.views.decorators.http import require_POST  # noqa: E402

from pairmq import Message, SendError  # noqa: E402
from pairmq_web.django import get_pair  # noqa: E402
from pairmq_web.django.views import ready  # noqa: E402


@require_POST
def place(request: HttpRequest, number: int) -> HttpResponse:
    try:
        receipt = get_pair().sender("orders").send(Message(str(number).encode()), timeout=10)
    except SendError as error:
        return HttpResponse(str(error), status=503)
    return HttpResponse(receipt.route.value, status=202)


urlpatterns = [path("orders/<int:number>", place), path("ready", ready)]
application = get_wsgi_application()  # for Gunicorn and uWSGI

if __name__ == "__main__":
    execute_from_command_line(sys.argv)

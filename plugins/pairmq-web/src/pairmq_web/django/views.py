"""The readiness check of a Django project."""

from __future__ import annotations

from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from pairmq import PairMQError
from pairmq_web.asgi import NO_CACHE, answer
from pairmq_web.django._pair import get_pair, given_settings


@require_safe  # type: ignore[untyped-decorator]  # Django has no types
def ready(request: HttpRequest) -> JsonResponse:
    """Answer GET and HEAD with 200 when messages move, 503 with the reasons when they don't.

    Asks for the entities in ``settings.PAIRMQ["READY"]``; without any, for those that this process has used.
    """
    try:
        status, found = answer(get_pair().check(*given_settings().get("READY", ())))
    except PairMQError as error:
        status, found = answer(error)
    return JsonResponse(found, status=status, headers=NO_CACHE)

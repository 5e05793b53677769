"""The shop's pages."""

from functools import partial

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from rota.integrations.django import app
from shop.jobs import ship
from shop.models import Order


def enqueue_ship(number: int) -> None:
    app.wait(ship.using(key=f"order-{number}").enqueue(number), timeout=10)


@csrf_exempt
@require_POST
@transaction.atomic
def place_order(request: HttpRequest) -> JsonResponse:
    order = Order.objects.create(item=request.POST["item"])
    transaction.on_commit(partial(enqueue_ship, order.pk))
    return JsonResponse({"order": order.pk}, status=202)


def show_order(request: HttpRequest, number: int) -> JsonResponse:
    order = get_object_or_404(Order, pk=number)
    return JsonResponse({"order": order.pk, "item": order.item, "shipped": order.shipped})

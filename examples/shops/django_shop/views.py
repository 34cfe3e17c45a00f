import json
import os

import httpx
from django import forms
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import transaction
from django.http import JsonResponse
from django.urls import path
from django.views.decorators.http import require_http_methods, require_POST

from django_shop.keys import LEASE, ORDERS, VOUCHERS, guard
from django_shop.models import Order, Payment
from samekey import current
from samekey.clients.httpx import KeyTransport
from samekey.http import rules
from samekey.http.django import guarded

PROVIDER = os.environ["SHOP_PROVIDER"]
calling = {"base_url": PROVIDER, "timeout": LEASE * 0.8, "headers": {"Shop-Worker": str(os.getpid())}}
cards = httpx.Client(transport=KeyTransport(hosts={httpx.URL(PROVIDER).host}), **calling)
vouchers = httpx.Client(**calling)  # their issuer knows no keys: sent once


class NewOrder(forms.Form):
    item = forms.RegexField(r"^[\w -]+\Z", max_length=40)


class Bill(forms.Form):
    order = forms.RegexField(r"^[\w -]+\Z", max_length=40)
    amount = forms.IntegerField(min_value=1, max_value=2**31 - 1)


def checked(form, request):
    """The fields of a JSON body; 400 if they are not what the form wants. Nothing happened: the key is free again."""
    try:
        form = form(dict(json.loads(request.body)))
    except (ValueError, TypeError, RecursionError) as error:
        raise BadRequest("not a JSON object") from error
    if not form.is_valid():
        raise BadRequest(form.errors.as_text())
    return form.cleaned_data


def body_of(answer):
    """What the provider answered."""
    if answer.status_code == 402:
        current().release()  # declined, and the provider says so: nothing happened, the key is free again
        raise PermissionDenied("declined")
    return answer.raise_for_status().json()


@require_http_methods(["GET", "POST"])
@rules(None)  # guarded below, inside the transaction
def orders(request):
    if request.method == "POST":
        return place(request)
    if not request.user.is_authenticated:
        return JsonResponse({"detail": "who are you?"}, status=401)
    mine = Order.objects.filter(customer=request.user.get_username()).order_by("id")
    return JsonResponse([order.item for order in mine], safe=False)


@transaction.atomic
@guarded(guard, ORDERS)
def place(request):
    """Order and key commit together: exactly one row."""
    order = Order.objects.create(customer=current().tenant, **checked(NewOrder, request))
    return JsonResponse({"order": order.pk}, status=201)


@require_POST
def charge(request):
    bill = checked(Bill, request)
    paid = body_of(cards.post("/charges", json=bill))  # under the hold's own key
    Payment.objects.update_or_create(id=paid["id"], defaults={"customer": current().tenant, **bill})  # maybe again
    return JsonResponse({"charge": paid["id"], "amount": paid["amount"]}, status=201)


@require_POST
@rules(VOUCHERS)
def redeem(request):
    return JsonResponse(body_of(vouchers.post("/vouchers", json=checked(Bill, request))), status=201)


urlpatterns = [path("orders", orders), path("charges", charge), path("vouchers", redeem)]

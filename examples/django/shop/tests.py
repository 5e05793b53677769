"""The shop's tests: `manage.py test`. A job that is called is its function, here and now."""

from django.test import TestCase

from shop.jobs import ship
from shop.models import Order


class Shipping(TestCase):
    def test_an_order_is_shipped(self) -> None:
        order = Order.objects.create(item="tea")
        assert ship(order.pk) == "shipped tea"
        order.refresh_from_db()
        assert order.shipped

    def test_a_placed_order_is_enqueued_after_the_commit(self) -> None:
        with self.captureOnCommitCallbacks() as callbacks:
            answer = self.client.post("/orders", {"item": "tea"})
        assert answer.status_code == 202
        assert len(callbacks) == 1

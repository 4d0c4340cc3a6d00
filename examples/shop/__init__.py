"""A shop: orders that follow payments, which call a provider, and a web app in front.

The components are ``shop:orders`` and ``shop:payments``, the web app is ``shop.web:app``, and
``python -m shop.provider`` runs a payment provider to try them with.
"""

from shop.orders import orders
from shop.payments import payments

__all__ = ["orders", "payments"]

"""The messages of the shop: those of orders, and those of payments."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A customer orders an item."""

    order_id: str
    customer_id: str
    item: str


@dataclass(frozen=True)
class Placed:
    order_id: str
    customer_id: str
    item: str
    cents: int


@dataclass(frozen=True)
class CancelUnpaid:
    """Cancel the order if it is not paid by now."""

    order_id: str


@dataclass(frozen=True)
class Paid:
    order_id: str
    receipt: str


@dataclass(frozen=True)
class Cancelled:
    order_id: str
    reason: str


@dataclass(frozen=True)
class Capture:
    """Take the money for an order; an order is paid once, so its id is the payment's."""

    payment_id: str
    order_id: str
    customer_id: str
    cents: int


@dataclass(frozen=True)
class Captured:
    payment_id: str
    order_id: str
    cents: int
    receipt: str


@dataclass(frozen=True)
class Declined:
    payment_id: str
    order_id: str
    reason: str


@dataclass(frozen=True)
class Refund:
    """Give the money of a payment back."""

    refund_id: str
    payment_id: str
    cents: int


@dataclass(frozen=True)
class Refunded:
    refund_id: str
    payment_id: str
    cents: int
    receipt: str

"""Payments: each booking is paid once, with a receipt in the hotel's own tables."""

from hotel.messages import Paid, Pay
from hotel.tables import Receipt
from reservation import Component, Context

payments = Component("payment", id="booking_id")


@payments.handle(Pay, key="booking_id")
def pay(command: Pay, entity: None, context: Context) -> Paid:
    """Write the receipt; its primary key would refuse a second one."""
    with context.session() as session:
        receipt = Receipt(booking_id=command.booking_id, cents=command.cents)
        session.add(receipt)
        session.flush()
        number = receipt.number
    return context.follow(command, Paid, receipt=f"receipt {number}")

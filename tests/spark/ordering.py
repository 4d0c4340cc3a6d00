"""A component that follows payments, and a store with messages that it followed, or did not."""

import json
import uuid
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from reservation import Component
from reservation.messages.message import followed_id, further_id
from tests.support.stored_positions import store_position


@dataclass
class Captured:
    """Was `Taken`."""

    payment_id: str
    order_id: str


@dataclass
class Refunded:
    reference: str


@dataclass
class Failed:
    order_id: str


@dataclass
class Paid:
    order_id: str


# Where the handler of failures begins.
FIRST_FAILURE = 10

orders = Component("order", id="order_id")
orders.message(Captured, former_names="Taken")


@orders.handle(Captured, category="payment")
def captured(message: Captured, entity: None, context: Any) -> Paid:
    return Paid(message.order_id)


@orders.handle(Failed, category="payment", from_position=FIRST_FAILURE, correlated=True)
def failed(message: Failed, entity: None, context: Any) -> None:
    return None


@orders.handle(Refunded, category="refund:command", id=lambda message: message.reference[3:])
def refunded(message: Refunded, entity: None, context: Any) -> None:
    return None


orders.message(Paid)


class Ordering:
    """Writes the messages of payments, and what becomes of them, at places that it chooses."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self._ids: dict[int, str] = {}
        self._places: dict[str, int] = {}

    def write(
        self,
        at: int,
        stream_name: str,
        type_: str,
        data: dict[str, Any],
        *,
        id_: uuid.UUID | None = None,
        **metadata: Any,
    ) -> int:
        """Write a message at a global position; return it."""
        position = self._places[stream_name] = self._places.get(stream_name, -1) + 1
        self._ids[at] = str(id_ or uuid.uuid4())
        self._connection.execute(
            "INSERT INTO message_store.messages (global_position, stream_name, position, type, "
            "data, metadata, id) VALUES (%s, %s, %s, %s, %s, %s, %s)",
            [
                at,
                stream_name,
                position,
                type_,
                json.dumps(data),
                json.dumps(metadata),
                self._ids[at],
            ],
        )
        return at

    def captured(self, at: int, order: str = "1", type_: str = "Captured", **metadata: Any) -> int:
        """Write that a payment was captured."""
        data = {"paymentId": "1", "orderId": order}
        return self.write(at, "payment-1", type_, data, **metadata)

    def paid(
        self, at: int, cause: int, order: str = "1", *, ordinal: int | None = 0, via: str = ""
    ) -> int:
        """Write that an order is paid, which follows from a message."""
        stream, id_ = f"order-{order}", None
        if ordinal is not None:
            id_ = followed_id(self._ids[cause], stream, ordinal)
            if via:
                id_ = further_id(self._ids[cause], f"order-{via}", stream, ordinal)
        return self.write(
            at,
            stream,
            "Paid",
            {"orderId": order},
            id_=id_,
            causationMessageGlobalPosition=cause,
        )

    def passed(self, *positions: int, category: str = "payment", reason: str = "nothing") -> None:
        """Record that messages were handled, and nothing followed from them."""
        for at in positions:
            self._connection.execute(
                "INSERT INTO reservation.passes (consumer, category, global_position, message_id, "
                "reason) VALUES ('order', %s, %s, %s, %s)",
                [category, at, self._ids[at], reason],
            )

    def consumer(self, position: int, *dead: int, category: str = "payment") -> None:
        """Say how far the consumer is, and which messages are dead letters."""
        store_position(self._connection, "order", category, position)
        for at in dead:
            self._connection.execute(
                "INSERT INTO reservation.dead_letters (consumer, category, global_position, "
                "message_id, stream_name, type, state, reason, process) "
                "SELECT 'order', %s, global_position, id, m.stream_name, m.type, 'dead', "
                "'handler', 'p' FROM message_store.messages m WHERE m.global_position = %s",
                [category, at],
            )

"""Runs in which an entity has letters in partitions of two holders, and people decide on them."""

import random
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from consumers.dead_letters import administration
from consumers.dead_letters.letter import LetterError, Selection
from reservation import Component, MessageStore, RetryLater
from reservation.postgres.connection import connect
from tests.apps.orders import PAYMENTS, Captured, Order, Paid, capture
from tests.support.consuming import running
from tests.support.liveness import stuck
from tests.support.started import PATIENCE

if TYPE_CHECKING:
    from tests.soak.chaos.stores import Stores

ORDERS = ["o1", "o2", "o3"]

# So that transactions with letters commit at the same time.
_SLOW_COMMITS = """
    CREATE FUNCTION public.commit_slowly() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF random() < 0.5 THEN
        PERFORM pg_sleep(random() * 0.1);
      END IF;
      RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER commit_slowly AFTER INSERT OR UPDATE ON reservation.dead_letters
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.commit_slowly()
"""


class Lines:
    """Payments of few orders, each in its own stream, read by a consumer for each partition."""

    def __init__(self, stores: "Stores", seed: int) -> None:
        self._chance = random.Random(seed)
        self._stores, self.address = stores, stores.fresh()
        self._failing: dict[str, type[Exception] | None] = {}
        self._steps: list[str] = []
        self._component: Component[Any] = Component(
            "order", entity=Order, id="order_id", attempts=1
        )
        self._component.handle(Captured, category=PAYMENTS)(self._captured)

        @self._component.project(Paid)
        def paid(order: Order, event: Paid) -> None:
            order.payments.append(event.payment_id)

    def play(self) -> list[str]:
        """Play it; return the violations."""
        with connect(self.address, autocommit=True) as self._control, ExitStack() as stack:
            self._control.execute(_SLOW_COMMITS)
            for _ in range(2):
                stack.enter_context(
                    running(
                        self._component,
                        self.address,
                        PAYMENTS,
                        partitions=2,
                        batch_size=self._chance.choice([1, 2, 1000]),
                    )
                )
            for n in range(self._chance.randint(4, 12)):
                self._step(n)
                time.sleep(self._chance.choice([0.0, 0.0, 0.05, 0.3]))
            self._failing.clear()
            return self._ended()

    def describe(self) -> str:
        """Return a readable description of what the seed repeats."""
        return "\n".join(self._steps) + "\n"

    def log(self) -> str:
        """Return the log of other processes."""
        return ""

    def close(self) -> None:
        """Leave nothing behind."""
        self._stores.drop(self.address)

    def _captured(self, event: Captured, order: Order, context: Any) -> Paid:
        error = self._failing.get(event.payment_id)
        if error is RetryLater:
            raise RetryLater(0.01)
        if error is not None:
            raise error
        return Paid(event.order_id, event.payment_id)

    def _step(self, n: int) -> None:
        kind = self._chance.choice(["send", "send", "send", "retry", "discard", "mend", "cut"])
        self._steps.append(kind)
        match kind:
            case "send":
                writes = []
                for m in range(self._chance.randint(1, 6)):
                    payment = f"p{n}x{m}"
                    error = self._chance.choice([None, None, ValueError, RetryLater])
                    self._failing[payment] = error
                    writes.append(capture(payment, self._chance.choice(ORDERS)))
                MessageStore(self._control).write_batch(writes)
            case "retry":
                self._retry_dead()
            case "discard":
                for letter in administration.find(self._control, Selection())[:1]:
                    with suppress(LetterError):
                        administration.discard(self._control, Selection(), [letter.global_position])
            case "mend":
                for payment in self._chance.sample(sorted(self._failing), len(self._failing) // 2):
                    self._failing[payment] = None
            case "cut":
                self._control.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name LIKE 'reservation test%%'"
                    " AND datname = current_database() ORDER BY random() LIMIT 1"
                )

    def _ended(self) -> list[str]:
        """Retry what is dead until nothing is open; return what is left, and what is wrong."""
        deadline = time.monotonic() + PATIENCE / 2
        while self._is_pending():
            if time.monotonic() > deadline:
                return stuck(self._control) or ["I7, letters are open for long"]
            self._retry_dead()
            time.sleep(0.05)
        rows = self._control.execute(
            "SELECT m.data->>'paymentId', count(e.id) + count(d.global_position)"
            " FROM message_store.messages m"
            " LEFT JOIN message_store.messages e ON e.type = 'Paid'"
            "   AND e.data->>'paymentId' = m.data->>'paymentId'"
            " LEFT JOIN reservation.dead_letters d"
            "   ON d.global_position = m.global_position AND d.state = 'discarded'"
            " WHERE m.type = 'Captured' GROUP BY m.id, 1"
            " HAVING count(e.id) + count(d.global_position) <> 1"
        ).fetchall()
        return [f"I2, {payment} took effect {count} times" for payment, count in rows]

    def _retry_dead(self) -> None:
        """Retry what is dead."""
        letters = administration.find(self._control, Selection(), states=["dead"])
        with suppress(LetterError):  # one was handled meanwhile
            positions = [letter.global_position for letter in letters]
            administration.retry(self._control, Selection(), positions)

    def _is_pending(self) -> bool:
        ((pending,),) = self._control.execute(
            "SELECT EXISTS (SELECT FROM reservation.dead_letters"
            "   WHERE state IN ('waiting', 'parked', 'dead'))"
            " OR reservation.category_head(%(category)s) > coalesce((SELECT min(p.position)"
            "   FROM reservation.positions p"
            "   WHERE p.consumer = 'order' AND p.category = %(category)s), 0)",
            {"category": PAYMENTS},
        ).fetchall()
        return bool(pending)

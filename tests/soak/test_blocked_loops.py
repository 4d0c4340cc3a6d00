"""A coroutine that blocks its event loop loses its lease; one that awaits keeps it."""

import asyncio
import time

from reservation import Component
from tests.consumers.builders import TILLS, Paid, Pay, pay
from tests.support.consuming import hosted, until


def test_a_consumer_with_a_blocked_loop_loses_its_lease(connection, store, database_url):
    """Others can then take over what it holds."""
    let_go = []
    component = Component("till", id="till_id")

    @component.handle(Pay, once=None)
    async def handle(command, entity, context):
        while command.pay_id not in let_go:
            if command.pay_id == "1 awaiting":
                await asyncio.sleep(0.01)
            else:
                time.sleep(0.01)
        return context.follow(command, Paid)

    def lease():
        ((expires, expired),) = connection.execute(
            "SELECT max(expires_at), max(expires_at) < clock_timestamp() "
            "FROM reservation.heartbeats"
        ).fetchall()
        return expires, expired

    store.write(pay("1 awaiting"), f"{TILLS}-1")
    with hosted(component, database_url) as thread:
        until(lambda: lease()[0], thread)
        for _ in range(4):  # for longer than a loop may be blocked
            before, _expired = lease()
            until(lambda before=before: lease()[0] > before, thread)
        assert not lease()[1]
        let_go.append("1 awaiting")
        until(lambda: any(store.read_category("till")), thread)
        store.write(pay("1 blocking"), f"{TILLS}-1")
        until(lambda: lease()[1], thread)
        let_go.append("1 blocking")
        until(lambda: len(list(store.read_category("till"))) == 2, thread)

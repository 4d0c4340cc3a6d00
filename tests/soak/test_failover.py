"""A failover to a replica that lost the last transactions."""

from contextlib import closing

from psycopg import connect, conninfo

from reservation import MessageStore
from reservation.admin import install
from tests.apps.bank import broken, event_types, wait_until_drained
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.servers import OwnServer, Standby
from tests.support.started import Started


def test_failover_to_a_replica_that_lost_the_last_transactions(server_folder):
    """After a failover that lost messages and positions alike, consumers go on."""
    with (
        closing(OwnServer(server_folder / "primary")) as primary,
        Standby(primary, server_folder) as standby,
    ):
        address = conninfo.make_conninfo(
            primary.address,
            host=f"{conninfo.conninfo_to_dict(primary.address)['host']},{standby.folder}",
            port="5432,5433",
            target_session_attrs="read-write",
        )
        with connect(primary.address, autocommit=True) as connection:
            install(connection)
            store = MessageStore(connection)
            store.write([open_(), *(deposit(f"kept{n}", "1") for n in range(50))], COMMANDS)
            standby.start()
            with Started(address) as started:
                wait_until_drained(connection, started)
                standby.catch_up()
                standby.stop_following()
                store.write([deposit(f"lost{n}", "1") for n in range(50)], COMMANDS)
                wait_until_drained(connection, started)
                primary.crash()
                standby.promote()
                with connect(address, autocommit=True) as promoted:
                    after = MessageStore(promoted)
                    assert event_types(after).count("Deposited") == 50
                    after.write([deposit(f"new{n}", "1") for n in range(20)], COMMANDS)
                    wait_until_drained(promoted, started)
                    assert event_types(after).count("Deposited") == 70
                    assert broken(promoted) == {}
                    assert started.stop() == 0

"""The reservation pattern by hand with message-db-py, which commits each write.

Two consumers in one process, as Eventide runs them: one reserves commands, the other handles the
reserved copies. Positions are written once a batch, so after a crash messages are read again; the
expected version of the reservation and the sequence in the event make that harmless.
"""

import os
import time
from typing import Any

from message_db.client import MessageDB

from benchmarks.peers.workers.timing import report

ACCOUNTS = 500
COMMANDS, RESERVED = "account:command", "accountTransaction"

Message = dict[str, Any]  # as the client returns it


def send(count: int) -> None:
    """Write deposits."""
    client = _connect()
    for account in range(ACCOUNTS):
        deposits = [
            ("Deposit", {"accountId": str(account), "depositId": f"d{n}", "amount": 10.5})
            for n in range(account, count, ACCOUNTS)
        ]
        client.write_batch(f"{COMMANDS}-{account}", deposits)


def work(batch_size: int) -> None:
    """Reserve the commands and handle the copies, batch by batch in turns."""
    client = _connect()
    accounts: dict[str, tuple[int, int]] = {}  # version and sequence of each
    positions = {COMMANDS: 1, RESERVED: 1}
    start = time.time()
    caught_up = False
    while not caught_up:
        caught_up = True
        for category, position in positions.items():
            messages = client.read_category(category, position, batch_size)
            for message in messages:
                if category == COMMANDS:
                    _reserve(client, message)
                else:
                    _handle(client, accounts, message)
            if messages:
                caught_up = False
                positions[category] = messages[-1]["global_position"] + 1
                client.write(
                    f"account:position-{category}", "Read", {"position": positions[category]}
                )
    report(start)


def _reserve(client: MessageDB, message: Message) -> None:
    data = message["data"]
    stream_name = f"{RESERVED}-{data['accountId']}+{data['depositId']}"
    try:
        client.write(stream_name, "Deposit", data, None, -1)
    except ValueError as error:
        if "Wrong expected version" not in str(error):
            raise


def _handle(client: MessageDB, accounts: dict[str, tuple[int, int]], message: Message) -> None:
    stream_name = f"account-{message['data']['accountId']}"
    if stream_name not in accounts:
        last = client.read_last_message(stream_name)
        accounts[stream_name] = (last["position"], last["data"]["sequence"]) if last else (-1, 0)
    version, handled = accounts[stream_name]
    sequence = message["global_position"]
    if sequence > handled:
        event = {**message["data"], "sequence": sequence}
        accounts[stream_name] = (
            client.write(stream_name, "Deposited", event, None, version),
            sequence,
        )


def _connect() -> MessageDB:
    """Return a client whose connection finds the store's functions."""
    address = f"host={os.environ['PGHOST']} user={os.environ['PGUSER']}"
    address += f" dbname={os.environ['PGDATABASE']} options=-csearch_path=message_store"
    return MessageDB.from_url(address, max_connections=1)

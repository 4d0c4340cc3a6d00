"""Processes with other declarations in one group: which may run at once, and what is refused."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

import consumers
from bank import account as bank_account
from bank.entity import Account
from bank.messages import Close, Deposit, Deposited, Open, Opened
from reservation import Component, Key
from reservation.errors import DeclarationError, GroupError
from reservation.strategies import Processed
from tests.apps.bank import event_types
from tests.support.commands import refuse_start
from tests.support.consuming import hosted, until
from tests.support.controls import COMMANDS, deposit, open_
from tests.support.started import PATIENCE

MEMBERS = "SELECT count(declaration) FROM reservation.members"


def bank(key="deposit_id", into=None, per="account_id", former_key=None, once=None):
    """Return a bank of deposits; each argument is a way in which a version may differ."""
    component = Component("account", entity=Account, id="account_id")

    @component.initiate(Open)
    def open_account(command: Open, context) -> Opened:
        return context.follow(command, Opened, processed_time=context.time)

    @component.handle(Deposit, key=Key(key, into=into, per=per, former_key=former_key), once=once)
    def handle(command: Deposit, entity, context) -> Deposited:
        return context.follow(
            command, Deposited, processed_time=context.time, sequence=context.sequence
        )

    component.project(Opened)(lambda entity, event: None)
    component.project(Deposited)(lambda entity, event: None)
    return component


def by_deposit(command: Deposit) -> str:
    return command.deposit_id


@pytest.fixture
def member(connection, database_url):
    """Give a function that runs a component, as a member of its group, while a block lasts."""

    @contextmanager
    def running(component):
        with hosted(component, database_url) as thread:
            until(lambda: connection.execute(MEMBERS).fetchone()[0], thread)
            yield

    return running


@pytest.fixture
def refusal(database_url):
    """Give a function that returns why a component may not run now, or None."""

    def refused(component):
        try:
            consumers.drain(component, database_url)
        except GroupError as error:
            return str(error)
        return None

    return refused


@pytest.fixture
def beside(member, refusal):
    """Give a function that returns why a component may not be run beside another one, or None."""

    def refused(mine, theirs):
        with member(theirs):
            return refusal(mine)

    return refused


CHANGES = {
    "accountTransaction-accountId+accountId here": {"key": "account_id"},
    "accountId+depositId+accountId here": {"key": ("deposit_id", "account_id")},
    "there and accountTransaction-depositId here": {"per": None},
    "accountTransaction-accountId+a function here": {"key": by_deposit},
    "there and accountDeposit-accountId+depositId here": {"into": "accountDeposit"},
    "+depositId, Processed(depositId) here": {"once": Processed(key="deposit_id")},
    # Only the new process would find what the old one reserves.
    "Key(…, former_key=…), in two": {"per": None, "former_key": ("account_id", "deposit_id")},
}


def test_a_changed_key_is_refused(member, refusal):
    """A reissue could be reserved a second time, by the process that looks for another name."""
    with member(bank()):
        found = {said: refusal(bank(**change)) for said, change in CHANGES.items()}
    key = "the key of Deposit is accountTransaction-accountId+depositId there"
    assert [said for said in CHANGES if not (found[said] and key in found[said])] == []
    assert [said for said in CHANGES if said not in found[said]] == []


@pytest.mark.parametrize(
    "change",
    [
        {"key": by_deposit},
        {"once": Processed(key="deposit_id")},
        {"per": None, "former_key": ("account_id", "deposit_id")},
    ],
)
def test_a_former_key_is_refused_beside_a_changed_one(beside, change):
    """A process of the former version that starts again is refused too."""
    assert beside(bank(), bank(**change)) is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {}),
        (
            {"former_key": "deposit_id"},
            {"per": None, "former_key": ("account_id", "deposit_id")},
        ),
        ({"key": by_deposit}, {"key": by_deposit}),
        ({"former_key": "deposit_id"}, {}),
    ],
)
def test_processes_that_find_each_others_reservations_may_run_at_once(
    store, database_url, old, new
):
    """A reissue to the new process of what the old one has reserved is a duplicate."""
    store.write([open_(), deposit()], COMMANDS)
    with hosted(bank(**old), database_url):
        until(lambda: event_types(store) == ["Opened", "Deposited"])
        consumers.drain(bank(**new), database_url)
    store.write([deposit(), deposit("d2")], COMMANDS)
    assert consumers.drain(bank(**new), database_url).counts == {
        "duplicate": 1,
        "reserved": 1,
        "handled": 1,
    }


def test_a_changed_key_function_is_found_in_the_reservations(store, database_url, beside):
    """Its code is not compared; what was reserved under the former key is."""
    changed = bank(key=lambda command: f"d {command.deposit_id}")
    assert beside(changed, bank(key=by_deposit)) is None
    store.write([open_(), deposit()], COMMANDS)
    consumers.drain(bank(key=by_deposit), database_url)
    with pytest.raises(
        DeclarationError, match=r"name with former_key= in Key\(…\) in @account\.handle"
    ):
        consumers.drain(changed, database_url)
    consumers.drain(bank(key=lambda again: again.deposit_id), database_url)


def with_event(event, *, read=None, **names):
    """Return a bank whose handler writes an event, and which projects others."""
    component = Component("account", entity=Account, id="account_id")

    def handle(command, entity, context):
        return None

    handle.__annotations__["return"] = event
    for one in {event, read} - {None}:
        component.project(one)(lambda entity, event: None)
    if names:
        component.message(event, **names)
    component.handle(Open, once=None)(handle)
    return component


@dataclass
class Begun:
    account_id: str


@dataclass
class Started:
    account_id: str


@dataclass
class Other:
    account_id: str


def shaped(*fields):
    """Return an event of this shape, with an id."""
    return dataclasses.make_dataclass("Shaped", [("account_id", str), *fields])


EXTRA = ("extra", int, dataclasses.field(default=0))


def versioned(version):
    """Return a bank that writes this version of an event."""
    upcasts = [lambda data: data] * (version - 1)
    made = dataclasses.make_dataclass("Started", [("account_id", str)])
    return with_event(made, version=version, upcast=upcasts)


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [
        (
            with_event(Begun, former_names="Started"),
            with_event(Started),
            ["handlers here write the event Begun, which it cannot read", "stored_as=…)"],
        ),
        (
            with_event(Other),
            with_event(Started, read=Other),
            ["its handlers write the event Started, which cannot be read here"],
        ),
        (with_event(shaped()), with_event(shaped(("more", int))), ["because the event lacks more"]),
        (versioned(3), versioned(2), ["because the event has version 3 of its shape, not 2"]),
    ],
    ids=["a new name", "theirs", "a new field", "a new version"],
)
def test_an_event_that_a_member_cannot_read_is_refused(beside, mine, theirs, said):
    """The line says which, and how to deploy it."""
    refusal = beside(mine, theirs)
    assert [text for text in said if text not in refusal] == []


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (with_event(Begun, stored_as="Started"), with_event(Started)),
        (with_event(shaped(EXTRA)), with_event(shaped())),
        (versioned(2), versioned(2)),
    ],
    ids=["the former name", "a field more", "the same version"],
)
def test_events_that_members_can_read_are_not_refused(beside, mine, theirs):
    """A name or a field more than the other knows is no harm."""
    assert beside(mine, theirs) is None


def test_a_command_under_a_new_name_is_refused_until_it_is_written_under_the_former_one(beside):
    """The handler is the same; only the name that senders write is not known to the old member."""
    renamed = dataclasses.make_dataclass(
        "MakeDeposit", [(one.name, one.type) for one in dataclasses.fields(Deposit)]
    )

    def version(class_, **names):
        component = Component("account", id="account_id")
        component.handle(class_, key=Key("deposit_id", per=None))(
            lambda command, entity, context: None
        )
        if names:
            component.message(class_, **names)
        return component

    refusal = beside(version(renamed, former_names="Deposit"), version(Deposit))
    assert "MakeDeposit is sent under this name now" in refusal
    assert beside(version(renamed, stored_as="Deposit"), version(Deposit)) is None


def test_a_command_that_only_one_of_two_reads_is_not_refused(beside):
    """A process of the former version must be able to start again beside those of the new one."""
    more = bank()
    more.handle(Close, once=None)(lambda command, entity, context: None)
    assert beside(more, bank()) is None


def test_the_line_of_start_names_the_process_and_the_way_out(connection, store, database_url):
    """Once that process has left, it runs."""
    with hosted(bank(per=None), database_url) as running:
        until(lambda: connection.execute(MEMBERS).fetchone()[0], running)
        ((process,),) = connection.execute(
            "SELECT DISTINCT process FROM reservation.members"
        ).fetchall()
        (line,) = refuse_start("bank:account", "--database-url", database_url).splitlines()
        assert f"beside a member of their group, {process}: the key of Deposit is" in line
        assert line.endswith("Or stop that process first. See docs/how-to/upgrade.md")
    store.write([open_(), deposit()], COMMANDS)
    consumers.drain(bank_account, database_url)
    assert event_types(store) == ["Opened", "Deposited"]


def test_a_member_whose_declaration_cannot_be_read_is_refused(connection, database_url):
    """One of several processes of a name, as in containers, is not hidden by the others."""
    with hosted(bank(), database_url) as running, hosted(bank(), database_url):
        until(lambda: connection.execute(MEMBERS).fetchone() == (4,), running)
        consumers.drain(bank(), database_url)
        connection.execute(
            "UPDATE reservation.members SET declaration = '[]' "
            "WHERE member = (SELECT max(member) FROM reservation.members)"
        )
        with pytest.raises(GroupError, match="stores a declaration that cannot be read here"):
            consumers.drain(bank(), database_url)


def test_a_process_that_is_gone_keeps_nobody_from_starting(connection, database_url, store):
    """Its row is still there; its session has ended."""
    store.write(open_(), COMMANDS)
    with hosted(bank(per=None), database_url):
        until(lambda: event_types(store) == ["Opened"])
        until(lambda: connection.execute(MEMBERS).fetchone() == (2,))
        connection.execute("CREATE TABLE kept AS SELECT * FROM reservation.members")
    connection.execute("INSERT INTO reservation.members OVERRIDING SYSTEM VALUE SELECT * FROM kept")
    assert connection.execute(MEMBERS).fetchone() == (2,)
    consumers.drain(bank(), database_url)


def test_of_two_that_join_at_the_same_moment_one_is_refused(connection, database_url):
    """The second waits until the first has stored what it declares."""
    connection.execute(
        "CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$ "
        "BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$; "
        "CREATE TRIGGER stall BEFORE UPDATE ON reservation.members "
        "FOR EACH ROW EXECUTE FUNCTION stall()"
    )
    connection.execute("SELECT pg_advisory_lock(1)")
    waits = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock' AND application_name LIKE %s"
    )

    def waiting(name):
        return connection.execute(waits, [name]).fetchone()[0] > 0

    with hosted(bank(), database_url) as first, ThreadPoolExecutor(1) as pool:
        until(lambda: waiting("reservation account account%"), first)
        second = pool.submit(consumers.drain, bank(per=None), database_url)
        until(lambda: second.done() or waiting("reservation account"), first)
        connection.execute("SELECT pg_advisory_unlock(1)")
        with pytest.raises(GroupError, match="the key of Deposit is"):
            second.result(PATIENCE)

"""Processes with other declarations in one group: which may run at once, and what is refused."""

import ast
import dataclasses
from dataclasses import dataclass

import pytest

import consumers
from bank import account as bank_account
from bank.entity import Account
from bank.messages import Close, Deposit, Deposited, Open, Opened
from consumers.group.compatibility import LivingMember, compare, living_members
from consumers.group.membership import GroupShare, Membership
from consumers.runtime.observability.logs import Log
from reservation import Component, Processed
from reservation.errors import GroupError
from reservation.inspection.process_declaration import ProcessDeclaration
from tests.bank import RESERVED, event_types, session
from tests.controls import COMMANDS, deposit, open_
from tests.processes import Started, run_cli


def bank(
    key="deposit_id", into=RESERVED, entity="account_id", formerly=None, once=None, was=(), **names
):
    """Return a bank of deposits; each argument is a way in which a version may differ."""
    component = Component("account", entity=Account, id="account_id")
    component.reserve(
        Deposit, into=into, entity=entity, key=key, formerly=formerly, was=was, **names
    )

    @component.initiate(Open)
    def open_account(command: Open, context) -> Opened:
        return context.follow(command, Opened, processed_time=context.time)

    @component.handle(Deposit, once=once)
    def handle(command: Deposit, entity, context) -> Deposited:
        return context.follow(
            command, Deposited, processed_time=context.time, sequence=context.sequence
        )

    component.project(Opened)(lambda entity, event: None)
    component.project(Deposited)(lambda entity, event: None)
    return component


def found(mine, theirs):
    """Compare what a component declares with a living member that runs another."""
    member = LivingMember("host:1", ProcessDeclaration.of(theirs))
    both = [
        compare(ProcessDeclaration.of(mine), [member]),
        compare(member.declaration, [LivingMember("host:1", ProcessDeclaration.of(mine))]),
    ]
    assert bool(both[0].unfit) == bool(both[1].unfit), "whoever joins second is refused"
    return both[0]


def problems_of(mine, theirs):
    """Return why a process may not run beside another one, as people read it."""
    return [f"{process}: {difference}" for process, difference in found(mine, theirs).unfit]


def by_account(command: Deposit) -> list[str]:
    return [command.account_id, command.deposit_id]


def by_deposit(command: Deposit) -> str:
    return command.deposit_id


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"key": "account_id"}, "by accountId and depositId there and by accountId and accountId"),
        ({"key": ("deposit_id", "account_id")}, "named by accountId and depositId there"),
        ({"entity": None}, "by accountId and depositId there and by depositId here"),
        ({"key": by_deposit}, "by accountId and depositId there and by accountId and function"),
        ({"into": "accountDeposit"}, "reserved into accountTransaction, and here it is reserved"),
        ({"into": None, "entity": None}, "here it is reserved into the command category"),
        ({"once": Processed(key="deposit_id")}, r"there and by Processed\(depositId\) here"),
        # Only the new process would find what the old one reserves.
        ({"entity": None, "formerly": ("account_id", "deposit_id")}, "formerly=, in two"),
    ],
)
def test_a_changed_key_is_refused(change, said):
    """A reissue could be reserved a second time, by the process that looks for another name."""
    (problem, *_) = problems_of(bank(**change), bank())
    assert problem.startswith("host:1: ")
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(problem)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {}),
        (
            {"formerly": "deposit_id"},
            {"entity": None, "formerly": ("account_id", "deposit_id")},
        ),
        ({"key": by_deposit}, {"key": by_deposit}),
        ({"formerly": "deposit_id"}, {}),
    ],
)
def test_processes_that_find_each_others_reservations_may_run_at_once(old, new):
    """The same key, or each names that of the other as a former one."""
    assert found(bank(**new), bank(**old)).unfit == ()


def test_a_key_function_of_other_code_is_another_key():
    """Neither its name nor its layout counts, nor what is said about it."""

    def first(command: Deposit) -> str:
        return command.deposit_id

    def same(command: Deposit) -> str:
        """Take the key."""
        # The same with another layout.
        return (
            command.deposit_id
        )  # fmt: skip

    def other(command: Deposit) -> str:
        return command.account_id

    def made(source):
        return eval(source)  # of which no source is known

    assert found(bank(key=same), bank(key=first)).unfit == ()
    assert found(bank(key=other), bank(key=first)).unfit
    one, another = bank(key=lambda one: one.deposit_id), bank(key=lambda one: one.account_id)
    assert found(one, one).unfit == ()
    assert found(one, another).unfit
    sources = [f"lambda command: command.{field}" for field in ("deposit_id", "account_id")]
    one, another = (bank(key=made(source)) for source in sources)
    assert found(one, bank(key=made(sources[0]))).unfit == ()
    assert found(one, another).unfit


def by_field(name):
    """Return a key function that was made for a field."""
    return lambda command: getattr(command, name)


def test_the_layout_of_a_lambda_is_no_part_of_its_key_and_what_is_bound_to_it_is():
    # fmt: off
    one = bank(key=lambda command: command.account_id)
    same = bank(
        key=lambda command:
            command.account_id,
    )
    # fmt: on
    assert found(one, same).unfit == ()
    assert found(bank(key=by_field("deposit_id")), bank(key=by_field("deposit_id"))).unfit == ()
    assert found(bank(key=by_field("deposit_id")), bank(key=by_field("account_id"))).unfit


def with_event(event, *, read=None, **declared):
    """Return a bank whose handler writes an event, and which projects others."""
    component = Component("account", entity=Account, id="account_id")

    def handle(command, entity, context):
        return None

    handle.__annotations__["return"] = event
    for one in {event, read} - {None}:
        component.project(one, **declared)(lambda entity, event: None)
    component.handle(Open)(handle)
    return component


def by_deposit(command):
    """Return the key of a deposit."""
    return command.deposit_id


@pytest.mark.parametrize("key", [by_deposit, lambda command: command.deposit_id])
def test_a_key_is_described_although_other_threads_make_syntax_trees(key, monkeypatch):
    """CPython counts how deep it is in a tree for all threads together, and then raises this."""
    expected = ProcessDeclaration.of(bank(key=key))
    parse, failures = ast.parse, iter(range(3))

    def disturbed(source):
        if next(failures, None) is not None:
            raise SystemError("AST constructor recursion depth mismatch (before=57, after=109)")
        return parse(source)

    monkeypatch.setattr(ast, "parse", disturbed)
    assert ProcessDeclaration.of(bank(key=key)) == expected
    assert next(failures, None) is None


def test_an_event_that_a_living_member_cannot_read_is_refused():
    """Under a new name, or without a field that it must have; the former name is a way out."""

    @dataclass
    class Started:
        account_id: str

    @dataclass
    class Shaped:
        account_id: str
        extra: int = 0

    renamed = dataclasses.make_dataclass("Begun", [("account_id", str)])
    (problem,) = problems_of(with_event(renamed, was="Started"), with_event(Started))
    assert "handlers here write the event Begun, which it cannot read" in problem
    assert "stored_as=" in problem
    assert found(with_event(renamed, stored_as="Started"), with_event(Started)).unfit == ()
    (_, problem) = problems_of(with_event(renamed), with_event(Started))
    assert "its handlers write the event Started, which cannot be read here" in problem

    shape = dataclasses.make_dataclass("Shaped", [("account_id", str)])
    assert found(with_event(Shaped), with_event(shape)).unfit == ()
    strict = dataclasses.make_dataclass("Shaped", [("account_id", str), ("more", int)])
    (problem,) = problems_of(with_event(shape), with_event(strict))
    assert "because the event lacks more" in problem


def test_a_version_that_a_living_member_does_not_know_is_refused():
    """It would take each such event for one that it cannot decode."""

    def at(version):
        fields = [("account_id", str)]
        made = dataclasses.make_dataclass(
            "Started", fields, namespace={"__schema_version__": version}
        )
        component = with_event(made)
        for to in range(2, version + 1):
            component.upcast(made, to=to)(lambda data: data)
        return component

    (problem,) = problems_of(at(3), at(2))
    assert "because the event has version 3 of its shape, not 2" in problem
    assert found(at(2), at(2)).unfit == ()


def test_a_command_under_a_new_name_is_refused_until_it_is_written_under_the_former_one():
    """The handler is the same; only the name that senders write is not known to the old member."""
    renamed = dataclasses.make_dataclass(
        "MakeDeposit", [(one.name, one.type) for one in dataclasses.fields(Deposit)]
    )

    def version(class_, **names):
        component = Component("account", id="account_id")
        component.reserve(class_, into=RESERVED, key="deposit_id", **names)
        component.handle(class_)(lambda command, entity, context: None)
        return component

    problems = problems_of(version(renamed, was="Deposit"), version(Deposit))
    assert ["MakeDeposit is sent under this name now" in one for one in problems] == [True]
    fits = found(version(renamed, stored_as="Deposit"), version(Deposit))
    assert (fits.unfit, fits.unread, fits.undeclared) == ((), {}, {})


def test_a_command_that_only_one_of_two_reads_is_told_and_not_refused():
    """A process of the former version must be able to start again beside those of the new one."""
    more = bank()
    more.handle(Close)(lambda command, entity, context: None)
    assert found(more, bank()).unread == {"host:1": ("Close",)}
    assert found(bank(), more).undeclared == {"host:1": ("Close",)}
    ignoring = bank()
    ignoring.ignore("Close")
    assert found(more, ignoring).unread == {}


def test_what_is_stored_of_a_member_is_read_again(connection, database_url):
    """And a form that another version may store is not."""
    declaration = ProcessDeclaration.of(bank_account)
    assert ProcessDeclaration.from_json(declaration.to_json()) == declaration
    for unknown in (None, "[]", "{}", declaration.to_json().replace('"form":1', '"form":2')):
        assert ProcessDeclaration.from_json(unknown) is None


def joined(connection, component, category):
    """Join a group as a process of this component does, for as long as the session lasts."""
    membership = Membership(
        session(connection.info.dsn),
        component.name,
        category,
        GroupShare(),
        Log(component.name, category),
        ProcessDeclaration.of(component),
    )
    membership.join(connection)
    connection.execute("UPDATE reservation.leases SET expires_at = now() + '1 hour'")
    return membership


def test_start_and_drain_are_refused_beside_a_member_that_does_not_fit(
    connection, store, database_url
):
    """One line names the process and the way out; once it has left, they run."""
    other = joined(connection, bank(entity=None), "account:command")
    (member,) = living_members(connection, "account")
    done = run_cli("start", "bank:account", env={"RESERVATION_DATABASE_URL": database_url})
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"beside a member of their group, {member.process}: the reservations of Deposit" in line
    assert line.endswith("Or stop that process first. See docs/how-to/upgrade-without-stopping.md")
    with pytest.raises(GroupError, match="cannot run beside a member"):
        consumers.drain(bank_account, database_url)
    other.leave(connection)
    store.write([open_(), deposit()], COMMANDS)
    consumers.drain(bank_account, database_url)
    assert event_types(store) == ["Opened", "Deposited"]


def test_processes_of_one_name_do_not_hide_each_other(connection, database_url):
    """In containers a name can be that of several."""
    other = ProcessDeclaration.of(bank(entity=None)).to_json()
    with session(database_url) as first, session(database_url) as second:
        joined(first.connection, bank(), "account:command")
        joined(second.connection, bank(), "account:command")
        assert len(living_members(connection, "account")) == 1
        for declaration in (other, None):
            connection.execute(
                "UPDATE reservation.members SET declaration = %s::jsonb "
                "WHERE member = (SELECT max(member) FROM reservation.members)",
                [declaration],
            )
            assert len(living_members(connection, "account")) == 2


def test_a_process_that_is_gone_keeps_nobody_from_starting(connection, database_url, store):
    """Its row is still there; its session has ended."""
    with session(database_url) as gone:
        joined(gone.connection, bank(entity=None), "account:command")
        assert len(living_members(connection, "account")) == 1
    while living_members(connection, "account"):
        pass
    assert connection.execute("SELECT count(*) FROM reservation.members").fetchone() == (1,)
    consumers.drain(bank_account, database_url)


def test_of_two_that_join_at_the_same_moment_one_is_refused(connection, database_url):
    """The comparison is made under a lock, so neither overlooks the other."""
    with session(database_url) as first, session(database_url) as second:
        with first.connection.transaction():
            first.connection.execute("SET LOCAL lock_timeout = 0")
            joined(first.connection, bank(), "account:command")
            second.connection.execute("SET lock_timeout = '50ms'")
            with pytest.raises(Exception, match="lock"):  # it waits for the first
                joined(second.connection, bank(entity=None), "account:command")
        with pytest.raises(GroupError, match="the reservations of Deposit"):
            joined(second.connection, bank(entity=None), "account:command")
        stored = connection.execute("SELECT count(declaration) FROM reservation.members")
        assert stored.fetchone() == (1,)


@pytest.mark.slow
def test_a_consumer_whose_connection_was_cut_joins_again_beside_itself(connection, database_url):
    """What it declared is there for both of its memberships."""
    with Started(database_url) as started:
        for category in ("account:command", RESERVED):
            started.wait_for("consumer_started", category=category)
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name LIKE 'reservation account %' AND datname = current_database()"
        )
        for category in ("account:command", RESERVED):
            started.wait_for("database_available", category=category)
        rows = connection.execute("SELECT declaration::text FROM reservation.members").fetchall()
        declared = ProcessDeclaration.of(bank_account)
        assert [ProcessDeclaration.from_json(text) for (text,) in rows] == [declared] * 2
        assert started.stop() == 0

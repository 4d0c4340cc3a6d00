"""Runs of a component that is killed everywhere, and what their comparison finds."""

import random
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from psycopg import Connection

from consumers.group.inspection.stored_positions import categories
from consumers.testing.crashing.contents import Contents, differences, read
from consumers.testing.crashing.databases import Copies, Copy, copies
from consumers.testing.crashing.inside.observing.fingerprints import fingerprint
from consumers.testing.crashing.interpreters import PythonProcess, RunResult, settings
from consumers.testing.crashing.orders import Called, FailingStatement, Kill, Order
from consumers.testing.crashing.racing import Race, finish, races
from consumers.testing.crashing.report import CrashFindings, CrashKitError, CrashReport
from consumers.testing.crashing.verdicts import Handlers, Verdicts
from consumers.testing.embedded_server import embedded_server
from reservation.app_path import load_component
from reservation.component import Component
from reservation.declaration.records import Role
from reservation.declaration.table import declarations
from reservation.errors import AppPathError
from reservation.store.writing.write import Write
from reservation.testing.messages import declaration_of, sent

T = TypeVar("T")

# How often a run may die or fail and be begun again.
_MOST_RESTARTS = 5


def crash_everywhere(
    component: Component[Any] | str,
    commands: Sequence[object],
    *,
    database_url: str | None = None,
    prepare: Callable[[Connection[Any]], object] | None = None,
    effects: Callable[[], object] | None = None,
    reset: Callable[[], object] | None = None,
    allow: Collection[str] = (),
    app_dir: str | Path | None = None,
    hash_seeds: Sequence[int] = (1, 2),
    most_kills: int = 200,
    seed: int = 0,
    check: bool = True,
    progress: Callable[[int, int], object] | None = None,
) -> CrashReport:
    """Run a component, kill it at every statement and every call, and compare all that it stores.

    The component runs in processes of its own, on real databases that are made for the call and
    dropped with it. It is killed with SIGKILL before each exchange with the server, and before and
    after each call of a handler; another process goes on. Each statement of a handler on
    ``context.connection`` also loses against another transaction, and loses the connection. Two
    messages of different entities are handled at the same time. In between, the component runs
    again unharmed, with another hash seed, and with a process for each message. After each run all
    messages, positions, records of strategies and rows of the other tables must be the same. Rates
    and breakers have no effect.

    Args:
        component: its app path, such as ``"bank:account"``, or the component itself if a module
            holds it as a global.
        commands: the messages to handle, in order: commands, or messages of a subscribed category.
            A `Write` names the stream itself. Messages of several entities, reissues, and messages
            that depend on each other find the most.
        database_url: a libpq URL or connection string, of a server for tests; None for an embedded
            one. The role may create databases. The database itself is left as it is, and must not
            hold messages.
        prepare: makes the component's own tables, on a connection in autocommit.
        effects: returns what there is outside the database, in any form that can be compared. It
            must be the same after each run.
        reset: called before each run, to take back outside what the last run did.
        allow: what a handler may reach outside, as patterns: paths of files, ``host:port`` of
            connections, names of programs, or ``psycopg.connect``.
        app_dir: the folder in which the component's module is looked for first.
        hash_seeds: those of the interpreters, as in ``PYTHONHASHSEED``; at least two.
        most_kills: how many places for a kill and failing statements to try at most. If there are
            more, a sample is tried that is spread over all of them.
        seed: which sample.
        check: whether to raise an error if there are findings.
        progress: called after each run with how many were made, and how many are known so far.

    Returns:
        What was done and found.

    Raises:
        CrashFindings: there are findings.
        AppPathError: the component cannot be imported.
        DeclarationError: the component has no handler for one of the messages.
        CrashKitError: the runs are not possible: no messages, fewer than two hash seeds, or a run
            that does not end.
        StoreError: the database holds messages, the server refuses something, or there is no
            embedded one.
    """
    if not commands:
        raise CrashKitError("There are no commands to handle; give at least one")
    if len(set(hash_seeds)) < 2:
        raise CrashKitError("One hash seed cannot show another order; give hash_seeds at least two")
    if most_kills < 0:
        raise CrashKitError(f"most_kills={most_kills} is negative; give 0 or more")
    app = component if isinstance(component, str) else _app_path(component)
    folder = None if app_dir is None else Path(app_dir)
    declared = load_component(app, folder) if isinstance(component, str) else component
    declared.check()
    writes = [_write(declared, command) for command in commands]
    with ExitStack() as stack:
        interpreters = [
            stack.enter_context(
                PythonProcess(settings(app, folder, allow, reverses=n > 0), hash_seed)
            )
            for n, hash_seed in enumerate(dict.fromkeys(hash_seeds))
        ]
        server_url = database_url or stack.enter_context(embedded_server())
        made = stack.enter_context(copies(server_url, prepare, writes))
        for interpreter in interpreters:
            interpreter.wait_until_ready()
        kit = _Kit(declared, made, interpreters, effects, reset, progress)
        report = kit.run(most_kills, seed)
    if check and report.findings:
        raise CrashFindings(report)
    return report


class _Kit:
    """The runs of one call."""

    def __init__(
        self,
        component: Component[Any],
        made: Copies,
        interpreters: Sequence[PythonProcess],
        effects: Callable[[], object] | None,
        reset: Callable[[], object] | None,
        progress: Callable[[int, int], object] | None,
    ) -> None:
        self._component = component
        self._databases = made
        self._interpreters = interpreters
        self._effects = effects
        self._reset = reset
        self._progress = progress
        self._categories = tuple(categories(component))
        self._runs = self._kills = 0
        self._expected = 0

    def run(self, most_kills: int, seed: int) -> CrashReport:
        """Make all runs, and return what they found."""
        first, *reseeding = self._interpreters
        ran, contents, outside = self._whole(first, inspects=True)
        if ran.done is None:
            raise CrashKitError(f"The component does not run without a kill: {ran.text}")
        verdicts = Verdicts(Handlers(self._component.name, ran.calls))
        verdicts.observed(ran.observed)
        after_calls, others = _places(ran)
        kills = _sample(after_calls, most_kills - most_kills // 2, seed)
        kills += _sample(others, most_kills - len(kills), seed)
        faults = _sample(list(_faults(ran)), most_kills, seed)
        paired: list[Race] = []
        if not contents.rows["dead_letters"]:
            paired = list(races(self._component, self._categories, contents, ran.calls))
            paired.sort(key=lambda race: " and " in race.handlers)  # first those of one handler
            paired = paired[:most_kills]
        self._expected = 3 + len(reseeding) + len(kills) + len(faults) + 3 * len(paired)

        def compare(other: Contents) -> Any:
            return differences(contents, other)

        _, repeated, _ = self._whole(first)
        verdicts.repeated(compare(repeated))
        for n, other in enumerate(reseeding, 2):
            _, reseeded, _ = self._whole(other)
            verdicts.reseeded(compare(reseeded), f"interpreter {n}, with another hash seed")
        fresh = self._fresh()
        if verdicts.unknown(compare(fresh)):
            one_by_one = self._whole(first, batch_size=1)[1]
            verdicts.fresh(differences(one_by_one, fresh), "a process for each message")
            verdicts.batched(compare(one_by_one), "a batch for each message")
        points: list[Kill | FailingStatement] = [*kills, *faults]
        for point in points:
            after, after_outside, swallowed = self._harmed(point)
            if isinstance(point, FailingStatement):
                verdicts.failed(compare(after), str(point), swallowed)
            else:
                verdicts.killed(compare(after), str(point))
            if after_outside != outside:
                verdicts.repeated_outside(str(point), outside, after_outside)
        for race in paired:
            self._race(race, verdicts)
        return CrashReport(
            tuple(verdicts.findings),
            self._kills,
            ran.done.exchanges,
            len(ran.calls),
            self._runs,
            len(after_calls) + len(others),
            seed,
            Counter(ran.done.counts),
        )

    def _whole(
        self, interpreter: PythonProcess, *, batch_size: int = 1000, inspects: bool = False
    ) -> tuple[RunResult, Contents, str]:
        """Run the component without a kill."""
        with self._database() as database:
            order = Order(database.address, self._categories, batch_size, inspects=inspects)
            ran = interpreter.run(order)
            return ran, read(database.address), self._outside()

    def _fresh(self) -> Contents:
        """Handle each message in a process of its own."""
        with self._database() as database:
            order = Order(database.address, self._categories, batch_size=1, once=True)
            while True:
                done = self._interpreters[0].run(order).done
                if done is None or done.drained or not done.counts:
                    return read(database.address)

    def _harmed(self, point: Kill | FailingStatement) -> tuple[Contents, str, Called | None]:
        """Run the component with a kill or a failing statement, and begin again after it."""
        interpreters = self._interpreters
        with self._database() as database:
            order = Order(
                database.address,
                self._categories,
                kill=point if isinstance(point, Kill) else None,
                fault=point if isinstance(point, FailingStatement) else None,
            )
            ran = interpreters[0].run(order)
            self._kills += ran.status == -9
            swallowed = next((call for call in ran.calls if _went_on(call, point)), None)
            self._finish(database, ran)
            return read(database.address), self._outside(), swallowed

    def _finish(self, database: Copy, ran: RunResult) -> None:
        """Let other processes go on until there is nothing left to handle."""
        for n in range(_MOST_RESTARTS):
            if ran.done is not None:
                return
            database.wait_until_left()
            ran = self._interpreters[(n + 1) % len(self._interpreters)].run(
                Order(database.address, _from(self._categories, ran.category))
            )
        raise CrashKitError(f"The component does not finish after a kill: {ran.text}")

    def _race(self, race: Race, verdicts: Verdicts) -> None:
        with self._database() as database:
            race.run(database, self._interpreters)
            database.wait_until_left()
            at_once = self._end_of_race(database)
        found = []
        for swapped in (False, True):
            with self._database() as database:
                self._interpreters[0].run(race.in_order(database.address, swapped=swapped))
                found = list(differences(self._end_of_race(database), at_once))
            if not verdicts.unknown(found):
                return
        verdicts.raced(found, str(race), race.handlers)

    def _end_of_race(self, database: Copy) -> Contents:
        """Let one process handle what follows, and return what is stored."""
        finish(self._component, database)
        self._finish(database, self._interpreters[0].run(Order(database.address, self._categories)))
        return read(database.address)

    def _database(self) -> Copy:
        self._runs += 1
        if self._progress is not None:
            self._progress(self._runs, max(self._expected, self._runs))
        if self._reset is not None:
            self._reset()
        return self._databases.make()

    def _outside(self) -> str:
        return "" if self._effects is None else fingerprint(self._effects())


def _places(ran: RunResult) -> tuple[list[Kill], list[Kill]]:
    """Return the places for a kill: after calls of handlers, where most happens, and all others."""
    exchanges = 0 if ran.done is None else ran.done.exchanges
    others = [Kill("exchange", number) for number in range(1, exchanges + 1)]
    calls = _committed(ran)
    others += [Kill("call", call.number) for call in calls]
    return [Kill("returned", call.number) for call in calls], others


def _faults(ran: RunResult) -> Iterator[FailingStatement]:
    """Give every statement of a handler that may fail, and how."""
    for call in _committed(ran):
        for statement in range(1, call.statements + 1):
            yield FailingStatement(call.number, statement, lost=False)
            yield FailingStatement(call.number, statement, lost=True)


def _committed(ran: RunResult) -> Collection[Called]:
    """Return of the calls for each message the last, which is the one that is committed."""
    return {call.place: call for call in ran.calls}.values()


def _went_on(call: Called, point: Kill | FailingStatement) -> bool:
    """Return whether a call is the one whose statement failed, and returned nevertheless."""
    return (
        isinstance(point, FailingStatement)
        and call.number == point.call
        and (call.coped or call.ended)
    )


def _sample(points: list[T], most: int, seed: int) -> list[T]:
    """Return at most so many, spread over all."""
    if len(points) <= most:
        return points
    chance = random.Random(seed)
    size = len(points)
    return [points[chance.randrange(size * n // most, size * (n + 1) // most)] for n in range(most)]


def _from(names: tuple[str, ...], first: str | None) -> tuple[str, ...]:
    """Return the categories in their order, from the one that was read last."""
    n = 0 if first is None else names.index(first)
    return (*names[n:], *names[:n])


def _app_path(component: Component[Any]) -> str:
    """Return the app path of a component that a module holds."""
    found = [
        (name, attribute)
        for name, module in list(sys.modules.items())
        for attribute, value in list(getattr(module, "__dict__", {}).items())
        if value is component and name != "__main__"
    ]
    # A test's module holds it too, and need not be on the import path.
    handled = declarations(component).own.handled.values()
    own = {
        getattr(one.handler, "__module__", "") for one in handled if one.role is not Role.INITIATE
    }
    for name, attribute in sorted(found, key=lambda place: place[0] not in own):
        return f"{name}:{attribute}"
    raise AppPathError(
        f"The component {component.name} is not a global of a module that other processes can "
        f"import, and the crash kit runs it in processes of their own; define it at the top of a "
        f"module, or give its app path, for example 'bank:account'"
    )


def _write(component: Component[Any], command: object) -> Write:
    """Return a message with the stream that it is sent to."""
    if isinstance(command, Write):
        return command
    return sent(component, declaration_of(component, type(command), None), command)

"""Runs that read only what is new, against runs over everything."""

import random
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

from reservation import Component, Processed
from spark_jobs.analysis.commands import CommandsJob
from spark_jobs.analysis.effects import EffectsJob
from spark_jobs.analysis.verdicts.judging import Rows
from spark_jobs.common.errors import StateError
from spark_jobs.reconciliation.full_run import FullRun
from spark_jobs.reconciliation.reading.fingerprinting import SparkFingerprints
from spark_jobs.reconciliation.run import Run, judged_by
from spark_jobs.reconciliation.state import incremental, known, stored_state
from spark_jobs.reconciliation.state.incremental import IncrementalRun
from spark_jobs.reconciliation.state.stored_state import Head, StoredFingerprints
from spark_jobs.snapshot.progress import Consumed, Progress
from tests.chance import FIRST, seeds
from tests.spark.messages import message, reading, whole

pytestmark = pytest.mark.spark

CATEGORIES = ("a:command", "t", "a")


@dataclass
class Deposit:
    a_id: str
    key: str


@dataclass
class Open:
    a_id: str


def component(name="a", once=None):
    """Return a component that reserves one command and initiates with another."""
    made = Component(name, id="a_id")
    made.reserve(Deposit, into="t", entity="a_id", key="key")
    made.handle(Deposit, once=once)(lambda command, entity, context: None)
    made.initiate(Open)(lambda command, context: None)
    return made


def history(chance, length):
    """Return messages in which anything may be missing, doubled, contradicted or misplaced."""
    messages, commands, copies = [], [], []
    for position in range(1, length + 1):
        key = f"t-1+k{chance.randrange(length // 4)}"
        what = chance.choice(
            ["send", "send", "send", "reserve", "reserve", "event", "event", "odd"]
        )
        if what == "send":
            opens = chance.random() < 0.2
            row = message(
                position,
                "a:command-1",
                "Open" if opens else "Deposit",
                key_category="a" if opens else "t",
                key_stream=f"a-{chance.randrange(4)}" if opens else chance.choice([key, key, None]),
                content=chance.choice(["same", "same", "same", "other"]),
            )
            commands.append(row)
        elif what == "reserve" and commands:
            cause = chance.choice(commands)
            stream = cause["key_stream"] or key
            content = cause["content"]
            place = sum(1 for other in copies if other["stream_name"] == stream)
            row = message(position, stream, "Deposit", content=content, position=place)
            row["category"] = "t" if stream.startswith("t") else "a"
            if row["category"] == "a":
                row.update(type="Opened", causation=cause["global_position"], content=None)
            copies.append(row)
        elif what == "event":
            cause = chance.choice(copies)["global_position"] if copies else None
            stream = f"a-{chance.randrange(4)}"
            row = message(position, stream, "Done", causation=cause, position=position)
        else:
            row = message(position, f"t-1+x{position}", "Odd", content="odd")
        messages.append(row)
    return messages


def progress(chance, position, letters):
    """Return how far consumers may be that have seen so much of the log."""
    letters = [letter for letter in letters if letter <= position]

    def consumed():
        of_one = chance.choice([1, 3])
        return Consumed.of_partitions(
            [chance.randrange(position // 2, position + 1) for _ in range(of_one)],
            chance.choice([(), (position - 1, position // 2)]),
            letters=letters[::2],
            conflicts=letters[1::2],
            first_position=chance.choice([None, 0, position // 3]),
        )

    return Progress({category: consumed() for category in ("a:command", "t")})


def jobs():
    """Return the jobs."""
    return [CommandsJob(component(), "", Path()), EffectsJob(component())]


def found(taking):
    """Return what was counted and the rows that need attention, in an order of their own."""
    counts = [taking.take(job) for job in jobs()]
    rows = sorted(tuple(map(str, row)) for row in taking.findings().collect())
    return counts, rows


def heads(messages):
    """Return the last message of each category."""
    return {
        category: max(
            (
                Head(message["global_position"], message["id"])
                for message in messages
                if message["category"] == category
            ),
            key=lambda head: head.position,
            default=Head(0, None),
        )
        for category in CATEGORIES
    }


MADE = StoredFingerprints([], 1, is_of_server=False, probe=None)


def made(spark, messages, of=None):
    """Return the fingerprints of messages, as Spark makes them."""
    rows = reading(spark, messages)
    return SparkFingerprints(
        rows, at(rows), spark.createDataFrame, of or component(), "", None, MADE.seed
    )


def at(rows):
    """Return what reads some of the messages."""
    return lambda positions: Rows(rows.messages.join(positions, "global_position", "left_semi"))


def begun(spark, state, messages, reached, of=None):
    """Return a run that has nothing to read yet."""
    return IncrementalRun(
        spark,
        state,
        jobs() if of is None else of,
        heads(messages),
        reached,
        MADE,
        lambda is_few: nullcontext(at(reading(spark, messages))),
    )


def step(spark, folder, messages, reached, *, commit=True):
    """Go on from the state to where the messages end; return what was found."""
    with stored_state.opened(folder, "a", "keys") as state:
        after = state.after
        new = [
            message
            for message in messages
            if message["global_position"] > after.get(message["category"], 0)
        ]
        taking = begun(spark, state, messages, reached)
        taking.add(made(spark, new), is_few=True)
        taking.sum_up()
        result = found(taking)
        if commit:
            taking.commit()
        return result


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(1))
def test_a_chain_of_runs_finds_what_one_run_over_everything_finds(spark, tmp_path, seed):
    """A chain of incremental runs finds the same, wherever it is cut."""
    chance = random.Random(seed)
    messages = history(chance, 48)
    letters = chance.sample(range(1, 49), 6)
    cuts = [chance.randrange(12, 36), 48, 48]
    for cut in cuts:
        reached = progress(chance, cut, letters)
        everything = found(FullRun(reading(spark, messages[:cut]), reached))
        assert step(spark, tmp_path / "state", messages[:cut], reached) == everything, (seed, cut)


@pytest.mark.parametrize("seed", seeds(2))
def test_only_suspicious_messages_are_examined(spark, seed):
    """A run that looks closely only at suspicious messages finds the same."""
    chance = random.Random(seed)
    messages = history(chance, 60)
    reached = progress(chance, 60, chance.sample(range(1, 61), 4))
    closely = found(FullRun(reading(spark, messages), reached))
    assert found(whole(spark, messages, component(), reached)) == closely


@pytest.mark.long
def test_a_run_that_dies_leaves_the_state_as_it_was(spark, tmp_path, monkeypatch):
    """Files of a run that died are removed by the next and not counted."""
    chance = random.Random(FIRST)
    messages = history(chance, 24)
    folder = tmp_path / "state"
    reached = progress(chance, 12, [])
    step(spark, folder, messages[:12], reached)
    reached = progress(chance, 24, [])
    step(spark, folder, messages, reached, commit=False)
    assert (folder / "run-000002").exists()
    assert (folder / "CURRENT").read_text().split()[0] == "run-000001"
    everything = found(FullRun(reading(spark, messages), reached))
    # Rows are brought together once they lie in too many folders.
    monkeypatch.setattr(incremental, "_FOLDERS", 1)
    assert step(spark, folder, messages, reached) == everything
    assert step(spark, folder, messages, reached) == everything
    assert not (folder / "run-000001").exists()


def test_runs_without_anything_new_leave_no_rows(spark, tmp_path):
    """Runs without new messages add no rows to the state."""
    messages = history(random.Random(FIRST), 12)
    found = []
    for reached in (6, 9):
        step(spark, tmp_path, messages, progress(random.Random(FIRST), reached, []))
        with stored_state.opened(tmp_path, "a", "keys") as state:
            found.append(state.manifest.fingerprints)
    assert found[0] == found[1]


def test_workers_write_what_is_new_or_nothing(spark, tmp_path):
    """Where Spark's workers read, a run may have nothing new."""
    messages = history(random.Random(FIRST), 12)
    reached = progress(random.Random(FIRST), 12, [])
    everything = found(FullRun(reading(spark, messages), reached))
    for new in (messages, []):
        with stored_state.opened(tmp_path / "state", "a", "keys") as state:
            taking = begun(spark, state, messages, reached)
            taking.add(made(spark, new), is_few=False)
            taking.sum_up()
            assert found(taking) == everything
            taking.commit()


def test_what_workers_write_elsewhere_is_missed(spark, tmp_path, monkeypatch):
    """A file that a worker has written and this machine does not see is no part less."""
    messages = history(random.Random(FIRST), 12)
    write = known.write_by_workers

    def elsewhere(made, sketches, folder):
        count = write(made, sketches, folder)
        next(folder.glob("*.parquet")).unlink()
        return count

    monkeypatch.setattr(known, "write_by_workers", elsewhere)
    with stored_state.opened(tmp_path / "state", "a", "keys") as state:
        taking = begun(spark, state, messages, progress(random.Random(FIRST), 12, []))
        with pytest.raises(StateError, match="is not here: Spark's workers are on other machines"):
            taking.add(made(spark, messages), is_few=False)


def test_a_message_that_became_a_dead_letter_is_judged_again(spark, tmp_path):
    """A message that became a dead letter after a position was moved is judged again."""
    messages, of = [message(1, "t-1+k", "Deposit")], component(once=Processed())
    job = EffectsJob(of)
    counts = []
    for letters in ([], [1]):
        reached = Progress({"t": Consumed(1, letters=letters)})
        new = messages if not letters else []
        with stored_state.opened(tmp_path, "a", "keys") as state:
            taking = begun(spark, state, messages, reached, [job])
            taking.add(made(spark, new, of), is_few=True)
            taking.sum_up()
            counts.append(taking.take(job))
            taking.commit()
        assert counts[-1] == FullRun(reading(spark, messages), reached).take(job)
    assert [(count["0 silent"], count["0 dead"]) for count in counts] == [(1, 0), (0, 1)]


def test_a_part_that_is_added_again_counts_once(spark, tmp_path):
    """A part of the new messages that is added again replaces itself."""
    messages = history(random.Random(FIRST), 12)
    reached = progress(random.Random(FIRST), 12, [])
    with stored_state.opened(tmp_path, "a", "keys") as state:
        taking = begun(spark, state, messages, reached)
        for part, some in ((0, messages[:5]), (0, messages[:5]), (1, messages[5:])):
            taking.add_table(made(spark, some).table(), f"batch-{part}")
        taking.sum_up()
        assert found(taking) == found(FullRun(reading(spark, messages), reached))


def test_verdicts_hang_on_more_than_keys():
    """A handler's strategy is part of what a state depends on."""

    def judged(made):
        return judged_by(Run(made, "", Path(), ""))

    assert judged(component()) == judged(component())
    assert judged(component()) != judged(component(once=Processed()))


@dataclass
class Put:
    a_id: str
    key: str
    note: str = ""


@dataclass
class PutOnce:
    a_id: str
    key: str
    note: str = "none"


PutOnce.__name__ = "Put"


def test_verdicts_hang_on_what_messages_mean():
    """On names, defaults, upcasters and key functions; and on nothing that changes by itself."""

    def made(command=Put, key=lambda command: command.key, upcast=None, **names):
        one = Component("a", id="a_id")
        one.reserve(command, into="t", key=key, **names)
        one.handle(command)(lambda command, entity, context: None)
        if upcast is not None:
            one.upcast(command, to=2, when=lambda data: "old" in data)(upcast)
        return judged_by(Run(one, "", Path(), ""))

    others = [
        made(),
        made(was="Place"),
        made(command=PutOnce),
        made(key=lambda command: command.key.lower()),
        made(key="key"),
        made(formerly="key"),
        made(upcast=lambda data: data | {"note": data["old"]}),
        made(upcast=lambda data: data | {"note": data["older"]}),
    ]
    assert len(set(others)) == len(others)
    assert made() == others[0]


def test_a_state_that_does_not_fit_is_refused(spark, tmp_path):
    """A state that does not fit is refused with what to do."""
    folder = tmp_path / "state"
    messages = history(random.Random(FIRST), 4)
    step(spark, folder, messages, progress(random.Random(FIRST), 4, []))
    for name, declaration, said in (("b", "keys", "of the component 'a', not 'b'"),):
        with pytest.raises(StateError, match=said), stored_state.opened(folder, name, declaration):
            pass
    with stored_state.opened(folder, "a", "keys") as state:
        with pytest.raises(StateError, match="in use by another run"):
            stored_state.opened(folder, "a", "keys").__enter__()
        with pytest.raises(StateError, match="another store, or messages were deleted"):
            state.check({"t": True, "a": False}, None)
    (folder / "run-000001" / "manifest.json").write_text("{")
    with (
        pytest.raises(StateError, match="cannot be read"),
        stored_state.opened(folder, "a", "keys"),
    ):
        pass
    (tmp_path / "file").touch()
    with (
        pytest.raises(StateError, match="cannot be made"),
        stored_state.opened(tmp_path / "file" / "x", "a", "keys"),
    ):
        pass

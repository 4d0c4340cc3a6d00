"""How far a run reads: the last message of each category, and what became visible behind it."""

from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path

from reservation.component import Component
from spark_jobs.archive.archive_folder import Archive
from spark_jobs.common.declaration import categories_of
from spark_jobs.common.errors import StateError
from spark_jobs.reconciliation.state.stored_state import Head, State
from spark_jobs.snapshot.snapshot import Snapshot


def found(
    component: Component,
    state: State,
    snapshot: Snapshot,
    archive: Archive | None = None,
    *,
    counts: bool = True,
) -> tuple[dict[str, Head], dict[str, int], Head]:
    """Return the last message of each category, if the state belongs to this store.

    Whether messages became visible behind what was read is seen from the number of all messages of
    the log, and the sum of their positions, which one index tells. Only if these have changed are
    the messages of the categories counted.
    """
    if state.manifest is not None:
        state.check(
            {
                category: head.message_id is None or snapshot.holds(head.position, head.message_id)
                for category, head in state.manifest.heads.items()
            },
            snapshot.store,
        )
    names = categories_of(component)
    nothing = Head(0, None)
    was = dict.fromkeys(names, nothing) if state.judged is None else state.judged.heads
    tallies = {name: was[name].tally for name in names}
    log = None if state.judged is None else state.judged.log
    if log is not None and log.position < max(head.position for head in was.values()):
        log = None
    if counts and log is not None and snapshot.log_tally(1, log.position) != log.tally:
        log = None
    if counts and state.judged is not None and log is None:
        tallies = snapshot.tallies({name: was[name].position for name in names})
    if state.manifest is not None and state.judged is None and archive is None:
        _require_all(state.folder, state.manifest.heads, snapshot)
    late = {name: was[name].position for name in names if tallies[name] != was[name].tally}
    ends = {name: _head(name, snapshot, archive) for name in names}
    if state.judged is None:
        new = snapshot.tallies({name: position for name, (position, _) in ends.items()})
    else:
        new = {
            name: snapshot.tally(name, was[name].position + 1, position)
            for name, (position, _) in ends.items()
        }
    last = {name: Head(*ends[name], tallies[name] + new[name]) for name in names}
    end, known = max(head.position for head in last.values()), log or nothing
    return last, late, Head(end, None, known.tally + snapshot.log_tally(known.position + 1, end))


def _require_all(folder: Path, heads: Mapping[str, Head], snapshot: Snapshot) -> None:
    """Make sure that the store still holds all messages that a state has read."""
    tallies = snapshot.tallies({name: head.position for name, head in heads.items()})
    lacking = sum(max(0, head.tally.count - tallies[name].count) for name, head in heads.items())
    if lacking:
        raise StateError(
            f"The state in {folder} was judged when the component declared other keys, messages or "
            f"handlers, so everything is read again, and the store lacks {lacking:,} of the "
            f"messages that it has read; read their archive too, or name another folder"
        )


def _head(category: str, snapshot: Snapshot, archive: Archive | None) -> tuple[int, str | None]:
    """Return the global position and id of a category's last message, wherever it is."""
    head = snapshot.head(category)
    return head if archive is None else max(head, archive.head(category), key=itemgetter(0))

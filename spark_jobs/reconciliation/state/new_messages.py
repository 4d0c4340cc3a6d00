"""What a run adds to a state: new messages, those that became visible late, and passes."""

from collections.abc import Mapping

from reservation.declaration.table import declarations
from spark_jobs.analysis.verdicts.fingerprints import Numbering, new_seed
from spark_jobs.common.declaration import passes_of
from spark_jobs.reconciliation.reading import late
from spark_jobs.reconciliation.reading.fingerprinting import Fingerprinting
from spark_jobs.reconciliation.reading.of_run import Reading
from spark_jobs.reconciliation.state.incremental import IncrementalRun
from spark_jobs.reconciliation.state.stored_state import State, StoredFingerprints


def made_as_before(state: State, reading: Reading) -> StoredFingerprints:
    """Return how the fingerprints of a state are made; it begins anew if they cannot be any more.

    Fingerprints of the server and of Spark cannot be compared. Those of the server need messages
    that are in the store, and a server that hashes as it did.
    """
    snapshot, archive = reading.snapshot, reading.archive
    if state.judged is not None:
        made = state.judged.fingerprints
        is_behind = archive is None or all(
            end <= state.after.get(category, 0) for category, end in archive.after.items()
        )
        if not made.is_of_server or (
            reading.server_can_hash and is_behind and snapshot.probe(made.seed) == made.probe
        ):
            return made
        state.begin_anew()
    seed = new_seed()
    if reading.server_can_hash and archive is None:
        return StoredFingerprints([], seed, is_of_server=True, probe=snapshot.probe(seed))
    return StoredFingerprints([], seed, is_of_server=False, probe=None)


def add(
    step: IncrementalRun,
    made: StoredFingerprints,
    reading: Reading,
    after: Mapping[str, int],
    behind: Mapping[str, int],
    *,
    has_new: bool = True,
) -> None:
    """Add to a run what is new since its state was written."""
    component, archive = reading.run.component, reading.archive
    declared = declarations(component)
    is_few = step.is_few and (archive is None or archive.is_small)

    def fingerprints(after: Mapping[str, int]) -> Fingerprinting:
        return reading.fingerprints(made.seed, after, is_of_server=made.is_of_server, is_few=is_few)

    if has_new:
        step.add(fingerprints(after), is_few=is_few)
    if not after:
        return
    if behind:
        found = late.positions(reading.stored(), step.known.frame(reading.spark), behind)
        at = found.toArrow()["global_position"].to_pylist()
        step.add_table(fingerprints({}).at(at), "late")
    if declared.others:
        number = Numbering.of(component).category
        subscribed = [number(name) for name in declared.subscribed_categories]
        passes = [number(name) for name in passes_of(component)]
        if places := step.possible_passes(subscribed, passes):
            step.add_table(fingerprints({}).at(places), "passes")

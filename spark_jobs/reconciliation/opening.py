"""How a run begins: over everything, or over what is new since a state was written."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

from pyspark.sql import SparkSession

from reservation.declaration.table import declarations
from spark_jobs.analysis.sketches import grouping
from spark_jobs.analysis.verdicts import fingerprints
from spark_jobs.analysis.verdicts.prefilter import Prefilter, PrefilterInput
from spark_jobs.archive import archive_folder
from spark_jobs.archive.archive_folder import Archive
from spark_jobs.common.caching import unpersisted
from spark_jobs.common.declaration import Declaration
from spark_jobs.reconciliation.full_run import FullRun
from spark_jobs.reconciliation.reading.categories import Categories
from spark_jobs.reconciliation.reading.fingerprinting import ServerFingerprints
from spark_jobs.reconciliation.reading.of_run import Reading
from spark_jobs.reconciliation.reading.union import Union
from spark_jobs.reconciliation.run import Run, app_dir, is_here, jobs, judged_by
from spark_jobs.reconciliation.state import heads, incremental, new_messages, stored_state
from spark_jobs.session.settings import OF_FEW_ROWS, having
from spark_jobs.snapshot.progress import Progress
from spark_jobs.snapshot.snapshot import Snapshot


@contextmanager
def opened(
    run: Run, snapshot: Snapshot, spark: SparkSession, *, judges: bool = True
) -> Iterator[FullRun | incremental.IncrementalRun]:
    """Open a run over everything, or over what is new since a state was written.

    The state is advanced at the end of the block.
    """
    component = run.component
    progress = snapshot.progress(component, run.grace)
    archive = _archive(run, Declaration.of(component), snapshot)
    reading = Reading(run, snapshot, spark, archive)
    if run.state is None:
        read = reading(is_few=snapshot.is_small())
        prefilter = _prefilter(run, read, progress, snapshot, archive) if judges else None
        taking = FullRun(read, progress, prefilter)
        # Few rows are left, unless all are looked at in detail.
        is_few = prefilter is not None and prefilter.sums.is_few and not run.details
        with unpersisted(taking.kept), having(spark, OF_FEW_ROWS) if is_few else nullcontext():
            yield taking
        return
    with stored_state.opened(run.state, component.name, judged_by(run)) as state:
        made = new_messages.made_as_before(state, reading)
        last, behind, log = heads.found(component, state, snapshot, archive)
        step = incremental.IncrementalRun(
            spark,
            state,
            jobs(run),
            last,
            progress,
            made,
            lambda is_few: nullcontext(reading(is_few=is_few).at),
            store=snapshot.store,
            log=log,
            everything=reading(),
        )
        new_messages.add(step, made, reading, state.after, behind)
        with unpersisted(step.kept):
            step.sum_up()
            # Few rows are left, unless all are looked at in detail.
            is_few = step.is_few_in_doubt and not run.details
            with having(spark, OF_FEW_ROWS) if is_few else nullcontext():
                yield step
            if run.verify:
                whole = reading.fingerprints(made.seed, is_of_server=made.is_of_server)
                step.check(whole, reading.archived() if made.is_of_server else None)
                snapshot.release()
            step.commit()


def _prefilter(
    run: Run,
    read: Categories | Union,
    progress: Progress,
    snapshot: Snapshot,
    archive: Archive | None,
) -> Prefilter | None:
    """Return what is in order of a component's messages, by fingerprints.

    The server makes them if possible. Where Spark would, it judges a small store as fast.
    """
    component = run.component
    if isinstance(read, Categories) and not Declaration.of(component).by_function:
        few = dataclasses.replace(read, is_here=is_here(run))
        made = ServerFingerprints(read, component, progress, fingerprints.new_seed())
        # Arrow does the work, and Spark sees few rows.
        with having(read.spark, OF_FEW_ROWS):
            return Prefilter(jobs(run), PrefilterInput(made.seen, read.at, few.at), progress)
    archived = 0 if archive is None else sum(archive.counts.values())
    is_small = snapshot.is_small() and (archive is None or archive.is_small)
    if is_small:
        return None
    of_all = fingerprints.of_messages(read, component, progress, run.app, app_dir(run))
    parts = snapshot.number_of_parts(archived)
    seen = partial(grouping.summed, of_all.mapInArrow, parts=parts)
    return Prefilter(jobs(run), PrefilterInput(seen, read.at, read.at), progress)


def _archive(run: Run, declaration: Declaration, snapshot: Snapshot) -> Archive | None:
    """Return the archive to read too; None without one."""
    if run.archive is None:
        return None
    archive = archive_folder.there(
        run.archive, run.component.name, declaration.to_json(), as_of=snapshot.time
    )
    archive.check(snapshot, declarations(run.component).command_category)
    return archive

"""The SQL scripts that make the schemas, in their order, and the versions that they make."""

import re
from importlib.resources import files

SCHEMA_VERSION = 30
MESSAGE_STORE_VERSION = "1.3.0"

MESSAGE_STORE_SCRIPTS = ("tables", "names", "indexes", "write", "read", "views", "privileges")
# Those of them that a newer version may replace.
REPLACEABLE_SCRIPTS = ("names", "write", "read", "views", "privileges")
FUNCTION_SCRIPTS = (
    "names",
    "positions",
    "identity",
    "roles",
    "reading",
    "flushing",
    "writing",
    "committing",
    "correcting",
    "retrying",
    "reserving",
    "reserving_next",
    "few_messages",
    "snapshots",
    "processed",
    "passes",
    "revisions",
    "states",
    "notice",
    "answers",
    "scheduling",
    "group",
    "http",
    "reports",
    "privileges",
)
MIGRATIONS = {
    1: "001_positions",
    2: "002_sender_categories",
    3: "003_groups",
    4: "004_snapshots",
    5: "005_processed",
    6: "006_revisions",
    7: "007_states",
    8: "008_store_identity",
    9: "009_former_names",
    10: "010_recorded_conflicts",
    11: "011_foreign_positions",
    12: "012_upgrades",
    13: "013_copied_versions",
    14: "014_corrections",
    15: "015_finding_decisions",
    16: "016_passes",
    17: "017_answers",
    18: "018_retries",
    19: "019_scheduled",
    20: "020_http_requests",
    21: "021_errors",
    22: "022_reports",
    23: "023_traces",
    24: "024_gathered",
    25: "025_batch_bytes",
    26: "026_early_release",
    27: "027_generations",
    28: "028_faster_batches",
    29: "029_ended_sessions",
    30: "030_reserving_many",
}
# Programs of this version look at `reservation.versions` alone, and refuse a higher version there.
# What they can work with is recorded in `reservation.upgrades`.
FIRST_TO_GO_ON = 11
# The versions after that which former programs cannot work with.
BREAKING: frozenset[int] = frozenset()

_FUNCTION = re.compile(
    rb"^CREATE OR REPLACE (?:FUNCTION|PROCEDURE) reservation\.(\w+)", re.MULTILINE
)


def script_text(schema: str, name: str) -> bytes:
    """Return a script.

    Args:
        schema: the schema that it is of.
        name: its name, without its ending.
    """
    return (files("reservation.store.schema.sql") / schema / f"{name}.sql").read_bytes()


def function_names() -> set[str]:
    """Return the names of the functions that the scripts make in the schema ``reservation``."""
    texts = (script_text("reservation", name) for name in FUNCTION_SCRIPTS)
    return {name.decode() for text in texts for name in _FUNCTION.findall(text)}

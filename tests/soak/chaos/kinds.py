"""The kinds of runs, and which of them a seed draws."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.soak.chaos.alone import Alone, Apart, Failing, FailingApart
from tests.soak.chaos.lines import Lines
from tests.soak.chaos.outages import Crash, Failover
from tests.soak.chaos.pooler import Pooler
from tests.soak.chaos.processes import Clock, Processes
from tests.soak.chaos.replaced import Replaced

if TYPE_CHECKING:
    from tests.soak.chaos.stores import Stores

KINDS: dict[str, Callable[["Stores", int], Any]] = {
    "alone": Alone,
    "apart": Apart,
    "failing": Failing,
    "failing apart": FailingApart,
    "failover": Failover,
    "pooler": Pooler,
    "replaced": Replaced,
    "crash": Crash,
    "processes": Processes,
    "clock": Clock,
    "lines": Lines,
}

# Of a thousand runs: the cheap kinds are many, so that ten thousand take an hour or two.
_SHARES = [450, 250, 150, 80, 25, 12, 6, 5, 18, 4, 20]


def kind_of(seed: int) -> str:
    """Return the kind of run that a seed draws."""
    return random.Random(f"kind of {seed}").choices(list(KINDS), _SHARES)[0]

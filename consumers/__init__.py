"""The long-running runtime: it reads categories and lets a component handle each message.

A program runs a component with `run`, and a test or script drains it with `drain`. All else here is
private. The packages, from the top: `supervisor`, `loop`, `batch`, `handling`, `effects`,
`calls`, `dead_letters`, `group`, `runtime`, `pauses`, `options`. Each imports only from those after
it.
"""

from consumers.failures.failure import Crashed
from consumers.program import Drained, StopEvent, drain, run

__all__ = ["Crashed", "Drained", "StopEvent", "drain", "run"]

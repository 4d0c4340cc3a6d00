"""A drawn component as a module that the command line can load."""

from pathlib import Path

from tests.reference.plans import Plan

ROOT = Path(__file__).parents[3]

# Attempts are hundredths of a second apart, so that a run is short.
_APP = """
import sys

sys.path.append({root!r})
from consumers.runtime.backoff import Backoff
from tests.reference.messages import *
from tests.reference.plans import *
from tests.reference.programs import *

Backoff.__init__.__defaults__ = (0.01, 0.1)
thing = build({plan!r}, folder={folder!r})
"""


def write_app(folder: Path, plan: Plan) -> str:
    """Write the module to a folder and return its app path."""
    calls = folder / "calls"
    calls.mkdir()
    app = _APP.format(root=str(ROOT), plan=plan, folder=str(calls))
    (folder / "chaos_app.py").write_text(app)
    return "chaos_app:thing"

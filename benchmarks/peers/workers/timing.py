"""How a worker reports when it worked."""

import json
import time


def report(start: float, end: float | None = None) -> None:
    """Print when the work began and when its last commit was, in seconds since 1970."""
    print(json.dumps({"start": start, "end": end or time.time()}))

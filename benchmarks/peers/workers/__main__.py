"""``python -m benchmarks.peers.workers PEER send COUNT``, or ``PEER work SETTING``."""

import importlib
import sys

_, peer, task, number = sys.argv
getattr(importlib.import_module(f"benchmarks.peers.workers.{peer}"), task)(int(number))

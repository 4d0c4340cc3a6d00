"""Runs seeds, one after another: ``make chaos SEEDS=100``, ``SEEDS=17..40`` or ``SECONDS=180``.

Each seed draws a kind of run, a component, its load and its faults. A violation prints the seed and
how to repeat it, keeps its evidence in build/chaos, and the whole ends with status 1.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from tests.soak.chaos.kinds import KINDS, kind_of
from tests.soak.chaos.skipping import Skipped
from tests.soak.chaos.stores import Stores

EVIDENCE = Path("build/chaos")


def main() -> int:
    """Run what was asked for; return the exit status."""
    options = _options()
    outcomes: Counter[str] = Counter()
    began = time.monotonic()
    violations = []
    with Stores() as stores:
        for seed in options.seeds:
            if options.seconds is not None and time.monotonic() - began > options.seconds:
                break
            kind = kind_of(seed) if options.kind is None else options.kind
            at = time.monotonic()
            try:
                found = stores.run(kind, seed, EVIDENCE)
            except Skipped as reason:
                print(f"seed {seed} ({kind}): skipped, {reason}", flush=True)
                outcomes[f"{kind}, skipped"] += 1
                continue
            outcomes[kind] += 1
            if sum(outcomes.values()) % 100 == 0:
                print(f"{sum(outcomes.values())} runs", flush=True)
            if options.verbose or found:
                print(f"seed {seed} ({kind}): {time.monotonic() - at:.1f} s", flush=True)
            if found:
                violations.append(seed)
                print(*(f"  {line[:500]}" for line in found[:5]), sep="\n")
                print(f"  evidence in {EVIDENCE}/{seed}; repeat it with")
                only = f" KIND={kind}" if options.kind else ""
                print(f"  make chaos SEEDS={seed}..{seed}{only}", flush=True)
                if len(violations) >= options.most:
                    break
    took = time.monotonic() - began
    print(f"{sum(outcomes.values())} runs in {took:.0f} s, {len(violations)} violations")
    for kind, count in sorted(outcomes.items()):
        print(f"  {count} {kind}")
    return 1 if violations else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.chaos", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, help="how many, or which: 17..40")
    parser.add_argument("--seconds", type=float, help="begin no run after that")
    parser.add_argument("--kind", choices=list(KINDS), help="one kind of run only")
    parser.add_argument("--most", type=int, default=1, help="stop after so many violations")
    parser.add_argument("--verbose", action="store_true", help="print every seed")
    options = parser.parse_args()
    if options.seeds is None:
        options.seeds = range(10**9) if options.seconds is not None else range(100)
    return options


def _seeds(text: str) -> range:
    first, to, last = text.partition("..")
    return range(int(first), int(last) + 1) if to else range(int(first))


if __name__ == "__main__":
    sys.exit(main())

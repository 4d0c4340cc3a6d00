"""Run mutation tests, each mutant in a copy of the tree, and print what became of them.

    python -m tests.mutation [--sample N] [--seed S] [--only NAME] [--workers N]

First the tests are run once as the code is, and it is noted which lines each reaches. Then each
mutant is put into a copy of the tree, and those tests that reach it are run, the quickest first,
until one fails. Mutants of SQL are noticed by the tests that reach the place which calls the query.
Each worker has a copy of the tree and a server of its own.
"""

import argparse
import hashlib
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any, NamedTuple

from tests.mutation import targets
from tests.mutation.mutant import Mutant
from tests.support.servers import server

ROOT = Path(__file__).parents[2]
_IGNORED = (".*", "build", "dist", "__pycache__")

# Seconds of tests that a mutant is given at most, and the seconds after which it hangs.
_ENOUGH = 15
_HANGS = 90


class Result(NamedTuple):
    """What became of a mutant: killed, survived, hung, or not reached by any test."""

    mutant: Mutant
    outcome: str


class Tree:
    """A copy of the tree, with a server, in which one mutant at a time is tested."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder / "tree"
        self._choice = folder / "chosen.json"
        copytree(ROOT, self.folder, ignore=ignore_patterns(*_IGNORED))
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(self.folder), str(self.folder / "examples")]),
            "RESERVATION_TEST_DATABASE_URL": address,
        }
        self._changes = 0
        self._running: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """End the tests that run, with all that they started."""
        if self._running is not None and self._running.poll() is None:
            os.killpg(self._running.pid, signal.SIGKILL)

    def notes(self, files: list[str]) -> dict[str, dict[str, Any]]:
        """Run the tests on the unchanged code, and return what the passing ones reach."""
        path = self._choice.with_name("notes.json")
        self._pytest(files, {"MUTATION_NOTE": str(path)}, 1800)
        notes: dict[str, dict[str, Any]] = json.loads(path.read_text())
        return notes

    def test(self, mutant: Mutant, notes: dict[str, targets.Note]) -> Result:
        """Return the result of a mutant."""
        chosen = targets.tests_of(mutant, notes, ROOT, _ENOUGH)
        if not chosen:
            return Result(mutant, "not reached")
        self._choice.write_text(json.dumps(chosen))
        path = self.folder / mutant.path
        original = path.read_bytes()
        self._write(path, mutant.applied(original))
        try:
            files = list(dict.fromkeys(test.partition("::")[0] for test in chosen))
            status = self._pytest(files, {"MUTATION_CHOOSE": str(self._choice)}, _HANGS)
        finally:
            self._write(path, original)
        # 5 means that there was none to run.
        outcomes = {0: "survived", 5: "not reached", None: "hung"}
        return Result(mutant, outcomes.get(status, "killed"))

    def _write(self, path: Path, content: bytes) -> None:
        """Write a module so that its compiled form is not reused."""
        path.write_bytes(content)
        self._changes += 1
        os.utime(path, (self._changes, self._changes))

    def _pytest(self, files: list[str], variables: dict[str, str], seconds: float) -> int | None:
        """Return pytest's exit status, or None if it took longer."""
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                *("-p", "tests.mutation.choosing"),
                *(["-x"] if "MUTATION_CHOOSE" in variables else []),
                *files,
            ],
            cwd=self.folder,
            env=self._environment | variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._running = process
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.close()
            process.wait()
            return None


def what_tests_reach(trees: list[Tree]) -> dict[str, targets.Note]:
    """Return what the tests reach, as noted for this very code, or noted now."""
    digest = hashlib.sha256()
    for folder in ("reservation", "consumers", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".sql"} and "mutation" not in path.relative_to(ROOT).parts:
                digest.update(path.read_bytes())
    kept = ROOT / "build" / "mutation" / f"{digest.hexdigest()[:16]}.json"
    if not kept.exists():
        shares = [targets.TESTS[n :: len(trees)] for n in range(len(trees))]
        with ThreadPoolExecutor() as pool:
            found = list(pool.map(Tree.notes, trees, shares))
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps({test: noted for part in found for test, noted in part.items()}))
    notes = {test: targets.Note(**note) for test, note in json.loads(kept.read_text()).items()}
    print(f"{len(notes)} tests reach them", flush=True)
    return notes


def run(
    trees: list[Tree], mutants: list[Mutant], notes: dict[str, targets.Note]
) -> Iterator[Result]:
    """Yield the result of each mutant as soon as it is known."""
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    results: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()
    for mutant in mutants:
        waiting.put(mutant)

    def work(tree: Tree) -> None:
        try:
            while True:
                results.put(tree.test(waiting.get_nowait(), notes))
        except queue.Empty:
            pass
        except BaseException as error:  # noqa: BLE001  raised where the results are taken
            results.put(error)

    for tree in trees:
        threading.Thread(target=work, args=[tree], daemon=True).start()
    for _ in mutants:
        result = results.get()
        if isinstance(result, BaseException):
            raise result
        yield result


def main() -> None:
    """Run, and print the mutants that survive and the score of each module."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--sample", type=int, help="how many mutants, chosen by chance")
    parser.add_argument("--seed", type=int, default=0, help="what chance begins with")
    parser.add_argument("--only", help="the name of one module, such as processed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()

    groups = {Path(module).name: found for module, found in targets.all_mutants(ROOT).items()}
    chosen = [
        (name, mutant) for name in groups if given.only in (None, name) for mutant in groups[name]
    ]
    if not chosen:
        parser.error(f"there is no module {given.only}; there are {', '.join(groups)}")
    total = len(chosen)
    if given.sample and given.sample < total:
        chosen = random.Random(given.seed).sample(chosen, given.sample)
    print(f"{len(chosen)} of {total} mutants, seed {given.seed}", flush=True)

    began = time.monotonic()
    names = {mutant: name for name, mutant in chosen}
    table: dict[str, Counter[str]] = {name: Counter() for name in groups}
    # After an interrupt the score is that of the finished ones.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory(
            prefix="reservation-mutation-", ignore_cleanup_errors=True
        ) as folder,
        _trees(Path(folder), given.workers) as trees,
    ):
        for mutant, outcome in run(trees, list(names), what_tests_reach(trees)):
            table[names[mutant]][outcome] += 1
            done = sum(counts.total() for counts in table.values())
            if done % 50 == 0:
                print(f"{done} done in {(time.monotonic() - began) / 60:.0f} minutes", flush=True)
            if outcome != "killed":
                print(f"{outcome}: {mutant.description(ROOT)}", flush=True)
    _report(table, time.monotonic() - began)


@contextmanager
def _trees(folder: Path, number: int) -> Iterator[list[Tree]]:
    """Give copies of the tree, each with a server of its own, while they are needed."""
    os.environ.pop("RESERVATION_TEST_DATABASE_URL", None)
    with ExitStack() as stack:
        trees = []
        for n in range(number):
            address = stack.enter_context(server("embedded"))
            trees.append(stack.enter_context(closing(Tree(folder / str(n), address))))
        yield trees


def _report(table: dict[str, Counter[str]], seconds: float) -> None:
    print("\n| module | mutants | killed | survived | score |\n| --- | --- | --- | --- | --- |")
    whole: Counter[str] = sum(table.values(), Counter())
    for name, counts in [*table.items(), ("all", whole)]:
        if mutants := counts.total():
            killed = counts["killed"] + counts["hung"]
            print(
                f"| {name} | {mutants} | {killed} | {mutants - killed} "
                f"| {100 * killed / mutants:.0f} % |"
            )
    print(f"\nin {seconds / 60:.0f} minutes")


if __name__ == "__main__":
    main()

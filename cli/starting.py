"""The console script's entry: it imports the command line, and runs it."""

from cli.common.interrupts import quietly_interrupted


def main() -> None:
    """Run the command line."""
    with quietly_interrupted():
        from cli.main import main as run
    run(prog_name="reservation")

"""A process that kills itself at a chosen point of its conversation with the server.

Run as a program it reads from standard input, line by line, at which exchange a child of its own is
to die, as if by SIGKILL, before it takes place; 0 for none. It answers with the child's end.
"""

import os
import sys

from consumers.testing.crashing.inside.cutting import Cut, die


def main(database_url: str) -> None:
    from consumers.runtime.observability.logs import configure_logs
    from reservation.postgres.connection import connect
    from shooting_range import shooting_range
    from tests.bank import claim, new_batch

    configure_logs(level="error")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            with connect(database_url, autocommit=True) as connection:
                positions = claim(connection, shooting_range.name, shooting_range.command_category)
                batch = new_batch(connection, shooting_range, shooting_range.command_category)
                Cut(connection, int(line), die)
                batch.run(positions, 100)
                os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201  it is what is asked


if __name__ == "__main__":
    main(sys.argv[1])

"""Waiting for an outcome in a thread."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from psycopg import Connection

from reservation.store.answers.listeners import Listeners, check_free
from reservation.store.answers.outcome import Outcome
from reservation.store.answers.pace import Pace
from reservation.store.answers.question import OutcomeAnswer, Question
from reservation.store.statements import Statement


def wait(
    question: Question,
    timeout: float,
    run: Callable[[Statement[OutcomeAnswer]], OutcomeAnswer],
    connected: Callable[[], AbstractContextManager[Connection[Any]]],
    listeners: Listeners,
    *,
    has_pool: bool,
) -> Outcome:
    """Ask until it is decided what became of a command, or the time is over."""
    pace = Pace(timeout)
    if not has_pool:  # a pool commits after each statement
        with connected() as connection:
            check_free(connection)
    listener = None
    try:
        while True:
            answer = run(question.statement())
            if answer.outcome.is_settled or pace.is_over:
                return answer.outcome
            if answer.notices and listener is None:
                with connected() as connection:
                    listener = listeners.take(question.category, connection)
            if answer.notices and listener is not None:
                pause = pace.pause(notices=listener.missing is None)
                listener.wait(pause, poll=pause)
            else:
                time.sleep(pace.pause(notices=False))
    finally:
        if listener is not None:
            listeners.give_back(question.category, listener, keep=has_pool)

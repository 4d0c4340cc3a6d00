"""Verdicts on a handler from the difference of two runs."""

import json
import re
import time
from collections.abc import Iterable, Sequence

from consumers.testing.crashing.contents import ContentDifference, shortened
from consumers.testing.crashing.orders import Called, Observed
from consumers.testing.crashing.report import Bug, BugKind

_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.I)
_TIME = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2})?|\d{2}:\d{2}:\d{2}")
_PLACE = re.compile(r"<position of ([^>]*)/(\d+)>")
_CAUSE = re.compile(r'"causationMessagePosition": (\d+).*?"causationMessageStreamName": "([^"]*)"')

# Seconds by which a number may be off the clock and still count as read from it.
_NEAR = 86_400
_UNITS = (1, 1_000, 1_000_000, 1_000_000_000)


class Handlers:
    """Finds the handler behind a difference, as a run without a kill has shown.

    Attributes:
        component: what stands for the handler where none can be made out.
    """

    def __init__(self, component: str, calls: Sequence[Called]) -> None:
        self.component = f"the component {component}"
        self._calls = {call.place: call for call in calls}
        self._with_statements = sorted({call.handler for call in calls if call.statements})

    def of(self, difference: ContentDifference) -> tuple[str, str]:
        """Return the handler, and the message that it handled, in words."""
        call = self._call(difference)
        if call is not None:
            return call.handler, f"call {call.number}, of {call.message}"
        if difference.message is None and self._with_statements:
            return " or ".join(self._with_statements), "a statement on context.connection"
        return self.component, "no call of a handler"

    def _call(self, difference: ContentDifference) -> Called | None:
        if difference.message is not None:
            cause = difference.message.causation
            return self._calls.get(cause) if cause is not None else None
        for stream, position in _PLACE.findall(difference.row):
            if (stream, int(position)) in self._calls:
                return self._calls[stream, int(position)]
        for position, stream in _CAUSE.findall(difference.row):
            if (stream, int(position)) in self._calls:
                return self._calls[stream, int(position)]
        return None


class Verdicts:
    """The findings so far, one for each kind and handler.

    Attributes:
        findings: in the order in which they were made.
    """

    def __init__(self, handlers: Handlers) -> None:
        self.findings: list[Bug] = []
        self._handlers = handlers
        self._unstable: set[tuple[str, str]] = set()
        self._shared: dict[str, list[str]] = {}

    def observed(self, records: Iterable[Observed]) -> None:
        """Take what was seen of calls."""
        for record in records:
            kind = BugKind(record.kind)
            if kind is BugKind.GLOBAL_STATE:  # evidence only: a cache does no harm
                self._shared.setdefault(record.handler, []).append(record.what)
            else:
                where = f"call {record.call}, of {record.message}"
                self._add(kind, record.handler, where, record.what)

    def repeated(self, found: Iterable[ContentDifference]) -> None:
        """Take what differs between two runs with nothing different about them."""
        for difference in found:
            self._judge(difference, _unstable_kind(difference), "two equal runs")

    def reseeded(self, found: Iterable[ContentDifference], where: str) -> None:
        """Take what differs with another hash seed."""
        for difference in found:
            self._judge(difference, BugKind.RANDOM_ORDER, where)

    def batched(self, found: Iterable[ContentDifference], where: str) -> None:
        """Take what differs between messages that share a batch, and those that do not.

        Effects are written once a batch is decided on, so a handler that itself reads those of an
        earlier message of its batch does not see them.
        """
        for difference in found:
            self._judge(difference, BugKind.IGNORED_VERSION, where)

    def fresh(self, found: Iterable[ContentDifference], where: str) -> None:
        """Take what differs where each message is handled in a process of its own."""
        for difference in found:
            self._judge(difference, BugKind.GLOBAL_STATE, where)

    def killed(self, found: Iterable[ContentDifference], where: str) -> None:
        """Take what differs after a kill."""
        for difference in found:
            self._judge(difference, BugKind.NOT_REPEATABLE, where)

    def failed(
        self, found: Iterable[ContentDifference], where: str, swallowed: Called | None
    ) -> None:
        """Take what differs after a statement failed, and the call that went on in spite of it."""
        for difference in found:
            if swallowed is not None and not self._is_known(difference):
                what = f"returns although a statement failed, and then {difference}"
                self._note(difference)
                self._add(BugKind.SWALLOWED_ERROR, swallowed.handler, where, what)
            else:
                self._judge(difference, BugKind.NOT_REPEATABLE, where)

    def raced(self, found: Iterable[ContentDifference], where: str, handlers: str) -> None:
        """Take what differs where two messages were handled at the same time, and by whom."""
        for difference in found:
            if difference.message is None and not self._is_known(difference):
                self._note(difference)
                self._add(BugKind.IGNORED_VERSION, handlers, where, str(difference))
            else:
                self._judge(difference, BugKind.IGNORED_VERSION, where)

    def repeated_outside(self, where: str, first: str, second: str) -> None:
        """Take another state of the world outside."""
        what = f"what effects= returns differs: {shortened(first)} and {shortened(second)}"
        self._add(BugKind.OUTSIDE_EFFECT, self._handlers.component, where, what)

    def unknown(self, found: Iterable[ContentDifference]) -> list[ContentDifference]:
        """Return the differences that nothing has shown before."""
        return [difference for difference in found if not self._is_known(difference)]

    def _judge(self, difference: ContentDifference, kind: BugKind, where: str) -> None:
        if self._is_known(difference):
            return
        self._note(difference)
        handler, at = self._handlers.of(difference)
        what = str(difference)
        shared = self._shared.get(handler, [])
        if kind in (BugKind.GLOBAL_STATE, BugKind.NOT_REPEATABLE) and shared:
            kind = BugKind.GLOBAL_STATE
            what = f"{', '.join(dict.fromkeys(shared))}; {what}"
            if all("class attribute" in one or "default argument" in one for one in shared):
                kind = BugKind.MUTATION
        self._add(kind, handler, f"{where}, {at}", what)

    def _is_known(self, difference: ContentDifference) -> bool:
        return self._key(difference) in self._unstable

    def _note(self, difference: ContentDifference) -> None:
        self._unstable.add(self._key(difference))

    def _key(self, difference: ContentDifference) -> tuple[str, str]:
        """Return what is the same for the same field of all messages of a handler."""
        handler = self._handlers.of(difference)[0] if difference.message is not None else ""
        return handler, difference.field

    def _add(self, kind: BugKind, handler: str, where: str, what: str) -> None:
        if not any((one.kind, one.handler) == (kind, handler) for one in self.findings):
            self.findings.append(Bug(kind, handler, where, what))


def _unstable_kind(difference: ContentDifference) -> BugKind:
    """Return what makes a value differ although nothing is different."""
    first, second = difference.first or "", difference.second or ""
    if difference.first is None or difference.second is None:
        return BugKind.OWN_ID if _UUID.search(first + second) else BugKind.NOT_REPEATABLE
    if _UUID.sub("", first) == _UUID.sub("", second):
        return BugKind.OWN_ID
    if all(map(_TIME.search, (first, second))) or all(map(_is_now, (first, second))):
        return BugKind.OWN_CLOCK
    return BugKind.OWN_ID


def _is_now(text: str) -> bool:
    """Return whether a value of JSON is the time of the clock, in seconds or parts of them."""
    try:
        value = float(json.loads(text))
    except (ValueError, TypeError):
        return False
    return any(abs(value / unit - time.time()) < _NEAR for unit in _UNITS)

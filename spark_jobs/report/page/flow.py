"""The pictures of messages that are handled, after H. R. Sankey's of a steam engine.

The stream runs along one side and what is lost bends away from it; widths are in proportion to
counts. On a narrow page it runs downwards, which is the same picture with x and y exchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from spark_jobs.common.result import Report
from spark_jobs.report.page.svg import add, drawing
from spark_jobs.report.words import compact, share

_CIRCLE = 0.5523  # the length of the handles of a Bézier curve for a quarter of a circle
_THINNEST = 2.0  # so that the smallest flow is visible
_NODE = 9.0


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of the stream.

    Attributes:
        label: what it is called.
        count: how many commands it is.
        tone: the class that colours it: calm, waiting or alarming.
    """

    label: str
    count: int
    tone: str


@dataclass(frozen=True, slots=True)
class FlowStage:
    """One stage of the stream, and what leaves it before the next.

    Attributes:
        label: what it is called.
        count: how many commands reach it.
        note: what else is to be said of them; may be empty.
        losses: those that are some.
        besides: how many more flow through it, of which the note tells.
    """

    label: str
    count: int
    note: str
    losses: Sequence[Loss]
    besides: int = 0

    @property
    def width(self) -> int:
        """How many flow through it."""
        return self.count + self.besides


def stages(report: Report) -> list[FlowStage]:
    """Return the way of a report's commands, from sent to handled.

    Commands that start their entity's stream are handled with their reservation. Those without a
    key cannot be reserved, and so are among the pending and the dead.
    """
    sums = {
        name: sum(getattr(counts, name) for counts in report.categories)
        for name in (
            "commands",
            "keys",
            "keyless",
            "duplicates",
            "conflicts",
            "reserved",
            "missing",
            "pending",
            "dead",
        )
    }
    way = [
        FlowStage(
            "commands",
            sums["commands"],
            "",
            _some(
                Loss("conflicts", sums["conflicts"], "alarming"),
                Loss("duplicates", sums["duplicates"], "calm"),
            ),
        ),
        FlowStage(
            "distinct keys",
            sums["keys"],
            f"and {compact(sums['keyless'])} without a key" if sums["keyless"] else "",
            _some(
                Loss("missing", sums["missing"], "alarming"),
                Loss("dead letters", sums["dead"], "dead"),
                Loss("pending", sums["pending"], "waiting"),
            ),
            besides=sums["keyless"],
        ),
    ]
    after = [
        Loss("unhandled", sum(effects.unhandled for effects in report.effects), "alarming"),
        Loss("dead letters", sum(effects.dead for effects in report.effects), "dead"),
        Loss("pending", sum(effects.pending for effects in report.effects), "waiting"),
    ]
    followed = {effects.category for effects in report.effects}
    at_once = sum(
        counts.reserved
        for counts in report.categories
        if counts.initiates and counts.reservation_category not in followed
    )
    silent = sum(effects.silent for effects in report.effects)
    handled = at_once + silent + sum(effects.handled for effects in report.effects)
    way.append(FlowStage("reserved", sums["reserved"], "", _some(*after)))
    if report.effects or at_once:
        note = f"{compact(silent)} without a trace" if silent else ""
        way.append(FlowStage("handled", handled, note, ()))
    return way


def subscribed_stages(report: Report) -> list[FlowStage]:
    """Return the way of the messages that a report's component subscribes to."""
    sums = {
        name: sum(getattr(counts, name) for counts in report.subscriptions)
        for name in ("subscribed", "handled", "passed", "pending", "unhandled", "dead")
    }
    losses = (
        Loss("unhandled", sums["unhandled"], "alarming"),
        Loss("dead letters", sums["dead"], "dead"),
        Loss("pending", sums["pending"], "waiting"),
    )
    note = f"{compact(sums['passed'])} passed" if sums["passed"] else ""
    return [
        FlowStage("subscribed messages", sums["subscribed"], "", _some(*losses)),
        FlowStage("handled", sums["handled"] + sums["passed"], note, ()),
    ]


def _some(*losses: Loss) -> tuple[Loss, ...]:
    return tuple(loss for loss in losses if loss.count)


def describe(way: Sequence[FlowStage]) -> str:
    """Return the picture in words."""
    sentences = []
    for stage in way:
        losses = ", ".join(f"{loss.count:,} {loss.label}" for loss in stage.losses)
        note = f" ({stage.note})" if stage.note else ""
        sentences.append(
            f"{stage.count:,} {stage.label}{note}" + (f", less {losses}" if losses else "")
        )
    return "; ".join(sentences) + "."


@dataclass(frozen=True, slots=True)
class _Layout:
    """The layout, along the stream and across it, in pixels."""

    downwards: bool
    width: float
    thickest: float
    lane: float  # the least room along the stream that a loss takes
    lead: float  # from a stage to its first loss
    apart: float  # the least from one stage to the next
    across: float  # where the stream begins across its direction
    along: float  # where the first stage is
    losses_end: float  # where the losses end, across

    def path(self, *segments: tuple[str, list[tuple[float, float]]]) -> str:
        """Return a path whose points are (along, across)."""
        return " ".join(letter + " ".join(map(self._point, points)) for letter, points in segments)

    def _point(self, point: tuple[float, float]) -> str:
        along, across = point
        x, y = (across, along) if self.downwards else (along, across)
        return f"{x:.1f},{y:.1f}"


_WIDE = _Layout(False, 960, 120, 76, 26, 270, 62, 0, 274)
_NARROW = _Layout(True, 360, 96, 46, 40, 84, 0, 4, 170)


def draw(
    way: Sequence[FlowStage], *, narrow: bool = False, title: str = "From command to effect"
) -> Element:
    """Return the picture."""
    layout = _NARROW if narrow else _WIDE
    scale = layout.thickest / max(1, *(_through(stage, after) for stage, after in _pairs(way)))
    starts = [layout.along]
    for stage in way[:-1]:
        room = layout.lead + sum(
            max(layout.lane, _thick(loss.count, scale)) + 8 for loss in stage.losses
        )
        starts.append(starts[-1] + max(layout.apart, room + (12 if narrow else 0)))
    if not narrow:  # spread the stages over the whole width
        end = layout.width - _NODE
        starts = [at * end / starts[-1] if starts[-1] else 0 for at in starts]
    lost = any(stage.losses for stage in way)
    end = starts[-1] + 48 if narrow else (layout.losses_end + 56 if lost else 200)
    picture = drawing(
        layout.width,
        end,
        title,
        describe(way),
        f"flow {'narrow' if narrow else 'wide'}",
    )
    for number, (stage, after) in enumerate(_pairs(way)):
        _draw_stage(picture, layout, starts, number, stage, after, scale, way[0])
    return picture


def _pairs(way: Sequence[FlowStage]) -> list[tuple[FlowStage, int]]:
    """Return each stage with how many go on to the next one."""
    going = [*(stage.width for stage in way[1:]), 0]
    return list(zip(way, going, strict=True))


def _through(stage: FlowStage, after: int) -> int:
    return max(stage.width, after + sum(loss.count for loss in stage.losses))


def _thick(count: int, scale: float) -> float:
    return max(_THINNEST, count * scale) if count else 0.0


def _draw_stage(
    picture: Element,
    layout: _Layout,
    starts: Sequence[float],
    number: int,
    stage: FlowStage,
    after: int,
    scale: float,
    whole: FlowStage,
) -> None:
    """Draw what flows out of a stage, then the stage, then what both are called."""
    along, top = starts[number], layout.across
    near = along + _NODE
    main = _thick(after, scale)
    if number + 1 < len(starts) and main:
        far = starts[number + 1]
        shape = [(near, top), (far, top), (far, top + main), (near, top + main)]
        band = add(
            picture, "path", class_="stream", d=layout.path(("M", shape[:1]), ("L", shape[1:]))
        )
        add(band, "title", f"{after:,} go on")
    # The outermost turns first, so that no loss crosses another.
    offset = top + main + sum(_thick(loss.count, scale) for loss in stage.losses)
    turn = near + layout.lead
    for loss in reversed(stage.losses):
        thick = _thick(loss.count, scale)
        offset -= thick
        room = max(layout.lane, thick)
        middle = turn + room / 2
        _draw_loss(picture, layout, near, offset, thick, middle, loss, whole)
        turn += room + 8
    height = max(
        _thick(stage.width, scale),
        main + sum(_thick(loss.count, scale) for loss in stage.losses),
        _THINNEST,
    )
    corners = [(along, top), (near, top), (near, top + height), (along, top + height)]
    add(picture, "path", class_="node", d=layout.path(("M", corners[:1]), ("L", corners[1:])) + "Z")
    _label_stage(picture, layout, along, top + height, number + 1 == len(starts), stage)


def _draw_loss(
    picture: Element,
    layout: _Layout,
    near: float,
    offset: float,
    thick: float,
    middle: float,
    loss: Loss,
    whole: FlowStage,
) -> None:
    """Draw one loss: it leaves the stage, turns in a quarter of a circle, and ends."""
    inner = 12.0
    outer = inner + thick
    turn = middle - thick / 2 - inner
    low, end = offset + thick, layout.losses_end
    shape = layout.path(
        ("M", [(near, offset)]),
        ("L", [(turn, offset)]),
        (
            "C",
            [
                (turn + outer * _CIRCLE, offset),
                (turn + outer, low + inner - outer * _CIRCLE),
                (turn + outer, low + inner),
            ],
        ),
        ("L", [(turn + outer, end), (turn + inner, end), (turn + inner, low + inner)]),
        (
            "C",
            [
                (turn + inner, low + inner - inner * _CIRCLE),
                (turn + inner * _CIRCLE, low),
                (turn, low),
            ],
        ),
        ("L", [(near, low)]),
    )
    band = add(picture, "path", class_=f"loss {loss.tone}", d=shape + "Z")
    part = share(loss.count, whole.count)
    add(band, "title", f"{loss.count:,} {loss.label}, {part} of the {whole.label}")
    count = f"{loss.count:,}" if loss.count < 10_000_000 else compact(loss.count)
    if layout.downwards:
        x, y = end + 9, middle
        add(picture, "text", loss.label, x=x, y=y - 3, class_="name")
        add(picture, "text", f"{count} · {part}", x=x, y=y + 14, class_="note")
    else:
        for line, (text, class_) in enumerate(
            ((loss.label, "name"), (count, "count"), (part, "note"))
        ):
            y = end + 17 + 17 * line
            add(picture, "text", text, x=middle, y=y, class_=class_, text_anchor="middle")


def _label_stage(
    picture: Element, layout: _Layout, along: float, edge: float, last: bool, stage: FlowStage
) -> None:
    """Write what a stage is called: above it, or beside it where the stream runs downwards."""
    count = f"{stage.count:,}" if stage.count < 1_000_000_000 else compact(stage.count)
    if layout.downwards:
        x = edge + 12
        add(picture, "text", count, x=x, y=along + 10, class_="big")
        words = f"{stage.label} · {stage.note}" if stage.note else stage.label
        add(picture, "text", words, x=x, y=along + 28, class_="name")
        return
    x, anchor = (along + _NODE, "end") if last else (along, "start")
    add(picture, "text", count, x=x, y=30, class_="big", text_anchor=anchor)
    words = f"{stage.label} · {stage.note}" if stage.note else stage.label
    add(picture, "text", words, x=x, y=50, class_="name", text_anchor=anchor)

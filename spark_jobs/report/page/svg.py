"""Inline SVG: elements whose text and attributes are escaped, and what all pictures share."""

from xml.etree.ElementTree import Element, SubElement, tostring

from markupsafe import Markup

from spark_jobs.report.words import shown


def drawing(width: float, height: float, title: str, description: str, class_: str) -> Element:
    """Return an empty picture with a title and a description for screen readers.

    It is scaled to the room that it gets; its units are pixels where it has all of them.
    """
    picture = Element("svg", {"viewBox": f"0 0 {_text(width)} {_text(height)}", "role": "img"})
    picture.set("class", class_)
    add(picture, "title", title)
    add(picture, "desc", description)
    return picture


def add(parent: Element, tag: str, text: str | None = None, **attributes: object) -> Element:
    """Add an element."""
    written = {
        name.rstrip("_").replace("_", "-"): _text(value) for name, value in attributes.items()
    }
    element = SubElement(parent, tag, written)
    if text is not None:
        element.text = shown(text)
    return element


def markup(picture: Element) -> Markup:
    """Return a picture as it stands in a page."""
    return Markup(tostring(picture, encoding="unicode"))  # noqa: S704  the serialiser escaped it


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return str(value)

"""What the site needs beside the pages: links into the repository, and the commands' help texts."""

import inspect
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any

import click

from cli.main import main

# Any: what MkDocs hands to a hook, which is installed for `make docs` alone.

_LINK = re.compile(r"\]\((?P<path>(?:\.\./)+[^)#\s]+)(?P<heading>#[^)\s]*)?\)")
_COMMANDS = "<!-- commands -->"


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Replace links to files outside of the documentation's folder, and insert the commands.

    Args:
        markdown: the text of the page.
        page: the page.
        config: the configuration, with the address of the repository.

    Returns:
        The text in which these links lead to the repository, with the commands in their place.
    """
    folder = PurePosixPath("docs", page.file.src_uri).parent

    def replaced(link: re.Match[str]) -> str:
        target = normpath(folder / link["path"])
        if target.startswith("docs/"):
            return link[0]
        return f"]({config.repo_url}/blob/main/{target}{link['heading'] or ''})"

    markdown = _LINK.sub(replaced, markdown)
    if _COMMANDS in markdown:
        markdown = markdown.replace(_COMMANDS, "\n".join(_described(main, "reservation", None)))
    return markdown


def _described(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    """Give the lines for a command and those below it."""
    context = click.Context(command, info_name=name, parent=parent)
    depth = "##" if parent is None else "###"
    yield from (f"{depth} {context.command_path}", "")
    yield from ("```text", " ".join(command.get_usage(context).split()), "```", "")
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(command.help or "")):
        yield from (_paragraph(paragraph), "")
    records = [one.get_help_record(context) for one in command.get_params(context)]
    options = [record for record in records if record is not None and record[1]]
    if options:
        yield from ("| option | |", "| --- | --- |")
        for record in options:
            yield f"| `{_cell(record[0])}` | {_escaped(_cell(record[1]))} |"
        yield ""
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            yield from _described(command.commands[below], below, context)


def _paragraph(text: str) -> str:
    """Return a paragraph of a help text; one with its own line breaks is shown as it is."""
    if text.startswith("\b"):
        return f"```text\n{text.removeprefix(chr(8)).strip(chr(10))}\n```"
    return _escaped(" ".join(text.split()))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _escaped(text: str) -> str:
    return re.sub(r"([*\[\]])", r"\\\1", text.replace("<", "&lt;"))

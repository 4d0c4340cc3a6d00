"""Lead links that leave the documentation to the repository, where the files are."""

import re
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any

# Any: what MkDocs hands to a hook, which is installed for `make docs` alone.

_LINK = re.compile(r"\]\((?P<path>(?:\.\./)+[^)#\s]+)(?P<heading>#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Replace links to files outside of the documentation's folder.

    Args:
        markdown: the text of the page.
        page: the page.
        config: the configuration, with the address of the repository.

    Returns:
        The text in which these links lead to the repository.
    """
    folder = PurePosixPath("docs", page.file.src_uri).parent

    def replaced(link: re.Match[str]) -> str:
        target = normpath(folder / link["path"])
        if target.startswith("docs/"):
            return link[0]
        return f"]({config.repo_url}/blob/main/{target}{link['heading'] or ''})"

    return _LINK.sub(replaced, markdown)

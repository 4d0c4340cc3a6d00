"""The glossary has the words of the public names, commands and options, each once."""

import ast
import importlib
import re
from collections import Counter
from pathlib import Path

import click

from cli.main import main
from tests.support.pages import ROOT
from tests.unit.test_public import PUBLIC

# English, and words of PostgreSQL, Python, Spark and of command lines in general.
ORDINARY = """
address after again all allowed app apply async base based before bytes check class clock commit
completion conf connection count crash data database debug declaration decode demo details dir
drop dry embedded encode error everywhere expected expired fail failed file forget full given global
grants group handled header html http id identifier import in install json junit keep key keyed
kind later level limit list lock log lost master member memory message metrics missing name no
not object older on only open operator output package path port prepare prometheus proxy read
reason refused remote repair report request reset result right run sample schema seed sequence
serialization server session set show since size source spark start statement status stop store
stored strategy test than time timeout to token type unavailable unknown url user uuid values
verify version warn watch with write yes
"""


def _rows() -> list[tuple[str, str]]:
    page = (ROOT / "docs/explanation/glossary.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", page, re.MULTILINE)
    return [(word, meaning) for word, meaning in rows if word not in ("word", "---")]


def _stem(word: str) -> str:
    """Return what forms of a word have in common."""
    return re.sub(
        r"(l?ations?|led|ence|ency|ings?|ions?|e?d|e?rs?|es|e|(?<!s)s)$", "", word.lower()
    )


def _words(name: str) -> list[str]:
    return re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)


def _named() -> dict[str, str]:
    """Return the words of public names, commands and options, each with one of these."""
    found = {}
    for module in PUBLIC:
        public = importlib.import_module(module)
        for name in getattr(public, "__all__", ()):
            found.update(dict.fromkeys(map(str.lower, _words(name)), f"{module}.{name}"))
    waiting: list[tuple[str, click.Command]] = [("reservation", main)]
    while waiting:
        path, command = waiting.pop()
        options = [option for one in command.params for option in one.opts if option[:2] == "--"]
        for option in options:
            found.update(dict.fromkeys(map(str.lower, _words(option)), f"{path} {option}"))
        for name, one in getattr(command, "commands", {}).items():
            found.update(dict.fromkeys(map(str.lower, _words(name)), f"{path} {name}"))
            waiting.append((f"{path} {name}", one))
    return found


def test_each_word_has_one_meaning_and_each_meaning_one_word():
    """No word and no meaning stands twice, and the words are in order."""
    words, meanings = zip(*_rows(), strict=True)
    assert len({*words}) == len(words)
    assert len({*meanings}) == len(meanings)
    assert list(words) == sorted(words, key=str.lower)


def test_every_public_word_is_in_the_glossary():
    """The words of names, commands and options are there, or ordinary English."""
    page = " ".join(word for word, _ in _rows())
    known = {_stem(word) for word in _words(page)} | {_stem(word) for word in _words(ORDINARY)}
    unknown = {word: place for word, place in _named().items() if _stem(word) not in known}
    assert unknown == {}


def test_no_two_classes_have_one_name():
    """A class of the product is found by its name alone; a private one is its module's."""
    packages = map(importlib.import_module, ("reservation", "consumers", "cli", "spark_jobs"))
    folders = [Path(package.__file__).parent for package in packages]
    # The wheel has the examples within `cli`.
    paths = [p for one in folders for p in one.rglob("*.py") if "examples" not in p.parts]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert len(names) > 400
    assert [name for name, times in names.items() if times > 1 and name[0] != "_"] == []


def test_the_pages_stay_short():
    """All pages but the two generated ones have 35,000 words outside of examples at most."""
    generated = {"cli.md", "api.md"}
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name not in generated]
    prose = [re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL) for path in pages]
    words = [word for text in prose for word in text.split() if re.search(r"\w", word)]
    assert 10_000 < len(words) <= 35_000

"""The examples for data pipelines: their commands exist, and the contract names all findings."""

import re

import pytest
from ruamel.yaml import YAML

from spark_jobs.common.result import VIOLATIONS
from tests.support.commands import parsed
from tests.support.pages import ROOT, blocks

PAGE = ROOT / "docs/how-to/pipelines.md"
COMMANDS = re.findall(r'^COMMAND = "(.*)"$', PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("tool", range(2), ids=["airflow", "dagster"])
def test_the_command_can_be_given(tool, tmp_path):
    """The command that a tool starts is valid with its options and values."""
    program, *arguments = COMMANDS[tool].split()
    # The folders are the reader's.
    parsed(*(str(tmp_path) if word.startswith("/") else word for word in arguments))
    assert program.endswith("reservation")


def test_the_contract_has_every_finding():
    """The contract of the page allows each kind of finding and no other."""
    _, contract = (YAML(typ="safe").load(block.text) for block in blocks(PAGE, "yaml"))
    (column,) = (column for column in contract["columns"] if column["name"] == "finding")
    (check,) = column["checks"]
    assert check["invalid"]["valid_values"] == list(VIOLATIONS)

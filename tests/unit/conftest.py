"""No server: what needs one belongs in another folder."""

import pytest


@pytest.fixture(scope="session")
def server_url() -> str:
    """Refuse a server, and with it every fixture that needs one."""
    pytest.fail("tests/unit is for what needs no database; see docs/contributing/tests.md")

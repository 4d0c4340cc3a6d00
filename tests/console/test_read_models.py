"""Read models in the console: they are consumers like others."""

import pytest
from starlette.testclient import TestClient

import consumers
from tests.apps.occupancy import book, one_by_one
from tests.console.conftest import built, signed_in
from tests.support.read_models import component


@pytest.mark.parametrize("declared", [True, False])
def test_pages_show_a_read_model(database_url, store, declared):
    """Whether the console knows its declaration or not."""
    model = one_by_one(attempts=1)
    book(store, 1, 2)
    book(store, 3, rooms=13, booking="bad")
    consumers.drain(model, database_url)
    components = (component(model),) if declared else ()
    with TestClient(built(database_url, components=components)) as client:
        signed_in(client)
        for path in ("/", "/consumers", "/dead-letters"):
            page = client.get(path)
            assert page.status_code == 200
            assert "occupancy_1" in page.text
        assert "booking-bad" in client.get("/dead-letters").text

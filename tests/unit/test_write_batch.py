"""What is written together, before it is sent."""

import pytest

from reservation import Write
from reservation.errors import StoreError
from reservation.store.writing import batch
from reservation.store.writing.batch import WriteBatch
from tests.support.controls import COMMANDS, deposit


@pytest.mark.parametrize("text", ["d" * 300, "\N{GRINNING FACE}" * 75], ids=["ASCII", "others"])
def test_a_batch_that_is_too_long_for_the_server_is_refused(monkeypatch, text):
    """A batch that is too long is refused; its messages can be written one by one."""
    writes = [Write(deposit(f"{n}{text}"), COMMANDS) for n in range(4)]
    monkeypatch.setattr(batch, "MOST_BYTES", 1600)
    with pytest.raises(StoreError, match=r"The 4 messages are \d+ bytes long together.* batches"):
        WriteBatch(writes, 1000)
    assert [len(WriteBatch([write], 1000).rows) for write in writes] == [1, 1, 1, 1]

"""Random stores, as many as asked for, judged in each mode of a run and by the oracle.

``RESERVATION_TEST_SEED`` says with which seed to begin, ``RESERVATION_TEST_SEEDS`` how many to try.
"""

import os

import pytest

from tests.spark.builders import head
from tests.support.chance import seeds

pytestmark = pytest.mark.timeout(900)  # each store is judged many times

SEEDS = seeds(int(os.environ.get("RESERVATION_TEST_SEEDS", "5")))
# Of what nobody reads, as many pages as make a store large.
LARGE = """
ALTER TABLE message_store.messages SET (fillfactor = 10);
INSERT INTO message_store.messages (stream_name, position, type, data)
SELECT 'large-1', n, 'Large', jsonb_build_object('text', repeat(md5(n::text), 30))
FROM generate_series(1, 9000) AS n;
ANALYZE message_store.messages;
"""


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_each_mode_counts_and_finds_what_the_docs_say(judging, connection, seed, is_large):
    """The same in full, from states, with an archive and by a follower, while the store goes on."""
    planting = judging.planted(seed)
    if is_large:
        connection.execute(LARGE)
    planting.messages(60)
    judging.consumers_go_on()
    expected = judging.answer()
    assert judging.full() == expected
    assert judging.state("state") == expected

    planting.messages(15)
    planting.messages(10, behind=True)
    judging.consumers_go_on()
    expected = judging.answer()
    assert judging.full() == expected
    assert judging.state("state") == expected
    assert judging.state("earlier") == expected
    judging.archive()
    with_archive = ("--archive", judging.archived)

    planting.messages(15)
    planting.messages(5, behind=True)
    judging.consumers_go_on()
    expected = judging.answer()
    assert judging.full(*with_archive) == expected
    for name in ("state", "earlier", "earlier", "new"):
        assert judging.state(name, *with_archive) == expected, name
    assert judging.followed("earlier") == expected[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_states_find_what_has_changed(judging, connection, seed):
    """States find the same from what has changed alone, while consumers only go on."""
    planting = judging.planted(seed)
    planting.messages(60)
    judging.consumers_go_on()
    assert judging.state("state") == judging.answer()
    for stage in range(1, 6):
        planting.messages(8, behind=stage == 3)
        planting.further(head(connection))
        planting.passes(3)
        expected = judging.answer()
        assert judging.state("state") == expected
        assert judging.followed("followed") == expected[0]

"""A random store, judged in each mode of a run and by SQL that was written from the docs.

`tests/soak/spark/test_random_stores.py` does this and more, with as many as it is asked for.
"""

from spark_jobs.common.result import VIOLATIONS


def test_each_mode_counts_and_finds_what_the_docs_say(judging):
    """In full, from a state, with an archive and by a follower, while the store goes on."""
    planting = judging.planted(19)
    planting.messages(80)
    judging.consumers_go_on()
    expected = judging.answer()
    assert judging.kinds == {*VIOLATIONS}
    assert judging.full() == expected
    assert judging.state("state") == expected

    planting.messages(15)
    planting.messages(10, behind=True)
    judging.consumers_go_on()
    expected = judging.answer()
    assert judging.state("state") == expected
    judging.archive()
    with_archive = ("--archive", judging.archived)

    planting.messages(10)
    planting.messages(5, behind=True)
    judging.consumers_go_on()
    expected = judging.answer()
    assert judging.full(*with_archive) == expected
    assert judging.state("state", *with_archive) == expected
    assert judging.followed("state") == expected[0]


def test_a_run_since_a_position_finds_what_a_full_one_finds_there(judging):
    """Of what belongs to new messages; older ones are found by the indexes of the store."""
    planting = judging.planted(19)
    planting.messages(80)
    since = judging.head() + 1
    planting.messages(40)
    judging.consumers_go_on()
    expected, (_, found) = judging.answer()[1], judging.full("--since", since)
    assert {*found} < {*expected}
    assert [one for one in found if one[1] >= since] == [one for one in expected if one[1] >= since]

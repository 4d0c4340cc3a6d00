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
    assert judging.state("state", "--verify") == expected
    judging.archive()
    with_archive = ("--archive", judging.archived)

    planting.messages(10)
    planting.messages(5, behind=True)
    judging.consumers_go_on()
    expected = judging.answer()
    assert judging.full(*with_archive) == expected
    assert judging.state("state", *with_archive, "--verify") == expected
    assert judging.followed("state") == expected[0]

"""What `spark prepare` has Java load: all that a run does, without a database."""

from spark_jobs.jobs.prepare import rehearse


def test_a_rehearsal_does_what_a_run_does(spark):
    """It folds, judges, reads messages again and reports both findings that it has planted."""
    assert [one.finding for one in rehearse(spark)] == ["multiple", "without-cause"]

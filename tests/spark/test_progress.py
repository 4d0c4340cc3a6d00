"""What a command shows on a terminal while Spark works."""

import io
import os
import threading

from pyspark.sql import functions as F  # noqa: N812  Spark's own custom
from rich.console import Console

from cli.spark.execution.progress import Activity, Tasks, progress
from tests.support.consuming import until


def test_spark_shows_its_progress(spark, tmp_path):
    """Progress is shown in tasks on a terminal, and nowhere else."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    path = str(gate)

    @F.udf("int")
    def wait(number):
        if number == 0:
            with open(path, encoding="utf-8") as opened:  # noqa: PTH123  it runs on a worker
                opened.read()
        return 1

    def work():
        spark.range(0, 2, 1, 2).select(wait("id")).collect()

    source = Activity(spark)
    job = threading.Thread(target=work)
    printed = io.StringIO()
    console = Console(file=printed, force_terminal=True, width=80)
    with progress(console) as watch, watch(spark):
        job.start()
        with gate.open("w"):  # which waits for the task to read
            while source.now() != Tasks(done=1, running=1, known=2):
                assert job.is_alive()
            while "1 of 2 tasks done" not in printed.getvalue():
                assert job.is_alive()
        job.join()
    until(lambda: source.now() == Tasks(0, 0, 0))  # Spark tells of the end a moment later
    quiet = io.StringIO()
    with progress(Console(file=quiet)) as watch, watch(spark):
        pass
    assert quiet.getvalue() == ""

"""The details of many commands: the lists of a report are limited."""

from tests.spark.builders import ROOT

MANY = """
INSERT INTO message_store.messages (stream_name, position, type, data, metadata, time)
SELECT 'a:command-' || n, m, 'Deposit', jsonb_build_object('aId', n::text, 'key', 'k', 'says', ''),
       jsonb_build_object('correlationStreamName', 'sender' || n || '-1'),
       '2024-02-29 09:00:00'::timestamp + m * interval '1 second'
FROM generate_series(1, %(keys)s) AS n, generate_series(0, n %% 30) AS m
"""


def test_lists_are_limited_to_what_matters(connection, reconcile):
    """The largest bursts and the busiest senders are reported, of whatever number there are."""
    connection.execute(MANY, {"keys": 1_030})
    found = reconcile("--details", app="tests.spark.shelf:component", app_dir=ROOT)
    reissues = found.report["reissues"]
    assert [one["sends"] for one in reissues["bursts"]] == [30] * 20
    assert len(reissues["senders"]) == 1_000
    duplicates = [one["duplicates"] for one in reissues["senders"]]
    assert duplicates == sorted(duplicates, reverse=True)
    assert duplicates[0] == 29

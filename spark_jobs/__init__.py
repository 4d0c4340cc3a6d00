"""Spark jobs that compare what is stored with what the consumers promise.

SQL in the server makes *facts* of messages, one row of numbers each (`facts`). Spark folds them
into *summaries* of keys and causes (`fold.sql`), and one table of rules gives these their
*verdicts* (`verdicts`). `reconcile` is a whole run, `state` and `follow` go on with what earlier
ones have read, `archive` adds the facts of archived messages, and `findings`, `details` and
`report` show what was found. `source` reads the store, also for programs of your own.
"""

"""Processes that send to a peer or work for it; they import nothing of this project's libraries.

Each module is a peer: ``send(count)`` enqueues, ``work(setting)`` works off and reports how long it
took. They find the database by the variables of libpq.
"""

"""Recurring commands: a series has a function that returns the command for each tick.

`series` is what is declared, `timetable` when its ticks are, `due` which of them is to be sent. The
consumers send it (`consumers.loop.recurring`).
"""

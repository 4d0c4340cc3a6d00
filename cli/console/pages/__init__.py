"""The pages, a module each: an `ENTRY` in the navigation, and the `ROUTES` that answer.

A page is a function that takes the request and returns ``console.page(...)``. It reads within
``with console.reading() as connection``, and runs in a thread, so it may wait.
"""

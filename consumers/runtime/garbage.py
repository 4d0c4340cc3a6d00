"""Settings of Python's garbage collector for a process that handles batch after batch."""

import gc

# Objects that are made before the young ones are searched for cycles. A batch makes about as many;
# with Python's 700 each batch would be searched many times, and nearly nothing in it is a cycle.
_YOUNG = 20_000


def spare_batches() -> None:
    """Let the garbage collector look seldom at a batch, and never at the modules that are loaded.

    These live as long as the process, and are many more objects than a batch makes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])

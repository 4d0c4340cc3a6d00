"""What decides before a handler is called whether that may be now, over all processes.

A message whose handler may not be called waits as one that failed does, but that takes none of its
attempts. What decides is shared by the processes in tables, and is changed by statements that are
committed by themselves: a call that was made counts, whatever becomes of its batch.
"""

"""What is found in the messages: the verdicts on commands and effects, latency and reissues.

A new finding goes into `commands` or `effects`, in two places of the module: `judge` finds it row
by row, and `groups` must keep groups that may have it from being taken as in order. Nothing here
reads the store by itself.
"""

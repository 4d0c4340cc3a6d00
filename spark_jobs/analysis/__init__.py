"""What is found in the messages: the verdicts on commands and effects, latency and reissues.

A new finding goes into `commands` or `effects`; nothing here reads the store by itself.
"""

"""What is found in the messages: the verdicts on commands and effects, latency and reissues.

A new finding is a rule in `verdicts.of_commands` or in `effects`: when a row has it, and when a
group may have such a row. Nothing here reads the store by itself.
"""

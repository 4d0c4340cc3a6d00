"""The loop of one consumer: batch after batch, and what is logged of them.

How often a message that fails is tried, and after which delay, is in `retrying.attempts`. Dead
letters that somebody has marked to be handled again are in `retrying.letter_retry`.
"""

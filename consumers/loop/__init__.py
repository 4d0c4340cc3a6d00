"""The loop of one consumer: batch after batch, and what is logged of them.

Letters that are due are handled in between (`retrying.letter_retry`).
"""

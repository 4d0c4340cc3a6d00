"""The effects of one message: its entity, and what the call of its handler decides.

The consumers and `reservation.testing` share this, so that a test refuses what consumers refuse.
"""

"""The entity of one message, and the effects of its handler's call.

The consumers and `reservation.testing` share this, so that a test refuses what consumers refuse.
"""

"""What keeps a job from running."""

from reservation.errors import ReservationError


class SparkUnavailableError(ReservationError):
    """Spark, or the Java that it runs on, is missing or too old."""


class SparkJobError(ReservationError):
    """A job did not come to its end; nothing that it had written was put in place."""

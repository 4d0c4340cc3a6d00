"""The errors of Spark jobs."""

from reservation.errors import ReservationError


class SparkUnavailableError(ReservationError):
    """Spark, or the Java that it runs on, is missing or too old."""


class SparkJobError(ReservationError):
    """A job failed; none of its outputs was put in place."""


class ReadError(ReservationError):
    """The store could not be read by one of Spark's workers."""


class OptionError(ReservationError):
    """An option of the source is unknown, or its value is not valid."""


class StateError(ReservationError):
    """The state of earlier runs cannot be continued."""


class ThresholdError(ReservationError):
    """The text of an option is not a threshold."""


class SparkSettingError(ReservationError):
    """A property of Spark cannot be set."""

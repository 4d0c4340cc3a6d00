"""What keeps a job from running."""

from reservation.errors import ReservationError


class SparkUnavailableError(ReservationError):
    """Spark, or the Java that it runs on, is missing or too old."""


class SparkJobError(ReservationError):
    """A job did not come to its end; nothing that it had written was put in place."""


class ReadError(ReservationError):
    """The store could not be read by one of Spark's workers."""


class OptionError(ReservationError):
    """An option of the source names nothing that there is."""


class StateError(ReservationError):
    """The state of earlier runs cannot be gone on from."""


class ArchiveError(ReservationError):
    """An archive cannot be gone on from, or read."""


class ThresholdError(ReservationError):
    """The text of an option names no threshold."""


class SparkSettingError(ReservationError):
    """A property that Spark was to be given cannot be passed on."""

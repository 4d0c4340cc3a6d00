"""What went wrong in Spark, in one line out of its many."""

import re
from pathlib import Path

_MORE_MEMORY = "give it more memory with --conf spark.driver.memory=4g"


def reason(error: BaseException, log: Path | None = None) -> str:
    """Return the line that says what went wrong.

    Args:
        error: what PySpark raised.
        log: what Spark's Java process wrote, where it was started here.
    """
    logged = log.read_text(errors="replace") if log is not None and log.exists() else ""
    told = _line(str(error)) or type(error).__name__
    out_of_memory = re.search(r"java\.lang\.OutOfMemoryError(: [\w ]+)?", f"{error}\n{logged}")
    if out_of_memory:
        return f"Spark ran out of memory ({out_of_memory[0]}); {_MORE_MEMORY}"
    if "INVALID_DRIVER_MEMORY" in told:
        return f"Spark has too little memory: {told.rstrip('.')}; {_MORE_MEMORY}"
    if _is_gone(error):
        last = _last_words(logged)
        if last and not re.search("heap|memory", last):
            return last
        return f"Spark's Java process ended ({last or 'it said nothing'}); {_MORE_MEMORY}"
    return told


def _is_gone(error: BaseException) -> bool:
    """Tell whether the Java process does not answer any more, or did not come up."""
    return (
        isinstance(error, ConnectionError)
        or type(error).__name__ == "Py4JNetworkError"
        or "JAVA_GATEWAY_EXITED" in str(error)
        or "Answer from Java side is empty" in str(error)
    )


def _last_words(logged: str) -> str:
    """Return what a Java process said of its end; nothing if it said nothing of the kind."""
    not_up = re.search(r"Error occurred during initialization of VM\s+(.+)", logged)
    if not_up:
        return not_up[1].strip()
    return _line(logged) if _raised(logged) else ""


def _line(text: str) -> str:
    """Return the last line that names an error, or else the first line."""
    every = [line.strip() for line in text.splitlines() if line.strip()]
    told = (_raised(text)[-1:] or every[:1] or [""])[0]
    return re.sub(r"^(psycopg|reservation|spark_jobs|java|org\.apache)[\w.$]*: ", "", told)


def _raised(text: str) -> list[str]:
    """Return the lines that name an error, without what stands before its name."""
    lines = [
        re.sub(r'^(: |Caused by: |Exception in thread "\S+" )', "", line.strip())
        for line in text.splitlines()
    ]
    return [line for line in lines if re.match(r"[\w.$]*(Error|Exception|Failure)\b.*:", line)]

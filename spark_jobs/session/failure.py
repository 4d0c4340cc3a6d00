"""The cause of a failure in Spark, in one line."""

import re
from pathlib import Path

_MORE_MEMORY = "give it more memory with --conf spark.driver.memory=4g"


def reason(error: BaseException, log: Path | None = None) -> str:
    """Return the line that names the cause."""
    logged = log.read_text(errors="replace") if log is not None and log.exists() else ""
    cause = _line(str(error)) or type(error).__name__
    out_of_memory = re.search(r"java\.lang\.OutOfMemoryError(: [\w ]+)?", f"{error}\n{logged}")
    if out_of_memory:
        return f"Spark ran out of memory ({out_of_memory[0]}); {_MORE_MEMORY}"
    if "INVALID_DRIVER_MEMORY" in cause:
        return f"Spark has too little memory: {cause.rstrip('.')}; {_MORE_MEMORY}"
    if _is_gone(error):
        last = _last_words(logged)
        if last and not re.search("heap|memory", last):
            return last
        return f"Spark's Java process ended ({last or 'without a message'}); {_MORE_MEMORY}"
    return cause


def _is_gone(error: BaseException) -> bool:
    """Return whether the Java process no longer answers, or did not start."""
    return (
        isinstance(error, ConnectionError)
        or type(error).__name__ == "Py4JNetworkError"
        or "JAVA_GATEWAY_EXITED" in str(error)
        or "Answer from Java side is empty" in str(error)
    )


def _last_words(logged: str) -> str:
    """Return the line with which a Java process explained its end; empty without one."""
    not_up = re.search(r"Error occurred during initialization of VM\s+(.+)", logged)
    if not_up:
        return not_up[1].strip()
    return _line(logged) if _raised(logged) else ""


def _line(text: str) -> str:
    """Return the last line that names an error, or else the first line."""
    every = [line.strip() for line in text.splitlines() if line.strip()]
    line = (_raised(text)[-1:] or every[:1] or [""])[0]
    return re.sub(r"^(psycopg|reservation|spark_jobs|java|org\.apache)[\w.$]*: ", "", line)


def _raised(text: str) -> list[str]:
    """Return the lines that name an error, without what stands before its name."""
    lines = [
        re.sub(r'^(: |Caused by: |Exception in thread "\S+" )', "", line.strip())
        for line in text.splitlines()
    ]
    return [line for line in lines if re.match(r"[\w.$]*(Error|Exception|Failure)\b.*:", line)]

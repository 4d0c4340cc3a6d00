"""What the store calls a process of ours, so that people find it and its logs."""

import os
import socket


def process_name() -> str:
    """Return the host's name and the process id."""
    return f"{socket.gethostname()}:{os.getpid()}"

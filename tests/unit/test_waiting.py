"""Waiting for file descriptors, also for those with large numbers."""

import fcntl
import os
import resource

import pytest

from reservation.waiting import readable


@pytest.fixture
def pipe():
    """Give both ends of a pipe."""
    read, write = os.pipe()
    yield read, write
    for descriptor in (read, write):
        os.close(descriptor)


def test_a_descriptor_of_a_large_number_is_waited_for(pipe):
    """Select refuses those from 1,024 on."""
    read, write = pipe
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    large = fcntl.fcntl(read, fcntl.F_DUPFD, 2000)
    try:
        assert readable([large], 0) == set()
        os.write(write, b"x")
        assert readable([large]) == {large}
        assert readable([read, large], 10) == {read, large}
    finally:
        os.close(large)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_closed_descriptor_is_an_error(pipe):
    """It is not waited for in vain."""
    closed = os.dup(pipe[0])
    os.close(closed)
    with pytest.raises(OSError, match="Bad file descriptor"):
        readable([closed], 10)
    assert readable([], -1) == set()

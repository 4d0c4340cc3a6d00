"""PostgreSQL's ``hashtextextended``, for texts that the server does not hash.

These are keys that only the component's own code makes, and messages in an archive. It is Bob
Jenkins' lookup3, as ``hash_bytes_extended`` in PostgreSQL's ``common/hashfn.c`` has it; here it is
computed over all texts at once.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_Words: TypeAlias = npt.NDArray[np.uint32]

_BLOCK = 12
_MIX = ((4, 6, 8), (16, 19, 4))
_FINAL = (14, 11, 25, 16, 4, 14, 24)


def hashed(texts: pa.Array, seed: int) -> pa.Array:
    """Return what the server's ``hashtextextended(text, seed)`` gives of UTF-8; null of null."""
    is_null = texts.is_null()
    data = texts.cast(pa.large_binary()).fill_null(b"")
    offsets = np.frombuffer(data.buffers()[1], np.int64, len(data) + 1, 8 * data.offset)
    raw = data.buffers()[2]
    content = np.frombuffer(raw, np.uint8) if raw is not None else np.empty(0, np.uint8)
    content = np.concatenate([content, np.zeros(_BLOCK, np.uint8)])
    with np.errstate(over="ignore"):
        found = _hashed(content, offsets[:-1], offsets[1:] - offsets[:-1], seed)
    return pa.array(found, pa.int64(), mask=is_null.to_numpy(zero_copy_only=False))


def _hashed(
    content: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    seed: int,
) -> npt.NDArray[np.int64]:
    first = (np.uint32(0x9E3779B9 + 3923095 & 0xFFFFFFFF) + lengths).astype(np.uint32)
    state = np.stack([first, first, first])
    if seed:
        state[0] += np.uint32(seed >> 32 & 0xFFFFFFFF)
        state[1] += np.uint32(seed & 0xFFFFFFFF)
        _mix(state)
    whole = lengths // _BLOCK
    for n in range(int(whole.max(initial=0))):
        longer = np.flatnonzero(whole > n)
        part = state[:, longer] + _block(content, starts[longer] + n * _BLOCK)
        _mix(part)
        state[:, longer] = part
    rest = lengths - whole * _BLOCK
    last = _block(content, starts + whole * _BLOCK, rest)
    last[2] <<= np.uint32(8)  # the lowest byte is that of the length
    state += last
    _finish(state)
    found: npt.NDArray[np.int64]
    found = (state[1].astype(np.uint64) << np.uint64(32) | state[2]).view(np.int64)
    return found


def _block(
    content: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64] | None = None,
) -> _Words:
    """Return three words of twelve bytes for each text; bytes beyond a length are zero."""
    numbers = np.arange(_BLOCK)
    octets = content[np.minimum(starts[:, None] + numbers, len(content) - 1)]
    if lengths is not None:
        octets = np.where(numbers < lengths[:, None], octets, np.uint8(0))
    return np.ascontiguousarray(octets).view("<u4").T.copy()


def _rotated(words: _Words, by: int) -> Any:  # numpy's own types are wider
    return words << np.uint32(by) | words >> np.uint32(32 - by)


def _mix(state: _Words) -> None:
    a, b, c = state
    for one, two, three in _MIX:
        a -= c
        a ^= _rotated(c, one)
        c += b
        b -= a
        b ^= _rotated(a, two)
        a += c
        c -= b
        c ^= _rotated(b, three)
        b += a


def _finish(state: _Words) -> None:
    a, b, c = state
    pairs = ((c, b), (a, c), (b, a), (c, b), (a, c), (b, a), (c, b))
    for (one, other), by in zip(pairs, _FINAL, strict=True):
        one ^= other
        one -= _rotated(other, by)

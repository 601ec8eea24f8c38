"""How much address space is left where it is limited (`ulimit -v`, `ulimit -d`): maps of an index take of it."""

from __future__ import annotations

import errno
import resource

_LIMITS = ((b"VmSize:", resource.RLIMIT_AS), (b"VmData:", resource.RLIMIT_DATA))


def address_space_left() -> int | None:
    """Return the bytes that can still be mapped, or None where nothing limits them or nothing tells."""
    limits = {name: resource.getrlimit(number)[0] for name, number in _LIMITS}
    limits = {name: limit for name, limit in limits.items() if limit != resource.RLIM_INFINITY}
    if not limits:
        return None
    left = [limits[name] - used for name, used in _used() if name in limits]
    return max(0, min(left)) if left else None


def share_of_what_is_left(wanted: int) -> int:
    """Return `wanted` bytes, or an eighth of what can still be mapped where that is less."""
    left = address_space_left()
    return wanted if left is None else min(wanted, left // 8)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the host or a device has no memory, or no address space, in whosever words."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    text = str(error).lower()
    return (
        isinstance(error, MemoryError)
        # torch's, of the host and of a device
        or (isinstance(error, RuntimeError) and ("can't allocate memory" in text or "out of memory" in text))
        # the dynamic loader's
        or (
            isinstance(error, ImportError)
            and ("failed to map segment" in text or "cannot allocate memory" in text)
        )
    )


def _used() -> list[tuple[bytes, int]]:
    try:
        with open("/proc/self/status", "rb") as file:
            lines = [line.split() for line in file if line.startswith(b"Vm")]
    except OSError:
        # macOS, which enforces neither.
        return []
    return [(line[0], 1024 * int(line[1])) for line in lines]

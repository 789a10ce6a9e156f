"""Giving memory back to the system in a process that lives for long."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from functools import lru_cache
from typing import Any


def release_memory() -> None:
    """Collect what nothing refers to and give it back to the system, where the C library can; takes up to 0.2 s.

    glibc keeps what was freed for the next need, in many pieces: a process that ran fifty flows held 10 MB so.
    """
    gc.collect()
    trim = _trim()
    if trim is not None:
        trim(0)


@lru_cache(maxsize=1)
def _trim() -> Any:
    with suppress(OSError, AttributeError, TypeError):  # another C library, or another system
        return ctypes.CDLL(None).malloc_trim
    return None

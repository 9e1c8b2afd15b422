"""What the C library does with memory that is freed."""

from __future__ import annotations

import ctypes

# Numbers and meaning of mallopt(3): memory from the heap instead of pages of its own up to this size, freed memory
# at the end of the heap kept up to this size, and the heap grown by this much at once.
MMAP_THRESHOLD, TRIM_THRESHOLD, TOP_PAD = (-3, 64 << 20), (-1, 256 << 20), (-2, 16 << 20)


def keep_freed_memory() -> None:
    """Keeps what an iteration frees for the next one, up to 256 MB.

    By default glibc gives every large block back to the kernel, which then has to clear new pages for each tensor:
    a tenth of the time of a small model's iteration. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for option, value in (MMAP_THRESHOLD, TRIM_THRESHOLD, TOP_PAD):
        mallopt(option, value)

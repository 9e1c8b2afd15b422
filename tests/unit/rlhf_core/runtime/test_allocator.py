"""Freed memory stays with the process, counted by the kernel's page faults."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT = """
import resource
from rlhf_core.runtime.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        one, other = bytearray(range(256)) * (16 << 10), bytearray(range(256)) * (8 << 10)
        del one, other
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults()
keep_freed_memory()
faults()
print(first, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_what_is_freed_is_used_again_without_new_pages() -> None:
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before > 1_000
    assert after < 100

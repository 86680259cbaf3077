"""The memory of one step is there for the next."""

import mmap
import os
import platform
import resource
import subprocess
import sys

import pytest

STEPS = """
import resource, torch
from tpsl.allocator import keep_freed_memory
torch.set_num_threads(1)
{keep}
def step():
    held = [torch.ones(1 << 20) for _ in range(20)]
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _page_faults_are_counted() -> bool:
    """Some sandboxes run on kernels that do not count them."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    with mmap.mmap(-1, 64 * resource.getpagesize()) as fresh:
        fresh.write(b"x" * len(fresh))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt > before


@pytest.mark.skipif(not _page_faults_are_counted(), reason="this kernel counts no page faults")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only the GNU C library has these settings")
def test_a_step_takes_no_page_faults_for_memory_it_had_before() -> None:
    # Left to itself the C library may learn to keep memory, or not: by this it gives all of it back.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 17)}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", STEPS.format(keep=keep)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for keep in ("assert keep_freed_memory()", "")
    ]
    pages = 20 * (4 << 20) // resource.getpagesize()
    kept, given_back = (int(process.communicate()[0]) for process in both)
    assert kept < pages / 100
    assert given_back > 10 * max(kept, 1)

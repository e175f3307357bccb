"""How much memory a call takes, over what was there before, of Python's own allocations."""

import tracemalloc


def peak(call):
    """The most bytes that ``call()`` holds at once."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

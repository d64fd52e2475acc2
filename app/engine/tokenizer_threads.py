"""Threads of the tokenizer's library, which tokenise a long list together where CPUs are idle.

The library has one pool of threads for the whole process, and environment variables control it. It
does not hold Python's global lock meanwhile.
"""

import os

# One thread that looks words up (``word_cache.py``) takes 16 to 27 µs for a tweet. Threads without
# that take 51 µs ÷ threads, and 7 µs more. So fewer threads are no faster.
MIN_THREADS = 4
MAX_THREADS = 8  # more would save less than 1 µs for each tweet
MIN_TEXTS = 32  # a shorter list is not worth handing over

# Without ``use_idle_cpus``, the library would start as many threads as the host has cores, but the
# runners need the CPUs.
os.environ["TOKENIZERS_PARALLELISM"] = "false"


def use_idle_cpus(idle: int) -> bool:
    """Let up to ``idle`` threads tokenise a list together. Returns whether they do.

    The threads start when they are first needed. Their number does not change after that.
    """
    if idle < MIN_THREADS:
        return False
    os.environ["RAYON_NUM_THREADS"] = str(min(idle, MAX_THREADS))
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    return True

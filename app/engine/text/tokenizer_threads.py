"""Threads of the tokenizer's library, which tokenise a long list together where CPUs are idle.

The library has one pool of threads for the whole process, and environment variables control it. It
does not hold Python's global lock meanwhile.
"""

import os

# One thread that looks words up (``WordCache``) takes 17 to 28 µs for a tweet. Threads without that
# take 7 µs, and 51 µs ÷ threads. So fewer than four are hardly faster, and take twice the CPU time.
# Sixteen threads would save only 3 µs more than eight.
MIN_THREADS, MAX_THREADS = 4, 8
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

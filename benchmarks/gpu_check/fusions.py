"""fp16 with each fusion against fp16 without, in paired rounds; says which ones pay."""

import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from app.engine.session import CPU, CUDA, open_session
from benchmarks.gpu_check.bundles import ALL, FUSIONS_FILE, NONE
from benchmarks.gpu_check.models import load, of_tokens, precisions
from benchmarks.gpu_check.setup import Setup
from benchmarks.gpu_check.speed import bound, timed
from benchmarks.tables import Row

# A fusion becomes a default if it is faster by this share at the median of all sizes, slower by
# this share at none, and as exact.
CLEARLY = 0.02
TOLERANCE = 0.05  # between fp16 logits with and without the fusion

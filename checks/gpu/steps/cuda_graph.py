"""A few texts as a CUDA graph, which starts all kernels of a batch at once.

The service has none: a CUDA graph is for one number of tokens and of texts, of which nearly every
batch has others. This shows what a few of them, for single texts, could save.
"""

from collections.abc import Iterator

from sentiment_service.engine.model.bundle import Bundle
from sentiment_service.engine.model.device import Device
from sentiment_service.engine.model.sessions import open_session

from benchmarks.tables import Row
from checks.gpu.models import load, of_tokens, precisions
from checks.gpu.setup import Setup
from checks.gpu.steps.speed import bound, timed

TEXTS, TOKENS = (1, 2, 4), 32


def run(setup: Setup) -> Iterator[Row]:
    """Compare the two ways; inputs and logits stay on the device."""
    shape = setup.shapes[0]
    bundle, device = setup.bundle(shape), setup.device
    precision = precisions(bundle)[-1]
    model = load(bundle, precision, device)
    graph = Bundle.open(bundle).variant_path(precision)
    for texts in TEXTS:
        feeds = model.feeds(of_tokens(model, min(TOKENS, model.max_tokens), texts))
        plain = timed(bound(model.session, feeds, device), setup.size.cell_seconds)
        yield {"texts": texts, "CUDA graph": "no", "ms": plain * 1000}
        (provider,) = Device.of(device).providers(0)
        if not isinstance(provider, str):
            provider = (provider[0], provider[1] | {"enable_cuda_graph": "1"})
            session = open_session(graph, provider, threads=1)
            took = timed(bound(session, feeds, device), setup.size.cell_seconds)
            yield {"texts": texts, "CUDA graph": "yes", "ms": took * 1000}

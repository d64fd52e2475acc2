"""How far the logits of one model may differ between two ways to compute them."""

import numpy as np
from numpy.typing import NDArray

from sentiment_service.engine.model.bundle import Precision

# The largest difference of a logit that is allowed, for logits of up to USUAL_LOGIT.
TOLERANCE: dict[Precision, float] = {"fp32": 1e-3, "fp16": 0.1, "int8": 0.5}
# Rounding grows with the logits. The tolerance holds for logits of up to this size, as they are
# usual, and grows in proportion for larger ones.
USUAL_LOGIT = 3.0
# A text is decided if its best logit exceeds the second best by more than this. Where it is not,
# rounding may change the label.
DECIDED_BY = 0.1
# What is computed in both ways.
TEXTS = (
    "ok",
    "I love this!",
    "worst service ever",
    "The meeting is at 3pm.",
    "meh",
    "Not bad at all, honestly better than I expected 😀",
    "@user thanks for nothing, my order never arrived http",
    "Qué día tan bonito, me encanta esta ciudad ❤️",
    "Das Essen war kalt und der Kellner unfreundlich.",
    "Le train part à huit heures de la gare du Nord.",
    "O jogo foi horrível, perdemos tudo outra vez",
    "Che bello rivedervi tutti domani!",
    "यह फिल्म बहुत अच्छी थी",
    "الخدمة سيئة جدا ولن أعود",
    "So the update broke my phone twice in one week. Great job. Really. 👏👏",
    "Tickets for the Friday show go on sale tomorrow morning at nine, doors open at seven.",
    "I waited forty minutes on the phone only to be told that I had the wrong department.",
    "Drove up the coast, windows down, swam until sunset: not been this happy for a long time",
    "The committee publishes its report on the second of May; copies can be had by letter.",
)


def tolerance(precision: Precision, expected: NDArray[np.float32]) -> float:
    """The largest difference from the logits ``expected`` that is allowed for this precision."""
    return TOLERANCE[precision] * max(1.0, float(np.abs(expected).max()) / USUAL_LOGIT)


def decided(expected: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows of logits [texts, labels] are decided; with one label, all are."""
    ordered = np.sort(expected, axis=1)
    enough: NDArray[np.bool_] = (
        ordered[:, -1] - ordered[:, :-1].max(1, initial=-np.inf) > DECIDED_BY
    )
    return enough

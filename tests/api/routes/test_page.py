"""The page at /, in a real browser on a real server."""

import csv
import json
import re
import sys
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import pytest
from fastapi.testclient import TestClient
from playwright.sync_api import Page, Route, expect

from tests.api.conftest import Visits, faults
from tests.conftest import FLAGS, Start
from tests.support.reloads import release, reload
from tests.support.serving import SLOW_COMMAND, STUCK_COMMAND, Process, run_program
from tests.support.tiny_bundle import LABELS, make_bundle, write_manifest

TOO_LONG = "x" * 60_000
LONG_LABEL = "<b>喜びDonaudampfschifffahrtsgesellschaftskapitän</b>"
NOT_ENGLISH = [
    "Das Hotel war leider nicht gut",
    "Je suis très déçu",
    "Muchas gracias, todo muy bueno",
    "Não gostei nada disso",
    "Che bello, grazie!",
    "@anna Wir fahren morgen nach Hause http://t.co/the",
]
ENGLISH = [
    "Great café in Málaga, señor!",
    "The new Die Hard is a bore",
    "Merci for the ride",
    "lol",
    "so-so",
    "Beyoncé Beyoncé",
]
KEY = "correct-horse"

# Records the progress that the page shows, and whether it is busy.
WATCH = """() => {
  window.seen = [];
  const answer = document.getElementById("answer");
  const done = document.getElementById("done");
  const note = () => seen.push([answer.getAttribute("aria-busy"), done.textContent]);
  const observer = new MutationObserver(note);
  observer.observe(answer, { attributeFilter: ["aria-busy"] });
  observer.observe(done, { childList: true });
}"""


@pytest.fixture(scope="module")
def embedded() -> Iterator[str]:
    """The URL of a server of the embedded model."""
    with Process(*FLAGS) as process:
        yield process.url


@pytest.fixture
def page(visits: Visits, url: str) -> Page:
    """The page of the tiny bundle's server."""
    return visits.open(url)


def paste(page: Page, *texts: str) -> None:
    """Put all lines into the form at once, as pasting does."""
    # Playwright's own way takes half a minute for thousands of lines.
    page.get_by_role("textbox", name="Your text").evaluate(
        """(box, text) => {
          box.value = text;
          box.dispatchEvent(new Event("input", { bubbles: true }));
        }""",
        "\n".join(texts),
    )


def classify(page: Page, *texts: str) -> None:
    """Put the lines into the form and press the button."""
    paste(page, *texts)
    page.get_by_role("button", name="Classify").click()


def lines(page: Page, label: str) -> int:
    """The number of lines of a label in the table. All begin at the same place, beside the dot."""
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
    lefts: list[float] = page.get_by_role("cell", name=label, exact=True).first.evaluate(
        """cell => {
          const range = document.createRange();
          range.selectNodeContents(cell);
          return [...range.getClientRects()].map(({ left }) => left);
        }"""
    )
    assert max(lefts) - min(lefts) < 1
    return len(lefts)


def rows(page: Page) -> list[list[str]]:
    """The cells of the table, without its header."""
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
    while (more := page.get_by_role("button", name="Show more rows")).is_visible():
        more.click()
    script = "rows => rows.map(row => [...row.cells].map(cell => cell.innerText.trim()))"
    table: list[list[str]] = page.locator("tbody tr").evaluate_all(script)
    return table


def saved(page: Page) -> list[dict[str, str]]:
    """The rows of the downloaded table."""
    with page.expect_download() as download:
        page.get_by_role("button", name="Download CSV").click()
    with download.value.path().open(encoding="utf-8-sig", newline="") as file:
        return [*csv.DictReader(file)]


def test_the_page_opens_with_an_example(page: Page, url: str) -> None:
    """What is typed takes its place. The version is beside the name, and /docs links back."""
    expect(page.locator("#texts")).to_have_value(re.compile("^I love the camera"))
    expect(
        page.get_by_role("heading", name=f"Sentiment {version('sentiment-service')}")
    ).to_be_visible()
    page.keyboard.type("love")
    expect(page.locator("#texts")).to_have_value("love")
    page.get_by_role("link", name="API documentation").click()
    page.get_by_role("link", name="Try it on the page").click()
    expect(page).to_have_url(f"{url}/")


def test_one_text(page: Page) -> None:
    """The answer shows label and polarity, a bar for each class, the tokens and the times.

    As JSON, it is the service's answer.
    """
    with page.expect_response("**/classify") as response:
        classify(page, "love")
    answer = page.get_by_role("region", name="Answer")
    expect(answer.get_by_role("heading", name="positive")).to_be_visible()
    bars = answer.get_by_role("list", name="Scores").get_by_role("listitem")
    expect(bars).to_have_text([re.compile(rf"{label}\s*\d+\.\d%") for label in LABELS])
    widths = bars.locator(".bar i").evaluate_all("bars => bars.map(bar => bar.offsetWidth)")
    assert widths == sorted(widths)
    assert widths[2] > 10 * widths[1]
    expect(answer.locator(".polarity")).to_contain_text("Polarity +0.97")
    facts = answer.locator(".facts div").all_inner_texts()
    assert facts[0].split() == ["Tokens", "3"]
    for fact, name in zip(
        facts[1:],
        ["Tokenizing", "Waiting for a batch", "Computing the batch", "Request in all"],
        strict=True,
    ):
        assert re.fullmatch(rf"{name}\s\d+(\.\d+)? m?s", fact)
    expect(page.get_by_role("status")).to_have_text(re.compile(r"positive 9\d\.\d%"))
    page.get_by_text("The answer as JSON").click()
    shown = page.get_by_role("region", name="The answer as JSON").text_content() or ""
    assert json.loads(shown) == response.value.json()


def test_lines(page: Page) -> None:
    """Each line that is not blank is a row. Labels are counted. A row opens and closes."""
    classify(page, "love", "", "  ", "worst day", "so so", "worst")
    assert [row[::2] for row in rows(page)] == [
        ["positive", "love"],
        ["negative", "worst day"],
        ["neutral", "so so"],
        ["negative", "worst"],
    ]
    expect(page.locator(".counts li")).to_have_text(
        ["2 negative 50%", "1 neutral 25%", "1 positive 25%"]
    )
    page.get_by_role("cell", name="worst day").click()
    details = page.locator("tr.details")
    expect(details.get_by_role("list", name="Scores").get_by_role("listitem")).to_have_count(3)
    expect(details.locator(".word.for")).to_contain_text("worst")
    page.get_by_role("cell", name="love").click()
    expect(details.locator(".word.for")).to_contain_text("love")
    page.get_by_role("cell", name="love").first.click()
    expect(details).to_have_count(0)


def test_keyboard_alone(page: Page) -> None:
    """The keyboard is enough to classify (Ctrl+Enter), to move between rows and to open one."""
    page.keyboard.type("love")
    page.keyboard.press("Enter")
    page.keyboard.type("worst")
    page.keyboard.press("Control+Enter")
    assert len(rows(page)) == 2
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('tbody') !== null"):
            break
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("button", name="worst")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="worst")).to_have_attribute("aria-expanded", "true")
    expect(page.locator("tr.details")).to_be_visible()
    page.keyboard.press("ArrowUp")
    expect(page.get_by_role("button", name="love")).to_be_focused()


def test_a_request_that_fails(page: Page) -> None:
    """The page shows the problem and the id of the request; the next request works.

    Screen readers hear the label of an answer, and no longer when the next request fails. The
    answer to the texts before is gone.
    """
    for texts in ([TOO_LONG], ["love"] * 2):
        page.unroute_all()
        classify(page, "love")
        expect(page.get_by_role("heading", name="positive")).to_be_visible()
        expect(page.get_by_role("alert")).to_be_empty()
        expect(page.get_by_role("status")).to_have_text(re.compile("positive"))
        if len(texts) > 1:
            large = json.dumps({"inputs": TOO_LONG})
            page.route("**/classify", partial(Route.continue_, post_data=large))
        with page.expect_response("**/classify") as response:
            classify(page, *texts)
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text("at most 50000")
        expect(alert).to_contain_text(response.value.headers["x-request-id"])
        expect(page.get_by_role("status")).to_be_empty()
        expect(page.locator("#result")).to_be_empty()


def test_an_emptied_box_has_no_answer(page: Page) -> None:
    """Ctrl+Enter without a text says what to do, and the last answer is gone."""
    for text in ("love", TOO_LONG):
        classify(page, text)
        expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
        box = page.get_by_role("textbox", name="Your text")
        box.fill("")
        box.press("Control+Enter")
        expect(page.locator("#missing")).to_contain_text("There is no text yet.")
        expect(page.get_by_role("heading", name="positive")).to_have_count(0)
        expect(page.get_by_role("alert")).to_be_empty()
        expect(page.get_by_role("status")).to_contain_text("There is no text yet.")
        expect(box).to_be_focused()
    box.fill("love")
    expect(page.locator("#missing")).to_be_empty()


def test_the_server_is_gone(bundle: Path, visits: Visits) -> None:
    """If the server has ended, the page says that it cannot be reached."""
    with Process("--model", str(bundle), *FLAGS) as process:
        page = visits.open(process.url)
    classify(page, "love")
    expect(page.get_by_role("alert")).to_contain_text(
        re.compile(r"The service cannot be reached\. Is it running\?$", re.MULTILINE)
    )


def test_a_visit_is_five_requests(start: Start, visits: Visits) -> None:
    """The files of the page do not count for the rate limit, so that a low one leaves a page.

    Beyond the limit, the page still loads its scripts, and says when to try again, as it does if a
    text is refused.
    """
    process = start("--rate-limit", "6/minute")
    before = visits.open(process.url)
    page = visits.open(process.url, example=False)
    expect(page.get_by_role("alert")).to_contain_text(re.compile(r"Try again in \d+ seconds?"))
    assert [url for url in visits.requests if "/web/" not in url] == [
        *(f"{process.url}/{path}" for path in ("", "info", "models", "classify", "explain")),
        *(f"{process.url}/{path}" for path in ("", "info", "models")),
    ]
    classify(before, "love")
    alert = before.get_by_role("alert")
    expect(alert).to_contain_text(re.compile(r"Try again in \d+ seconds?"))
    expect(alert).to_contain_text("HTTP 429")


def test_a_slow_answer(start: Start, visits: Visits) -> None:
    """The page is busy and shows its progress until all texts are answered.

    After Cancel, the rows that were answered stay and can be opened.
    """
    process = start(command=SLOW_COMMAND)
    page = visits.open(process.url)
    classify(page, *["love"] * 5_000)
    expect(page.locator("tbody tr").first).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    assert 200 <= len(rows(page)) < 5_000
    page.get_by_role("cell", name="love").first.click()
    expect(page.locator("tr.details .word.for")).to_contain_text("love")
    page.evaluate(WATCH)
    classify(page, *["love"] * 250)
    assert len(rows(page)) == 250
    expect(page.get_by_role("progressbar")).to_be_hidden()
    assert page.evaluate("seen") == [
        ["true", "0 of 250 texts"],
        ["true", "200 of 250 texts"],
        ["true", "250 of 250 texts"],
        ["false", "250 of 250 texts"],
    ]


def test_cancel(start: Start, visits: Visits) -> None:
    """Cancel ends a request without an answer, and the focus returns to the text.

    Before an answer, there is nothing to download.
    """
    process = start(command=STUCK_COMMAND)
    page = visits.open(process.url, example=False)
    for texts in (["love"], ["love", "worst"]):
        classify(page, *texts)
        expect(page.locator("#answer")).to_have_attribute("aria-busy", "true")
        expect(page.get_by_role("progressbar")).to_be_visible()
        expect(page.locator("#keys")).to_be_hidden()
        assert not page.get_by_role("button", name="Download CSV").is_visible()
        with page.expect_event("requestfailed") as failed:
            page.get_by_role("button", name="Cancel").click()
        assert failed.value.url == f"{process.url}/classify"
        expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
        expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
        expect(page.get_by_role("textbox", name="Your text")).to_be_focused()
        expect(page.get_by_role("status")).to_have_text("Cancelled")
        expect(page.get_by_role("alert")).to_be_empty()


@pytest.mark.parametrize(
    ("flags", "texts"),
    [
        ((), [f"{word} {number}" for number in range(500) for word in ("worst", "love")]),
        (("--max-texts=10",), ["worst", "love"] * 12),
        (("--max-queue-tokens=100",), ["worst worst worst worst", "love love love love"] * 5),
    ],
)
def test_many_lines(
    start: Start, url: str, visits: Visits, flags: tuple[str, ...], texts: list[str]
) -> None:
    """Texts beyond the limits of one request are sent in several, and answered in their order."""
    page = visits.open(start(*flags).url if flags else url)
    classify(page, *texts)
    expect(page.get_by_role("status")).to_have_text(f"{len(texts):,} texts classified")
    table = rows(page)
    assert [row[2] for row in table] == texts
    assert [row[0] for row in table] == ["negative", "positive"] * (len(texts) // 2)
    assert len([url for url in visits.requests if url.endswith("/classify")]) > 1
    expect(page.get_by_role("alert")).to_be_empty()
    page.get_by_text("The same request with curl").click()
    expect(page.get_by_text("only the first 10 texts")).to_be_visible(visible=len(texts) == 24)


def test_a_reload_between_two_requests_for_many_lines(visits: Visits, tmp_path: Path) -> None:
    """A table is of one model: the page stops, says so, and keeps the rows of the first."""
    bundle = make_bundle(tmp_path / "tiny")
    asked: list[str] = []
    with Process("--model", str(bundle), "--admin-keys", "admin-key-1", *FLAGS) as process:

        def reload_before_the_second(route: Route) -> None:
            asked.append(route.request.url)
            if len(asked) == 2:
                release(bundle, "fedcba9")
                assert reload(process.client).status_code == 200
            route.continue_()

        page = visits.open(process.url)
        page.route("**/classify", reload_before_the_second)
        classify(page, *["love"] * 500)
        expect(page.get_by_role("alert")).to_contain_text("The service has loaded another model")
        assert len(asked) == 2
        assert len(rows(page)) == 200


def test_text_is_never_markup(page: Page) -> None:
    """A text with HTML tags is shown as text, alone and in the table."""
    markup = "<img src=x onerror=alert(1)> <b>love</b>"
    classify(page, markup)
    expect(page.locator("#result .words")).to_contain_text("<img")
    classify(page, markup, "love")
    assert rows(page)[0][2] == markup
    page.get_by_role("cell", name="<img").click()
    expect(page.locator("#result .words")).to_contain_text("onerror=alert(1)>")
    expect(page.locator("#result :is(img, b)")).to_have_count(0)


@pytest.mark.parametrize(("width", "scheme"), [(320, "light"), (1200, "dark")])
def test_colours_and_widths(
    visits: Visits, url: str, width: int, scheme: Literal["light", "dark"]
) -> None:
    """The page follows the colour scheme, fits a phone, and axe-core finds no fault in it.

    axe-core looks at each kind of answer, among others for contrast and for names of controls. On
    a phone, the examples are above the answer.
    """
    page = visits.open(url)
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 740})
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(re.findall(r"\d+", background)[0]) > 128) == (scheme == "light")
    page.get_by_text("The same request with curl").click()
    page.get_by_label("Classify each sentence").check()
    for texts in (
        ["worst love. day"],
        ["love " * 800],
        ["x" * 400],
        [TOO_LONG],
        ["love", "worst", TOO_LONG],
    ):
        classify(page, *texts)
        expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
        if len(texts) > 1:
            assert lines(page, "negative") == 1
            page.get_by_role("cell", name="worst").click()
        expect(page.get_by_text("Computing the effect")).to_have_count(0)
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
        assert faults(page) == []
    if width < 1000:
        tops = [
            page.locator(part).evaluate("part => part.getBoundingClientRect().top")
            for part in ("#form", "#examples", "#answer")
        ]
        assert tops == sorted(tops)


def test_each_heading_is_over_its_column(page: Page) -> None:
    """Also on a phone, where the text and its heading have lines of their own."""
    classify(page, "love", "worst", "so so")
    assert len(rows(page)) == 3
    for width in (320, 360, 1200):
        page.set_viewport_size({"width": width, "height": 740})
        headings, *others = page.locator("table tr").evaluate_all(
            """rows => rows.map(row => [...row.cells].map((cell) => {
              const { left, right } = cell.getBoundingClientRect();
              return { left, right };
            }))"""
        )
        for label, score, text in others:
            assert headings[0]["left"] == pytest.approx(label["left"], abs=1)
            assert headings[1]["right"] == pytest.approx(score["right"], abs=1)  # as it is aligned
            assert headings[2] == pytest.approx(text, abs=1)


def test_words_are_coloured(page: Page) -> None:
    """Words for and against the label have signs; offsets count code points, not UTF-16."""
    classify(page, "😀😀 love, love is not so very much")
    words = page.locator("#result .words .word")
    expect(words.nth(0)).to_have_text(re.compile(r"^😀😀−\d+\.\d$"))  # noqa: RUF001
    expect(words.nth(0)).to_have_class("word against")
    expect(words.nth(2)).to_have_text(re.compile(r"^love\+\d+\.\d$"))
    expect(words.nth(2)).to_have_class("word for")
    expect(page.locator("#result .legend")).to_contain_text("speaks for “positive”")


def test_tokens_are_shown_on_request(page: Page, visits: Visits) -> None:
    """A click asks for the tokens of the text, with their numbers; without it nothing is asked."""
    classify(page, "@anna love")
    summary = page.get_by_text("Tokens as the model sees them")
    expect(summary).to_be_visible()
    assert not [url for url in visits.requests if url.endswith("/tokenize")]
    summary.click()
    tokens = page.get_by_role("list", name="Tokens").get_by_role("listitem")
    expect(tokens).to_have_text(["<s>1", "<unk>3", "love4", "</s>2"])
    expect(tokens.first).to_have_class("special")
    summary.click()
    summary.click()
    assert len([url for url in visits.requests if url.endswith("/tokenize")]) == 1


def test_what_cannot_be_explained_is_classified(page: Page) -> None:
    """A text of too many words shows its label, its words without colours, and the reason."""
    text = "love " * 200
    page.get_by_label("Read long texts in windows").check()
    classify(page, text)
    expect(page.get_by_role("heading", name="positive")).to_be_visible()
    expect(page.locator("#result .words + .note")).to_contain_text("200 words; at most")
    expect(page.locator("#result .words")).to_have_text(text.strip())
    expect(page.locator("#result .facts")).to_contain_text(re.compile(r"Tokens\s*202\s*Windows"))
    expect(page.get_by_role("alert")).to_be_empty()


def test_what_was_cut_off_is_grey(page: Page) -> None:
    """The part of a text that the model does not read is marked; offsets count code points."""
    classify(page, "😀😀 " + "love " * 12 + "day worst")
    expect(page.locator("#result .words + .note")).to_contain_text("The grey part was not read.")
    cut = page.locator("#result .cut").last
    expect(cut).to_have_text("worst")
    assert cut.evaluate("cut => getComputedStyle(cut).color") != page.locator(
        "#result .words"
    ).evaluate("words => getComputedStyle(words).color")


def test_the_grey_part_of_a_long_text_is_in_sight(page: Page) -> None:
    """The text is scrolled to where the grey part begins."""
    for width in (360, 1200):
        page.set_viewport_size({"width": width, "height": 740})
        classify(page, f"{'x' * width} " * 13 + "day worst " * 100)
        expect(page.locator("#result .words")).to_contain_text("x" * width)
        expect(page.locator("#result .words + .note")).to_contain_text("grey part was not read.")
        begins, top, bottom = page.locator("#result .words").evaluate(
            """words => {
              const { top, bottom } = words.getBoundingClientRect();
              return [words.querySelector(".cut:last-child").getClientRects()[0].top, top, bottom];
            }"""
        )
        assert top < begins < bottom - 20


def test_sentences(page: Page) -> None:
    """All lines can be one text, and each sentence has a label of its own, or its error.

    So has each sentence of a text in an open row.
    """
    page.get_by_label("Each line is a text").uncheck()
    page.get_by_label("Classify each sentence").check()
    classify(page, "😀 love it.", "worst day.")
    sentences = page.get_by_role("list", name="Sentences").get_by_role("listitem")
    expect(sentences).to_have_text(
        [re.compile(r"^positive \d+\.\d%😀 love it\.$"), re.compile(r"^negative .*worst day\.$")]
    )
    expect(page.locator("table")).to_have_count(0)
    classify(page, "I love this!", "", "\u200b", "", "Good day.")
    expect(sentences).to_have_count(3)
    expect(sentences.nth(0)).to_contain_text("I love this!")
    expect(sentences.nth(1)).to_contain_text("errorThe text is empty or blank")
    expect(sentences.nth(2)).to_contain_text("Good day.")
    expect(page.get_by_role("alert")).to_be_empty()
    for width in (360, 1200):
        page.set_viewport_size({"width": width, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_label("Each line is a text").check()
    page.get_by_label("Read long texts in windows").check()
    classify(page, "worst day. love it! \u200b", "love")
    page.get_by_role("button", name="worst day.").click()
    expect(sentences).to_have_count(3)
    expect(sentences.last).to_contain_text("errorThe text is empty or blank")
    expect(page.get_by_role("alert")).to_be_empty()


def test_rows_are_sorted_and_filtered(page: Page) -> None:
    """A column's title sorts, reverses and restores; a label or a word chooses; CSV saves it.

    A text that is too long is an error in its row.
    """
    classify(page, "love", 'worst , " day "', "so so", TOO_LONG)
    assert [row[0] for row in rows(page)] == ["positive", "negative", "neutral", "error"]
    expect(page.locator("tbody tr").last).to_contain_text("at most 50000")
    expect(page.locator(".counts")).to_contain_text("1 error")
    column = page.get_by_role("columnheader", name="Label")
    sorts = ["ascending", "descending", "none"]
    labels = ["error", "negative", "neutral", "positive"]
    orders = [labels, labels[::-1], ["positive", "negative", "neutral", "error"]]
    for sort, order in zip(sorts, orders, strict=True):
        column.get_by_role("button").click()
        expect(column).to_have_attribute("aria-sort", sort)
        assert [row[0] for row in rows(page)] == order
    page.get_by_role("button", name="1 negative").click()
    assert [row[2] for row in rows(page)] == ['worst , " day "']
    (row,) = saved(page)
    scores = [f"score_{label}" for label in LABELS]
    assert [*row] == ["text", "label", "score", *scores, "polarity", "warnings", "error"]
    assert row["warnings"] == '["unknown_tokens"]'
    assert (row["text"], row["label"]) == ('worst , " day "', "negative")
    assert row["score"] == row["score_negative"] > "0.5"
    page.get_by_role("button", name="1 negative").click()
    page.get_by_role("searchbox").fill("LOV")
    assert [row[2] for row in rows(page)] == ["love"]


def test_an_api_key(start: Start, visits: Visits) -> None:
    """If the server needs a key, a field asks for it; it is stored in the tab, not on disk.

    The page says whether there is no key yet, or a wrong one, whatever its characters are, also
    after a reload. Characters that no key has, as those around a copied one, do not count.
    """
    process = start("--api-keys", KEY)
    page = visits.open(process.url, example=False)
    field = page.get_by_label("API key")
    expect(field).to_be_focused()
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("HTTP 401")
    expect(alert).to_contain_text("Enter an API key for this service, below the text.")
    for wrong in ("of another door", "ключ"):
        page.keyboard.insert_text(wrong)
        for do in (partial(page.keyboard.press, "Enter"), page.reload):
            with page.expect_response("**/models") as response:
                do()
            assert response.value.status == 401
            expect(alert).to_contain_text("This API key is not accepted. Enter another, below")
            expect(field).to_be_focused()
    field.fill(f"\u200b“{KEY}”")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_empty()
    expect(page.locator("#served")).to_contain_text("tiny")
    classify(page, "love")
    expect(page.get_by_role("heading", name="positive")).to_be_visible()
    assert KEY in page.evaluate("Object.values(sessionStorage).join()")
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    expect(page.locator("#code")).not_to_contain_text(KEY)


@pytest.mark.parametrize(
    "blocked", ['throw new DOMException("Access is denied", "SecurityError")', "return null"]
)
def test_an_api_key_without_storage(start: Start, visits: Visits, blocked: str) -> None:
    """A browser that blocks cookies has no storage for the key; there, a reload forgets it."""
    process = start("--api-keys", KEY)
    page = visits.open(process.url, example=False)
    page.add_init_script(
        f'Object.defineProperty(window, "sessionStorage", {{get() {{ {blocked}; }}}})'
    )
    for _ in range(2):
        page.reload()
        expect(page.get_by_role("alert")).to_contain_text("Enter an API key for this service")
        expect(page.get_by_label("API key")).to_be_focused()
        page.keyboard.type(KEY)
        page.keyboard.press("Enter")
        expect(page.locator("#served")).to_contain_text("tiny")
        expect(page.locator("#result article")).to_be_visible()


@pytest.mark.parametrize(
    "texts", [["it's 'fine' $HOME `x` \\ \"y\""], ["don't", "\N{GRINNING FACE}!!"], ["a" * 40_000]]
)
def test_the_curl_command(page: Page, texts: list[str]) -> None:
    """The copied command sends the same request, even if the text has special characters."""
    paste(page, *texts)
    page.get_by_text("The same request with curl").click()
    page.get_by_role("button", name="Copy", exact=True).click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    command = page.evaluate("navigator.clipboard.readText()")
    shell = run_program("sh", "-c", f"curl() {{ printf '%s\\0' \"$@\"; cat; }}\n{command}")
    url, option, header, *body = shell.stdout.rstrip("\0\n").split("\0")
    assert [url, option, header] == [f"{page.url}classify", "-H", "content-type: application/json"]
    assert json.loads(body[-1]) == {"inputs": texts[0] if len(texts) == 1 else texts}


def test_the_code_for_python_and_javascript(page: Page) -> None:
    """Each runs and prints the result of the same text; that for Python needs no package."""
    paste(page, "love '\"\\ `${x}` 😀")
    page.get_by_text("The same request with curl").click()
    page.get_by_label("Python").check()
    code = page.locator("#code").text_content() or ""
    shell = run_program(sys.executable, "-I", "-c", code)
    assert "'label': 'positive'" in shell.stdout, shell.stderr
    page.get_by_label("JavaScript").check()
    code = page.locator("#code").text_content() or ""
    printed = page.evaluate(
        """async (code) => {
          const printed = [];
          const console = { log: (result) => printed.push(result.label) };
          const run = Object.getPrototypeOf(async () => {}).constructor;
          await new run("console", code)(console);
          return printed;
        }""",
        code,
    )
    assert printed == ["positive"]


def test_copying_by_hand(page: Page) -> None:
    """Without TLS there is no clipboard, so the whole command is selected instead."""
    page.evaluate("delete Navigator.prototype.clipboard")
    paste(page, "it's " * 1_000)
    page.get_by_text("The same request with curl").click()
    page.get_by_role("button", name="Copy", exact=True).click()
    expect(page.get_by_role("button", name="Selected")).to_be_visible()
    command = page.evaluate("getSelection().toString()")
    assert command.count(r"it'\''s") == 1_000


def test_a_link_to_a_text(page: Page, visits: Visits) -> None:
    """It has the text and the options in its fragment; who opens it sees the same answer."""
    page.get_by_label("Classify each sentence").check()
    paste(page, "love? & worst #1 día")
    page.get_by_role("button", name="Copy a link").click()
    expect(page.locator("#link-note")).to_contain_text("Copied.")
    address = page.evaluate("navigator.clipboard.readText()")
    assert address == page.url
    other = visits.open(address)
    expect(other.locator("#texts")).to_have_value("love? & worst #1 día")
    expect(other.get_by_label("Classify each sentence")).to_be_checked()
    expect(other.get_by_role("list", name="Sentences").get_by_role("listitem")).to_have_count(2)
    other.evaluate("location.hash = 'text=worst&per-line=1'")
    expect(other.get_by_role("heading", name="negative")).to_be_visible()
    assert not [url for url in visits.requests if "love" in url.split("#")[0]]
    paste(page, "x" * 8_000)
    page.get_by_role("button", name="Copy a link").click()
    expect(page.locator("#link-note")).to_have_text("The text is too long for a link.")
    assert page.url == address


def test_the_history_of_the_tab(page: Page) -> None:
    """What was classified before can be classified again; a reload forgets it."""
    classify(page, "love")
    expect(page.get_by_role("heading", name="positive")).to_be_visible()
    classify(page, "worst", "so so")
    assert len(rows(page)) == 2
    page.get_by_text("Earlier in this tab").click()
    entries = page.locator("#history li")
    expect(entries).to_have_text(
        ["2 texts worst", "positive love", re.compile("I love the camera")]
    )
    entries.nth(1).click()
    expect(page.locator("#texts")).to_have_value("love")
    expect(page.get_by_role("heading", name="positive")).to_be_visible()
    expect(entries).to_have_count(3)
    expect(entries.first).to_have_text("positive love")
    page.reload()
    expect(page.locator("#history")).to_be_hidden()


def test_an_open_row_is_not_cut_off(page: Page) -> None:
    """Nothing but the window scrolls it."""
    classify(page, *["love"] * 30)
    assert len(rows(page)) == 30
    page.locator("tbody tr").nth(20).click()
    expect(page.locator("tr.details .word.for")).to_be_visible()
    assert page.locator("tr.details").evaluate(
        """row => {
          for (let at = row; at !== document.documentElement; at = at.parentElement) {
            const cut = getComputedStyle(at).overflowY !== "visible";
            if (cut && at.scrollHeight > at.clientHeight + 1) return false;
          }
          return true;
        }"""
    )


def test_examples(visits: Visits, embedded: str, url: str) -> None:
    """The embedded model is right about each example. A note says that it knows English only."""
    page = visits.open(embedded)
    expect(page.get_by_text("trained on English only")).to_be_visible()
    for name, label in (
        ("Mixed feelings", "negative"),
        ("Sarcasm", "negative"),
        ("Emoji", "positive"),
        ("Negation", "positive"),
    ):
        page.get_by_role("button", name=name).click()
        expect(page.get_by_role("heading", name=label)).to_be_visible()
        expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
    page.get_by_role("button", name="Several texts").click()
    expect(page.locator("tbody tr")).to_have_count(5)
    labels = [row[0] for row in rows(page)]
    assert labels == ["positive", "neutral", "negative", "negative", "neutral"]
    expect(visits.open(url).get_by_text("trained on English only")).to_be_hidden()


def test_a_text_that_is_not_english(visits: Visits, embedded: str, url: str) -> None:
    """A hint is beside the embedded model's answer if the script or the words are not English.

    A few foreign words in an English text are no reason for it. A model that does not say its
    language gets another hint, if it does not know the words.
    """
    page = visits.open(embedded)
    classify(page, "الخدمة ممتازة OK")
    expect(page.locator(".warning")).to_contain_text("This text does not look English.")
    expect(page.locator("#texts")).to_have_css("direction", "rtl")
    expect(page.locator("#result .words")).to_have_css("direction", "rtl")
    classify(page, "Great café, 5€ 😀 Ω")
    expect(page.locator("#result .words")).to_contain_text("café")
    expect(page.locator(".warning")).to_have_count(0)
    classify(page, "love", "хорошо", "良い", *NOT_ENGLISH)
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
    expect(page.locator(".warning")).to_contain_text("8 texts of 9 do not look English.")
    classify(page, *ENGLISH)
    expect(page.locator("tbody tr")).to_have_count(len(ENGLISH))
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
    expect(page.locator(".warning")).to_have_count(0)
    other = visits.open(url)
    classify(other, "хорошо")
    expect(other.locator(".warning")).to_have_count(1)
    expect(other.locator(".warning")).to_contain_text("This text does not consist of words that")


def test_without_javascript(client: TestClient) -> None:
    """A browser that runs no scripts says that the page needs them."""
    # Chromium hides <noscript> when Playwright turns scripts off.
    page = client.get("/", headers={"accept": "text/html"}).text
    assert re.search(r"<noscript>.*This page needs JavaScript.*</noscript>", page)


@pytest.fixture(scope="module")
def several(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of models with other labels."""
    folder = tmp_path_factory.mktemp("several")
    kinds: dict[str, dict[str, Any]] = {
        "moods": {"labels": ["1 star", "calm", LONG_LABEL]},
        "many": {"labels": [f"mood {number}" for number in range(19)], "outputs": 19},
        "feelings": {"labels": ["grief", "curiosity", "disappointment"]},
        "relations": {"labels": ["NEUTRAL", "WOMEN", "CONTRADICTION"]},
        "unnamed": {"labels": ["LABEL_0", "LABEL_1", "LABEL_2"]},
        "multi": {
            "labels": ["anger", "joy", "love"],
            "problem_type": "multi_label_classification",
        },
        "faults": {"labels": ["negative", "error", "positive"]},
    }
    models = [make_bundle(folder / name, name=name, **kind) for name, kind in kinds.items()]
    models.append(make_bundle(folder / "pairs"))
    write_manifest(models[-1], name="pairs", text_pairs=True)
    flags = [word for path in (bundle, *models) for word in ("--model", str(path))]
    with Process(*flags, *FLAGS) as process:
        yield process.url


def test_several_models(several: str, visits: Visits) -> None:
    """The user chooses a model by name; its labels are shown as text, in different colours.

    A label that does not fit into a phone's width is wrapped, in the table beside its dot.
    """
    page = visits.open(several)
    page.get_by_label("Model").select_option("moods")
    expect(page.locator("#served")).to_have_text(
        f"moods, fp32 · 1 star, calm, {LONG_LABEL} · up to 16 tokens"
    )
    classify(page, "love")
    expect(page.get_by_role("heading", name=LONG_LABEL)).to_be_visible()
    colours = page.locator(".bar i").evaluate_all(
        "bars => bars.map(bar => getComputedStyle(bar).backgroundColor)"
    )
    assert len(set(colours)) == 3
    expect(page.locator("#code")).to_contain_text('"model":"moods"')
    page.set_viewport_size({"width": 360, "height": 740})
    fits = "document.scrollingElement.scrollWidth <= innerWidth"
    assert page.evaluate(fits)
    classify(page, "love", "love love")
    assert lines(page, LONG_LABEL) > 1
    assert page.evaluate(fits)
    text_below_top = page.locator("tbody td").first.evaluate(
        "cell => { const text = document.createRange(); text.selectNodeContents(cell); "
        "return text.getClientRects()[0].top - cell.getBoundingClientRect().top }"
    )
    assert text_below_top < 15  # beside the dot, whose line is 20 pixels high


def test_a_label_of_one_word_is_in_one_line(several: str, visits: Visits) -> None:
    """The column of labels is as wide as the longest one, so no common word is cut: of a table,
    and on a phone beside the bars of one text.
    """
    page = visits.open(several)
    named = {"unnamed": "LABEL_2", "relations": "CONTRADICTION", "feelings": "disappointment"}
    for model, longest in named.items():
        page.get_by_label("Model").select_option(model)
        classify(page, "love", "worst")
        for width in (360, 640, 900, 1280):
            page.set_viewport_size({"width": width, "height": 740})
            assert lines(page, longest) == 1
            assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    classify(page, "love")
    page.set_viewport_size({"width": 375, "height": 740})
    label = page.get_by_role("list", name="Scores").get_by_text("disappointment")
    assert label.evaluate("label => label.getClientRects()[0].height") < 30


def test_many_labels_are_sorted_by_score(several: str, visits: Visits) -> None:
    """Of 19 labels the likely ones come first, in the colours that they have everywhere."""
    page = visits.open(several)
    page.get_by_label("Model").select_option("many")
    classify(page, "love")
    bars = page.get_by_role("list", name="Scores").get_by_role("listitem")
    expect(bars).to_have_count(19)
    shown = [float(text.removesuffix("%")) for text in bars.locator(".score").all_inner_texts()]
    assert shown == sorted(shown, reverse=True)
    assert len({*shown}) > 1
    expect(bars.first).to_have_class("best")
    tones = bars.evaluate_all("bars => bars.map(bar => [bar.innerText, bar.dataset.tone])")
    assert all(int(text.split()[1]) % 8 == int(tone) for text, tone in tones)


def test_the_words_are_near_though_there_are_many_labels(several: str, visits: Visits) -> None:
    """The bars of 19 labels take half a window. The keyboard reaches and scrolls the others."""
    page = visits.open(several)
    page.get_by_label("Model").select_option("many")
    classify(page, "love")
    bars = page.get_by_role("list", name="Scores")
    last = bars.get_by_role("listitem").last
    expect(last).not_to_be_in_viewport()
    assert bars.evaluate("bars => bars.clientHeight") < 450
    bars.focus()
    page.keyboard.press("End")
    expect(last).to_be_in_viewport()


def test_a_model_of_pairs(several: str, visits: Visits) -> None:
    """The page says that it sends no pairs."""
    page = visits.open(several)
    note = page.get_by_text("trained on pairs of texts")
    expect(note).to_be_hidden()
    page.get_by_label("Model").select_option("pairs")
    expect(note).to_be_visible()


def test_a_multi_label_model(several: str, visits: Visits) -> None:
    """All labels that apply are the title, and the page says that the bars are independent.

    Of several texts, each counts as each of its labels. The saved rows have them, also if the first
    one is an error.
    """
    page = visits.open(several)
    page.get_by_label("Model").select_option("multi")
    classify(page, "love")
    answer = page.get_by_role("region", name="Answer")
    expect(answer.get_by_role("heading", name="joy, love")).to_be_visible()
    bars = page.get_by_role("list", name="Scores").get_by_role("listitem")
    expect(bars).to_have_class(["", "best", "best"])
    expect(bars.locator(".score")).to_have_text(["26.9%", "50.0%", "98.2%"])
    expect(answer).to_contain_text("Each label has a score of its own")
    classify(page, TOO_LONG, "love", "worst")
    assert [row["labels"] for row in saved(page)] == ["", '["joy","love"]', '["anger","joy"]']
    assert [row[0] for row in rows(page)] == ["error", "joy, love", "anger, joy"]
    choices = page.get_by_role("list", name="Show only one label").get_by_role("button")
    expect(choices).to_have_text(["1 anger 33%", "2 joy 67%", "1 love 33%", "1 error 33%"])
    choices.nth(2).click()
    assert [row[0] for row in rows(page)] == ["joy, love"]


def test_a_label_called_error_is_not_taken_for_one(several: str, visits: Visits) -> None:
    """It is counted and shown apart from the texts that failed. With a third label, positive and
    negative are no scale: the saved rows have no polarity, as those of ``sentiment classify``.
    """
    page = visits.open(several)
    page.get_by_label("Model").select_option("faults")
    classify(page, "it", "it it", "love", TOO_LONG)
    choices = page.get_by_role("list", name="Show only one label")
    expect(choices.get_by_role("button")).to_have_text(
        ["2 error 50%", "1 positive 25%", "1 error 25%"]
    )
    choices.get_by_role("button", name="error").first.click()
    assert [row[0] for row in rows(page)] == ["error", "error"]
    assert [row["error"] for row in saved(page)] == ["", ""]
    assert "polarity" not in saved(page)[0]


def answer_with(page: Page, **answer: Any) -> None:
    """Give this answer to each request to classify."""
    page.unroute("**/classify")
    page.route("**/classify", lambda route: route.fulfill(**answer))


FOREIGN_BODIES = [
    "<h1>Bad gateway</h1>",
    "",
    "null",
    "{}",
    "[]",
    '["sorry"]',
    '"sorry"',
    "0",
    '{"message": "sorry"}',
    '{"title": ["sorry"], "detail": [{"msg": "sorry"}]}',
    '{"title": "", "detail": "", "results": null}',
]


@pytest.mark.parametrize(
    ("texts", "error"), [(["love"], 502), (["love", "worst"], 504)], ids=["one", "many"]
)
def test_an_answer_of_a_proxy(page: Page, texts: list[str], error: int) -> None:
    """If a proxy answers, in whatever form, the page says so and does not show the answer."""
    alert = page.get_by_role("alert")
    headers = {"content-type": "text/html", "retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}
    for status in (200, error):
        for body in FOREIGN_BODIES:
            answer_with(page, status=status, headers=headers, body=body)
            with page.expect_response("**/classify"):
                classify(page, *texts)
            expect(alert).to_contain_text("No readable answer")
            expect(alert).to_contain_text("A proxy may have sent it.")
            for never in ("sorry", "gateway", "NaN", "object"):
                assert never not in alert.inner_text(), (status, body)


RESULTS: list[dict[str, object]] = [
    {"warnings": ["of_a_later_version", "other_language"]},
    {"polarity": -1.0, "truncated": True, "windows": 2, "sentences": []},
    {"labels": []},
    {"labels": ["joy"], "sentences": [{"start": 0, "end": 4, "error": {"message": "no"}}]},
    {"score": 0.0, "scores": {"joy": 0.0, "anger": 1e-30, "error": 0.0}},
    {"label": "error"},
]


@pytest.mark.parametrize("texts", [["love"], ["love", "worst"]], ids=["one", "many"])
def test_every_form_of_a_result(page: Page, texts: list[str]) -> None:
    """The page shows each member that a result may have, alone or in the open row of a table."""
    scores = {"joy": 1.0, "anger": 0.0, "error": 0.0}
    made = {"label": "joy", "score": 1.0, "scores": scores, "tokens": 3, "truncated": False}
    failed = {"error": {"code": "empty_text", "message": "it is blank"}}
    for result in RESULTS:
        answer = {
            "model": {"name": "tiny", "revision": None, "precision": "int8"},
            "labels": [*scores],
            "results": [{**made, **result}, failed][: len(texts)],
        }

        answer_with(page, json=answer)
        with page.expect_response("**/classify"):
            classify(page, *texts)
        if len(texts) > 1:
            page.get_by_role("button", name="love").click()
        expect(page.get_by_text("Tokens as the model sees them")).to_be_visible()
        expect(page.get_by_role("alert")).to_be_empty()
        if result.get("labels") == []:
            found: Literal["cell", "heading"] = "cell" if len(texts) > 1 else "heading"
            expect(page.get_by_role(found, name="no label", exact=True)).to_have_count(1)

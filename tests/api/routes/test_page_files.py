"""Files on the page at /, in a real browser on a real server."""

import csv
import json
import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Download, FilePayload, Locator, Page, Route, expect
from sentiment_service.cli.command import main
from sentiment_service.errors import UserError
from sentiment_service.files.formats import open_table

from tests.api.conftest import Visits, faults
from tests.conftest import Start
from tests.support.serving import SLOW_COMMAND, eventually

# Ten rows: good ones, an empty one, one whose quotes break the rule, one with a cell too many, and
# one that is not UTF-8.
TEN = (
    b'id,comment,label\n1,love,x\n2,"worst\nworst",y\n3,,\n4,so so,\n5,"love" it,\n'
    b"6,love love,\n7,worst,a,b\n8,worst,\n9,\xff love caf\xc3\xa9,\n"
    b"10,\xd8\xa7\xd9\x84\xd8\xae\xd8\xaf\xd9\x85\xd8\xa9,\n"
)
FILES: dict[str, bytes] = {
    "reviews.csv": TEN,
    "euro.csv": b"id;comment\r\n1;love\r\n2;worst, so so\r\n",
    "named.csv": b'sep=|\nid|comment\n1|love\n2|"love\n',
    "thread.tsv": b'id\tcomment\n1\t"love it, they said\n2\tworst day\n3\tand "love" too"\n',
    "quoted.tsv": b'id\tcomment\n1\t"love\tit"\n2\tworst\n',
    "lines.txt": b"love\r\n\r\n worst  day \rso so",
    # U+FFFD as it was written, near a line that is not UTF-8.
    "replaced.csv": "comment\nlove \ufffd\ncafééééé \ufffd".encode()
    + b"\xff\r\n\xef\xbf\xbd worst\n",
    "objects.jsonl": b'{"comment": "love", "n": 1.10, "label": 3}\n\n[1]\n{"n": 2}\n'
    b'{"comment": 5}\n{"comment": "\\ud83d\\ude00"}',
    "late.jsonl": b'{"comment": "love"}\n' * 60 + b'{"comment": "worst", "label": 3}\n',
}
# A file and what the page says of it.
REFUSED = [
    ("a.csv", "text\ncafé".encode("utf-16"), "is not in UTF-8, but perhaps in UTF-16"),
    (
        "a.csv",
        "text\nSchön, à bientôt".encode("cp1252"),
        "perhaps in Windows-1252: save it as UTF-8",
    ),
    ("a.csv", b"PK\x03\x04\0\0\0\0", "is not text, but a workbook or ZIP archive"),
    ("a.csv", b"\x1f\x8b\x08\0\0\0\xff\xff", "compressed with gzip: unpack it"),
    ("a.xlsx", b"PK\x03\x04", "has another ending than .csv, .tsv, .txt, .jsonl and .ndjson"),
    ("a.csv", b"", "is empty: it must begin with the names of its columns"),
    ("a.csv", b'a,"b"c\n1,2', "begins with names of columns that cannot be read"),
    ("a.csv", b"a,a\n1,2", "has several columns “a”"),
    ("a.jsonl", b"[1]\nlove", "has no line with a JSON object that has a text"),
]


def payload(name: str, content: bytes) -> FilePayload:
    """A file as Playwright wants it."""
    return {"name": name, "mimeType": "application/octet-stream", "buffer": content}


def choose(page: Page, name: str, content: bytes) -> None:
    """Choose a file, and wait until the page shows it."""
    page.locator("#file").set_input_files(payload(name, content))
    expect(page.get_by_role("heading", name=name)).to_be_focused()


def classify(page: Page) -> None:
    """Press the button, and wait for the end."""
    page.get_by_role("button", name="Classify").click()
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")


def saved(page: Page) -> Download:
    """The labelled file."""
    with page.expect_download() as download:
        page.get_by_role("button", name="Download with labels").click()
    return download.value


def rows(page: Page) -> Locator:
    """The rows of the table."""
    return page.locator("tbody tr")


def read(path: Path, ending: str) -> Any:
    """The values of a labelled file; scores as numbers, because Python writes them otherwise."""
    if ending == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    separator = "," if ending == ".csv" else "\t"
    values = list(csv.reader(text.splitlines(keepends=True), delimiter=separator))
    number = re.compile(r"-?\d+(\.\d+)?(e-\d+)?")
    return [[float(cell) if number.fullmatch(cell) else cell for cell in row] for row in values]


def error_code(error: object) -> str:
    """What stands before the colon."""
    return re.sub(r"(\w+): .*", r"\1", str(error))


@pytest.fixture
def page(visits: Visits, url: str) -> Page:
    """The page of the tiny bundle's server."""
    return visits.open(url)


def test_ten_rows_with_errors(page: Page, visits: Visits) -> None:
    """The column is chosen, each bad row has its error and its line, and all are summed up."""
    choose(page, "reviews.csv", TEN)
    expect(page.locator("#file-form")).to_have_text("1 kB, 3 columns, separated by commas")
    column = page.get_by_label("Column of the texts")
    expect(column).to_have_value("comment")
    column.select_option("id")
    sample = page.get_by_role("list", name="First texts of the column").get_by_role("listitem")
    expect(sample).to_have_text(["1", "2", "3"])
    column.select_option("comment")
    expect(sample.first).to_have_text("love")
    expect(page.get_by_label("Classify each sentence")).to_be_hidden()
    classify(page)
    expect(page.get_by_role("heading", name="10 texts")).to_be_visible()
    labels = ["positive", "negative", "error", "neutral", "error", "positive", "error", "negative"]
    expect(rows(page).locator("td:first-child")).to_have_text([*labels, "error", "neutral"])
    errors = rows(page).locator("small")
    expect(errors).to_have_text(
        [
            re.compile("^line 5: the text is empty"),
            re.compile("^line 7: the row cannot be read"),
            re.compile("^line 9: the header has 3 columns, but this row has 4"),
            re.compile("^line 11: the text is not UTF-8"),
        ]
    )
    expect(page.locator(".counts li").last).to_have_text("4 error 40%")
    expect(
        page.get_by_role("img", name=re.compile(r"^Polarity\..*\+1\.00: 2 texts$"))
    ).to_be_visible()
    expect(page.locator(".extremes").first).to_contain_text("+1.00 love love")
    expect(page.locator(".extremes").last).to_contain_text("Most negative")
    expect(rows(page).last.get_by_role("button")).to_have_css("direction", "rtl")
    page.get_by_role("button", name="4 error").click()
    expect(rows(page)).to_have_count(4)
    page.get_by_role("button", name="4 error").click()
    rows(page).nth(1).click()
    expect(page.locator("tr.details .word.for").first).to_contain_text("worst")
    assert all(
        url.split("?")[0].endswith(("/classify/stream", "/explain")) for url in visits.requests[-2:]
    )


@pytest.mark.parametrize("name", FILES)
def test_the_labelled_file_is_that_of_the_command(
    page: Page, bundle: Path, tmp_path: Path, name: str
) -> None:
    """It has the same columns, rows, results and errors as `sentiment classify` writes."""
    choose(page, name, FILES[name])
    classify(page)
    download = saved(page)
    ending = Path(name).suffix
    assert download.suggested_filename == f"{Path(name).stem}-labelled{ending}"
    source, target = tmp_path / name, tmp_path / f"out{ending}"
    source.write_bytes(FILES[name])
    column = [] if ending == ".txt" else ["--column", "comment"]
    files = ["--model", str(bundle), "--input", str(source), "--output", str(target)]
    assert main(["classify", *files, *column]) == 0
    ours, theirs = read(download.path(), ending), read(target, ending)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        # The page has other words for what it finds itself.
        last = "error" if ending == ".jsonl" else -1
        assert error_code(mine.pop(last)) == error_code(other.pop(last))
        assert mine == other
        assert [*mine] == [*other]  # also the order of members


def test_a_member_that_comes_late_is_kept(page: Page) -> None:
    """Beyond what is read before the first result, a row's own members keep their names, too."""
    early = json.dumps({"comment": "love", "more": "x" * 20_000})
    late = {"comment": "worst", "Label": "mine", "predicted_label": "an older one"}
    choose(page, "a.jsonl", "\n".join([early] * 60 + [json.dumps(late)]).encode())
    page.get_by_label("Column of the texts").select_option("comment")
    classify(page)
    *_, before, last = read(saved(page).path(), ".jsonl")
    assert before["label"] == "positive"
    assert last == {**last, **late, "predicted_predicted_label": "negative"}


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("a.csv", b"I love this\nI hate this\nmeh\n", ["I love this"]),
        ("a.jsonl", b'{"id": 1, "comment": "love"}\n', ["comment"]),
        ("a.txt", b"love\nworst\n", []),
    ],
)
def test_the_only_column(page: Page, name: str, content: bytes, columns: list[str]) -> None:
    """Its name is shown, which is the first text if there is no header; a TXT file has none."""
    choose(page, name, content)
    expect(page.get_by_role("combobox", name="Column of the texts")).to_have_count(len(columns))
    if columns:
        expect(page.get_by_label("Column of the texts").locator("option")).to_have_text(columns)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"id, the  text \n1,love\n"),
        ("a.jsonl", b'{"id": "1", " the  text ": "love"}\n'),
    ],
)
def test_spaces_in_the_name_of_a_column(page: Page, name: str, content: bytes) -> None:
    """A column may be called with spaces at the ends or several in a row."""
    choose(page, name, content)
    expect(page.get_by_label("Column of the texts")).to_have_value(" the  text ")
    expect(page.locator("#sample li")).to_have_text(["love"])
    classify(page)
    expect(rows(page).locator("td:first-child")).to_have_text(["positive"])


def test_rows_are_read_as_the_command_reads_them(
    page: Page, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of made-up files with quotes, separators and line ends anywhere, both read the same rows."""
    caplog.set_level("ERROR")
    choice = random.Random(7)
    made: list[tuple[str, str]] = []
    for _ in range(300):
        ending, separator = choice.choice([("csv", ","), ("csv", ";"), ("csv", "|"), ("tsv", "\t")])
        parts = ["a", "b ", '"', '"', '""', separator, "\n", "\r\n", "\r", "é"]
        lines = [separator.join(("id", choice.choice(["text", '"text"'])))]
        for _ in range(choice.randrange(6)):
            cells = ["".join(choice.choices(parts, k=choice.randrange(6))) for _ in range(2)]
            quoted = ['"' + cell.replace('"', '""') + '"' for cell in cells]
            lines.append(separator.join(map(choice.choice, zip(cells, quoted, strict=True))))
        content = "".join(line + choice.choice(["\n", "\r\n", "\r"]) for line in lines)
        made.append((f"a.{ending}", content))
    found = page.evaluate(
        """async (made) => {
          const { open } = await import(new URL("web/tables.js", location.href));
          const all = [];
          for (const [name, content] of made) {
            const rows = [];
            const table = await open(new File([content], name)).catch(() => undefined);
            for await (const { cells, error } of table?.rows("text") ?? []) {
              rows.push([cells, Boolean(error)]);
            }
            all.push(table ? rows : null);
          }
          return all;
        }""",
        made,
    )
    assert len({json.dumps(rows) for rows in found}) > 100
    for (name, content), ours in zip(made, found, strict=True):
        path = tmp_path / name
        path.write_bytes(content.encode())
        try:
            chunks = [*open_table(path, "text").chunks()]
        except UserError:
            assert ours is None, content
            continue
        theirs = [
            [row, not isinstance(text, str)]
            for chunk in chunks
            for row, text in zip(chunk.rows, chunk.texts, strict=True)
        ]
        assert ours == theirs, content


def test_a_long_file(page: Page) -> None:
    """It is sent in parts, a few at a time, and answered in its order; few rows are shown."""
    texts = [f"{word} {number}" for number in range(10_000) for word in ("worst", "love")]
    sent: list[int] = []
    page.on(
        "request",
        lambda request: (
            sent.append((request.post_data or "").count("\n"))
            if "/classify/stream" in request.url
            else None
        ),
    )
    choose(page, "long.txt", "\n".join(texts).encode())
    page.evaluate(
        """() => {
          window.parts = [];
          const bar = document.getElementById("bar");
          new MutationObserver(() => parts.push(bar.value)).observe(bar, { attributes: true });
        }"""
    )
    classify(page)
    expect(page.get_by_role("status")).to_have_text("20,000 texts classified")
    assert sum(sent) == len(texts)
    assert max(sent) <= 500
    parts = page.evaluate("parts")
    assert parts == sorted(parts)
    assert len(set(parts)) > 3
    expect(rows(page)).to_have_count(100)
    expect(page.get_by_text("The table has the first 1,000 texts and 0 errors")).to_be_visible()
    lines = saved(page).path().read_text(encoding="utf-8").splitlines()
    assert [line.split("\t")[2] for line in lines] == texts
    assert [line.split("\t")[0] for line in lines] == ["negative", "positive"] * 10_000


def test_what_the_user_does_while_a_file_is_read(page: Page) -> None:
    """The next rows leave an open row open, and the focus where it is, though they come before it.

    This also holds if the row is then beyond those that are shown at first.
    """
    waiting: list[Route] = []
    first = [f"love x {number:02}" for number in range(50)]
    texts = [f"{word} {number}" for number in range(750) for word in ("worst", "love")]
    page.route("**/classify/stream**", lambda route: waiting.append(route))
    choose(page, "a.txt", "\n".join([*first, *texts]).encode())
    page.get_by_role("button", name="Classify").click()

    def have_asked() -> bool:
        page.wait_for_timeout(10)
        return bool(waiting)

    def next_rows(total: int) -> None:
        """Let the rows of one more request come."""
        eventually(have_asked)
        waiting.pop(0).continue_()
        expect(page.locator("#done")).to_contain_text(f"{total:,} texts")

    next_rows(50)
    page.get_by_role("columnheader", name="Text").get_by_role("button").click()
    row = page.get_by_role("button", name="love x 03")
    row.click()
    details = page.locator("tr.details")
    expect(details.locator(".word").first).to_be_visible()
    for focused, total in ((row, 550), (details.get_by_text("The answer as JSON"), 1_050)):
        focused.focus()
        next_rows(total)
        expect(focused).to_be_focused()
        expect(row).to_have_attribute("aria-expanded", "true")
        expect(details.get_by_role("group", name="Text")).to_have_attribute("tabindex", "0")
        assert row.evaluate("row => row.closest('tr').nextElementSibling.className") == "details"
    shown = rows(page).locator("button[dir]").all_inner_texts()
    assert shown == sorted([*first, *texts][:1_000])[: len(shown)]
    assert 100 < len(shown) < 1_000
    label = page.get_by_role("button", name=re.compile(r"\d positive"))
    label.click()
    next_rows(1_550)
    expect(label).to_be_focused()
    expect(label).to_have_text("800 positive 52%")
    assert rows(page).locator("button[dir]").all_inner_texts() == shown


def test_what_is_not_a_file_of_texts(page: Page, visits: Visits) -> None:
    """One line says what is wrong and what to do; nothing is sent, and the text box is back.

    The answer to the texts before is gone.
    """
    before = len(visits.requests)
    for name, content, message in REFUSED:
        page.locator("#file").set_input_files(payload(name, content))
        alert = page.get_by_role("alert")
        expect(alert).to_contain_text(message)
        expect(alert).to_contain_text(f"{name} cannot be read")
        expect(page.get_by_role("textbox", name="Your text")).to_be_visible()
        expect(page.locator("#result")).to_be_empty()
    assert len(visits.requests) == before


def test_what_is_odd_in_a_file(page: Page) -> None:
    """The page names a cell whose lines could be rows, and says if there are no rows.

    Then the table of the file before, which could be saved, is gone.
    """
    choose(page, "a.csv", b'id,text\n1,"love\n2,worst\n3,so so"\n')
    classify(page)
    expect(page.get_by_text("Line 2: a cell in quotes has 3 lines")).to_be_visible()
    choose(page, "empty.csv", b"id,text\n")
    classify(page)
    expect(page.get_by_role("alert")).to_contain_text("The file has no rows")
    expect(page.locator("#result")).to_be_empty()


def test_cancel(start: Start, visits: Visits) -> None:
    """What was classified until then is shown and can be saved; the file can be tried again."""
    process = start(command=SLOW_COMMAND)
    page = visits.open(process.url)
    choose(page, "long.csv", b"text\n" + b"love\n" * 20_000)
    page.get_by_role("button", name="Classify").click()
    expect(rows(page).first).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
    expect(page.get_by_role("status")).to_have_text("Cancelled")
    expect(page.get_by_role("heading", name="long.csv")).to_be_focused()
    with saved(page).path().open(encoding="utf-8-sig", newline="") as file:
        found = [*csv.DictReader(file)]
    assert 50 <= len(found) < 20_000
    assert {(row["text"], row["label"]) for row in found} == {("love", "positive")}
    page.get_by_role("button", name="Remove the file").click()
    expect(page.get_by_role("textbox", name="Your text")).to_be_focused()


@pytest.mark.parametrize("kind", ["file", "list"])
def test_a_busy_service(page: Page, kind: str) -> None:
    """What is refused for a while is sent again when the service says; no row is lost or twice."""
    refusals: list[dict[str, Any]] = [
        {"status": 429, "headers": {"retry-after": "1"}, "body": "{}"},
        {"status": 502, "body": "<h1>Bad gateway</h1>"},
        {"status": 503, "headers": {"retry-after": "1"}, "body": "{}"},
        {
            "status": 200,
            "body": '{"id":0,"label":"positive"}\n{"id":null,"error":{"message":"stops"}}',
        },
    ]

    def answer(route: Route) -> None:
        if refusals:
            route.fulfill(**refusals.pop())
        else:
            route.continue_()

    texts = [f"love {number}" for number in range(700)]
    if kind == "file":
        page.route("**/classify/stream**", answer)
        choose(page, "a.txt", "\n".join(texts).encode())
    else:
        del refusals[3:]  # a list has no stream
        page.route("**/classify", answer)
        page.get_by_role("textbox", name="Your text").fill("\n".join(texts))
    classify(page)
    expect(page.get_by_role("heading", name="700 texts")).to_be_visible()
    expect(page.get_by_role("alert")).to_be_empty()
    assert not refusals
    with page.expect_download() as download:
        page.get_by_role("button", name=re.compile("^Download")).click()
    lines = download.value.path().read_text(encoding="utf-8-sig").splitlines()
    if kind == "file":
        assert [line.split("\t")[2] for line in lines] == texts
    else:
        assert [line.split(",")[0] for line in lines[1:]] == texts


@pytest.mark.parametrize("kind", ["file", "list"])
def test_why_the_page_waits(page: Page, kind: str) -> None:
    """Between two tries, the page says whether the service is busy or nothing has answered."""
    if kind == "file":
        choose(page, "a.txt", b"love\nworst")
    else:
        page.get_by_role("textbox", name="Your text").fill("love\nworst")
    for answer, why in (
        (partial(Route.abort, error_code="connectionrefused"), "No answer"),
        (partial(Route.fulfill, status=502, body=""), "The service is busy"),
        (
            partial(Route.fulfill, status=429, headers={"retry-after": "9"}, body="{}"),
            "The service is busy",
        ),
    ):
        page.unroute("**/classify**")
        page.route("**/classify**", answer)
        page.get_by_role("button", name="Classify").click()
        words = re.compile(rf"^{why}, next try in \d+ seconds$")
        expect(page.locator("#done")).to_have_text(words)
        expect(page.get_by_role("status")).to_have_text(words)
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("status")).to_have_text("Cancelled")


def test_another_model_in_between(page: Page) -> None:
    """A file is of one model: if the service loads another, the page stops and says so."""
    asked: list[str] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        first = len(asked) == 1
        response = route.fetch()
        digest = response.headers["x-model-digest"] if first else "0" * 64
        route.fulfill(response=response, headers={**response.headers, "x-model-digest": digest})

    page.route("**/classify/stream**", answer)
    choose(page, "a.txt", b"love\n" * 200)
    classify(page)
    expect(page.get_by_role("alert")).to_contain_text("The service has loaded another model")
    expect(page.get_by_role("heading", name="50 texts")).to_be_visible()


def test_an_answer_of_a_proxy(page: Page) -> None:
    """What is not the service's answer is not shown as one."""
    choose(page, "a.txt", b"love\nworst")
    for body in ("", "<h1>sorry</h1>", '{"id":0}\n{"id":2}', '{"id":0,"label":"x"}'):
        page.unroute("**/classify/stream**")
        page.route("**/classify/stream**", partial(Route.fulfill, body=body))
        classify(page)
        expect(page.get_by_role("alert")).to_contain_text("A proxy may have sent it.")


def test_a_dropped_file(page: Page) -> None:
    """A file can be dropped anywhere on the page, and is in the history.

    Of several, none is taken, and the page says so.
    """
    drop = """(names) => {
      const dataTransfer = new DataTransfer();
      for (const name of names) dataTransfer.items.add(new File(["love\\nworst"], name));
      for (const type of ["dragover", "drop"]) {
        const options = { dataTransfer, bubbles: true, cancelable: true };
        document.body.dispatchEvent(new DragEvent(type, options));
      }
    }"""
    page.evaluate(drop, ["dropped.txt", "other.txt"])
    expect(page.get_by_role("alert")).to_have_text(re.compile("Several files.*Drop one"))
    expect(page.get_by_role("textbox", name="Your text")).to_be_visible()
    page.evaluate(drop, ["dropped.txt"])
    expect(page.get_by_role("heading", name="dropped.txt")).to_be_focused()
    expect(page.get_by_role("alert")).to_be_empty()
    page.keyboard.press("Tab")
    classify(page)
    expect(rows(page)).to_have_count(2)
    page.get_by_role("button", name="Emoji").click()
    expect(page.get_by_role("textbox", name="Your text")).to_be_visible()
    page.get_by_text("Earlier in this tab").click()
    page.get_by_role("button", name="2 texts dropped.txt").click()
    expect(rows(page)).to_have_count(2)


@pytest.mark.parametrize(("width", "scheme"), [(320, "dark"), (1200, "light")])
def test_colours_and_widths(page: Page, width: int, scheme: Any) -> None:
    """A chosen and a classified file fit a phone, and axe-core finds no fault."""
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 740})
    choose(page, "reviews.csv", TEN.replace(b"so so", b"x" * 300))
    for classified in (False, True):
        if classified:
            classify(page)
            page.get_by_text("Earlier in this tab").click()
            rows(page).first.click()
            expect(page.locator("tr.details .word").first).to_be_visible()
            page.get_by_text("The answer as JSON").click()
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
        assert faults(page) == []

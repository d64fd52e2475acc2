"""What the README and the pages of docs/ show is what happens."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sentiment_export.cli import main as sentiment_export
from sentiment_service.engine.model.bundle import MANIFEST, Bundle, sha256
from sentiment_service.errors import ServiceError
from sentiment_service.settings.settings import CheckpointOptions, Settings, flag

from tests.conftest import FLAGS, served
from tests.support.checkpoints import CORPUS, make_checkpoint, make_twitter_roberta
from tests.support.model_export.hub import Hub
from tests.support.serving import ROOT, Process, installed, run_program
from tests.support.tiny_bundle import LABELS, make_bundle

README, API, CLIENTS, MIGRATE, MODELS, SETTINGS = (
    (ROOT / page).read_text(encoding="utf-8")
    for page in (
        "README.md",
        "docs/api.md",
        "docs/clients.md",
        "docs/migrate.md",
        "docs/models.md",
        "docs/settings.md",
    )
)
EXAMPLES = [
    (command, output)
    for block in re.findall(r"```console\n(.*?)```", README + API + CLIENTS + MIGRATE, re.DOTALL)
    for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]
# Runs ``sentiment-export`` with each list of arguments, until one fails. BERT's family needs no
# PyTorch, whose import takes four seconds.
EXPORTER = """
import json, sys
sys.modules["torch"] = None
from sentiment_export.cli import main
sys.exit(any(main(words) for words in json.loads(sys.argv[1])))
"""
PYTHON = re.findall(r"```python\n(.*?)```", README + CLIENTS, re.DOTALL)


def test_the_examples_are_found() -> None:
    """Python, four clients, the server and the command line: no test passes by finding none."""
    commands = [command.split()[0] for command, _ in EXAMPLES]
    assert len(PYTHON) == 5
    assert commands.count("curl") >= 4
    assert ".venv/bin/sentiment" in commands


embedded = served(embedded=True)


@pytest.mark.parametrize(
    "more", [{}, {"label": "positive", "score": 3}, {"predicted_label": "x", "score": "y"}]
)
def test_a_clouds_answers_are_compared_with_ours(
    embedded: Process, tmp_path: Path, more: dict[str, Any]
) -> None:
    """As docs/migrate.md says it: with documents of Azure, answers of AWS, and two forms of Google.

    Members of the user's that are called like a result, or as one of another run, are not read.
    """
    azure = {"id": "1", "sentiment": "positive", "confidenceScores": {"positive": 0.99}}
    aws = {"Sentiment": "NEGATIVE", "SentimentScore": {"Negative": 0.98, "Mixed": 0.01}}
    google = {"documentSentiment": {"magnitude": 0.8, "score": 0.8}, "language": "en"}
    answers = [
        ("I love this!", azure),
        ("worst service ever", aws),
        ("The train leaves at nine.", google),
        ("Good food, awful service.", {**azure, "sentiment": "mixed"}),
        (" ", {"documentSentiment": {}}),
        ("I love this!", {"document_sentiment": {"magnitude": 0.8, "score": 0.8}}),
    ]
    lines = [json.dumps({"text": text, "cloud": cloud, **more}) for text, cloud in answers]
    saved, both = tmp_path / "answers.jsonl", tmp_path / "both.jsonl"
    saved.write_text("\n".join(lines), encoding="utf-8")
    files = ("--input", str(saved), "--output", str(both))
    classify = (sys.executable, "-m", "sentiment_service", "classify", "--url", embedded.url)
    assert run_program(*classify, *files).returncode == 0
    done = run_program(sys.executable, str(ROOT / "docs/compare.py"), str(both))
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["cloud", "here", "texts"]
    assert sorted(rows[1:6]) == [
        ["mixed", "negative", "1"],
        ["negative", "negative", "1"],
        ["neutral", "no", "result", "1"],
        ["positive", "neutral", "1"],
        ["positive", "positive", "2"],
    ]
    assert "agreement, without mixed: 3 of 5 (60.0%)" in done.stdout
    assert "positive / neutral 0.79" in done.stdout


NO_CLOUD = "`cloud` must be one document of Azure, or the answer of AWS or Google for one text"
NO_RESULT = "it has no result; give what `sentiment classify --output both.jsonl` has written"


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (b'{"text": "a", "cloud": {"Sentiment": "MIXED"}}', NO_RESULT),
        (b"text,cloud,label,score", "it is not a line of JSON Lines"),
        (b"PAR1\x15\xff\x84", "it is not a line of JSON Lines"),
        (b"[]", "it must be an object with the members `text` and `cloud`"),
        (
            b'{"tweet": "a", "cloud": {}}',
            "it must be an object with the members `text` and `cloud`",
        ),
        (b'{"text": "a", "cloud": null, "label": "positive", "score": 1}', NO_CLOUD),
        (b'{"text": "a", "cloud": "{}", "label": "positive", "score": 1}', NO_CLOUD),
        (b'{"text": "a", "cloud": {"ResultList": []}, "label": "positive", "score": 1}', NO_CLOUD),
        (
            b'{"text": "a", "cloud": {"documentSentiment": 1}, "label": "positive", "score": 1}',
            NO_CLOUD,
        ),
    ],
)
def test_a_line_that_cannot_be_compared_is_named(tmp_path: Path, line: bytes, wrong: str) -> None:
    """The comparison with a cloud ends with the file, the line and what is accepted."""
    good = b'{"text": "a", "cloud": {"Sentiment": "MIXED"}, "label": "positive", "score": 1}\n'
    both = tmp_path / "both.jsonl"
    both.write_bytes(good + line + b"\n")
    done = run_program(sys.executable, str(ROOT / "docs/compare.py"), str(both))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{both}, line 2: {wrong}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "usage: python compare.py FILE.jsonl"), (["none.jsonl"], "none.jsonl: No such file")],
)
def test_a_comparison_without_a_file_says_so(arguments: list[str], said: str) -> None:
    """Without a file, or with one that is not there, the command names what it needs."""
    done = run_program(sys.executable, str(ROOT / "docs/compare.py"), *arguments)
    assert (done.returncode, done.stderr.startswith(said)) == (1, True)


@pytest.mark.parametrize(("command", "output"), EXAMPLES)
def test_an_example_prints_what_the_readme_shows(
    embedded: Process, command: str, output: str
) -> None:
    """Every command in the pages gives the answer below it, figures to three places."""
    installed("curl", "curl")
    here = command.replace("localhost:8000", f"127.0.0.1:{embedded.port}")
    here = here.replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    done = run_program("bash", "-c", here)
    assert done.returncode == 0, done.stderr
    if output.startswith(("{", "[")):
        assert _rounded(json.loads(done.stdout)) == _rounded(json.loads(output))
    else:
        assert done.stdout == output


@pytest.mark.parametrize("code", PYTHON, ids=lambda code: code.split()[1])
def test_a_python_example_prints_what_its_comments_say(embedded: Process, code: str) -> None:
    """Each client of the section, unchanged but for the port, without a warning."""
    if "pandas" in code:
        pytest.importorskip("pandas")
    here = code.replace("localhost:8000", embedded.url[7:])
    done = run_program(sys.executable, "-W", "error", "-c", here)
    assert done.returncode == 0, done.stderr
    said = " ".join(re.findall(r"print\(.*\)  # (.*)", code))
    assert done.stdout.split() == said.split()


def test_the_lines_for_who_comes_from_other_packages_work() -> None:
    """Those of docs/python.md, with the embedded model in the place of those of the hub."""
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `.*` \| `(.*)` \|$", page, re.MULTILINE)
    assert len(rows) == 4
    lines = re.findall(r"^\| before \| here, after `(.*)` \|$", page, re.MULTILINE)
    lines += ['text, texts, NAME = "I love it", ["I love it", "bad"], None']
    for row in rows:
        *before, last = re.sub(r'Classifier\(".*?"\)', "Classifier()", row).split("`<br>`")
        lines += [*before, f"print({last})"]
    done = run_program(sys.executable, "-W", "error", "-c", "\n".join(lines))
    assert done.returncode == 0, done.stderr
    label, labels, scores, polarity = done.stdout.splitlines()
    assert (label, labels, scores[:13]) == ("positive", "['positive', 'negative']", "{'negative': ")
    assert float(polarity) > 0.5


def test_the_function_for_other_processes_works(tmp_path: Path) -> None:
    """That of docs/python.md: pickled, in forks of a process that has used it, and in new ones."""
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    program = """
import multiprocessing
from mine import add_columns
rows = {"text": ["I love it"]}
print(*add_columns(rows)["label"])
for way in ("fork", "spawn"):
    with multiprocessing.get_context(way).Pool(1) as pool:
        print(*pool.apply(add_columns, [rows])["label"])
"""
    done = run_program(
        sys.executable, "-c", program, cwd=tmp_path, SENTIMENT_MAX_BATCH_TOKENS="512"
    )
    assert done.stdout.split() == ["positive"] * 3, done.stderr


def test_the_export_section_works_word_by_word(tmp_path: Path) -> None:
    """Its commands, against a hub on this machine: described, exported, classified, served."""
    section = README.split("## Your own model")[1].split("```sh\n")[1].split("```")[0]
    setup, describe, export, classify, serve = section.splitlines()
    assert setup.startswith("make install-dev")
    words = [shlex.split(command) for command in (describe, export)]
    assert [program for program, *_ in words] == [".venv/bin/sentiment-export"] * 2
    assert Path(sys.executable).with_name("sentiment-export").exists()
    both = [".venv/bin/python", "-c", EXPORTER, json.dumps([rest for _, *rest in words])]
    repo_id = "cardiffnlp/twitter-roberta-base-sentiment-latest"
    source = make_twitter_roberta(tmp_path / "source")
    (source / "tf_model.h5").write_bytes(b"never fetched")
    with Hub() as hub:
        commit = hub.add(repo_id, source)
        exported = _run(shlex.join(both), tmp_path, hub.url)
        assert "tf_model.h5" not in {request.name for request in hub.requests}
        classified = _run(classify, tmp_path, hub.url)
    assert "\n  the graph: padding left out" in exported  # what describe says
    assert exported.splitlines()[-1] == "wrote models/twitter-roberta"
    assert classified.split("\t")[0] in ("negative", "neutral", "positive")
    manifest = Bundle.open(tmp_path / "models/twitter-roberta").manifest
    assert (manifest.source.repo_id, manifest.source.revision) == (repo_id, commit)
    assert manifest.preprocessing == "tweet"
    assert serve == ".venv/bin/sentiment serve --model models/twitter-roberta"
    with Process("--model", str(tmp_path / "models/twitter-roberta"), *FLAGS) as process:
        answer = httpx2.post(f"{process.url}/classify", json={"inputs": "I love this!"})
    assert answer.status_code == 200
    assert answer.json()["model"] == {
        "name": "twitter-roberta",
        "revision": commit,
        "precision": "int8",
        "digest": sha256(tmp_path / "models/twitter-roberta" / MANIFEST),
    }


def test_training_exporting_and_serving_work_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands of docs/models.md, unchanged, with a tiny encoder."""
    section = MODELS.split("## Fine-tuning")[1].split("```sh\n")[1].split("```")[0]
    train, export, serve = section.splitlines()
    make_checkpoint(tmp_path / "path/to/encoder", "bert")
    rows = [f"en\t{LABELS[n % 3]}\t{text}\n" for n, text in enumerate(CORPUS)]
    (tmp_path / "train.tsv").write_text("".join(rows[:9]), encoding="utf-8")
    (tmp_path / "val.tsv").write_text("".join(rows[9:]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    _export(train, export)
    program, command, *flags, bundle = shlex.split(serve)
    assert (program, command) == (".venv/bin/sentiment", "serve")
    with Process(*flags, str(tmp_path / bundle)) as process:
        answer = httpx2.post(f"{process.url}/classify", json={"inputs": CORPUS[0]}).json()
    assert answer["model"]["name"] == "mine"
    assert answer["labels"] == LABELS


def test_a_student_is_made_and_compared_with_its_teacher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of docs/models.md, unchanged, with a tiny bundle."""
    section = MODELS.split("## Distilling")[1].split("```sh\n")[1].split("```")[0]
    checkpoint = make_checkpoint(tmp_path / "checkpoint", "bert", hidden_size=96)
    monkeypatch.chdir(tmp_path)
    assert sentiment_export([str(checkpoint), "--output", "models/mine"]) == 0
    texts = [f"{text} {row}" for row in range(50) for text in CORPUS]
    Path("texts.txt").write_text("\n".join(texts), encoding="utf-8")
    rows = [f"en\t{LABELS[n % 3]}\t{text}\n" for n, text in enumerate(CORPUS)]
    Path("labelled.tsv").write_text("".join(rows), encoding="utf-8")
    _export(*section.splitlines())
    assert "texts whose labels changed: " in capsys.readouterr().out


def test_the_commands_of_an_evaluation_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of docs/models.md, unchanged, with tiny bundles."""
    section = MODELS.split("## Accuracy")[1].split("```sh\n")[1].split("```")[0]
    make_bundle(tmp_path / "models/mine")
    make_bundle(tmp_path / "models/old", labels=LABELS[::-1])
    (tmp_path / "labelled.csv").write_text("tweet,mood\nlove,positive\nworst,negative\n")
    (tmp_path / "labelled.tsv").write_text("en\tpositive\tlove\nen\tneutral\tit\n")
    monkeypatch.chdir(tmp_path)
    for command in section.splitlines():
        _export(command)
        assert "\npositive     1.0000  1.0000  1.0000" in capsys.readouterr().out
    assert "<svg " in (tmp_path / "matrix.svg").read_text()


def _export(*commands: str) -> None:
    for program, *words in map(shlex.split, commands):
        assert program == ".venv/bin/sentiment-export"
        assert sentiment_export(words) == 0


def _run(command: str, directory: Path, endpoint: str) -> str:
    here = command.replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    home = str(directory / "hub")
    done = run_program(
        "bash", "-c", here, cwd=directory, timeout_s=600, HF_ENDPOINT=endpoint, HF_HOME=home
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_settings_table_lists_every_setting() -> None:
    """The table of docs/settings.md has each flag, variable and default, and no other row.

    The settings of checkpoints come last.
    """
    rows = re.findall(r"^\| `(--[a-z-]+)` \| `(\w+)` \| (.*?) \|", SETTINGS, re.MULTILINE)

    assert rows == [
        (
            flag(name),
            f"SENTIMENT_{name.upper()}",
            "the embedded model" if name == "model" else _default(field.default),
        )
        for name, field in sorted(
            Settings.model_fields.items(), key=lambda one: one[0] in CheckpointOptions.model_fields
        )
    ]


def test_the_error_table_lists_every_error() -> None:
    """Each status with each of its codes, but for the one that no client sees."""
    rows = re.findall(r"^\| (\d{3}) \| (`.*?`) \|", API, re.MULTILINE)
    listed = {(int(status), code) for status, codes in rows for code in re.findall(r"\w+", codes)}
    errors = {(error.status, error.code) for error in ServiceError.__subclasses__()}

    assert listed == errors - {(499, "client_disconnected")}


def _default(value: Any) -> str:
    return "off" if value is False else "none" if value in ("", (), None) else f"`{value}`"


def _rounded(value: Any) -> Any:
    """JSON without what differs from call to call, floats rounded."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items() if key != "request_id"}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, 3) if isinstance(value, float) else value

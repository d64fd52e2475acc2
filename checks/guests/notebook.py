"""The Python of README.md and docs/python.md, run as a notebook: ``notebook.py ROOT URL``.

It runs in an environment of guests that has nbclient. The notebook is made of the pages each time.
"""

import re
import sys
from pathlib import Path

import nbclient
import nbformat

# What the lines of docs/python.md take as given.
GIVEN = 'text, texts, NAME = "I love it", ["I love it", "bad"], None'


def main() -> None:
    """Raise an error at the first cell that fails, or prints something else than it says."""
    root, url = Path(sys.argv[1]), sys.argv[2]
    readme, python = (root / page for page in ("README.md", "docs/python.md"))
    blocks = re.findall(r"```python\n(.*?)```", readme.read_text("utf-8"), re.DOTALL)
    rows = re.findall(r"^\| `.*` \| `(.*)` \|$", python.read_text("utf-8"), re.MULTILINE)
    lines = [re.sub(r'Classifier\(".*?"\)', "Classifier()", row) for row in rows]
    sources = [block.replace("http://localhost:8000", url) for block in blocks]
    sources += [GIVEN, *(line.replace("`<br>`", "\n") for line in lines)]
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, sources)])
    nbclient.NotebookClient(notebook, timeout=300).execute()
    for cell in notebook.cells:
        said = " ".join(re.findall(r"print\(.*\)  # (.*)", cell.source)).split()
        shown = [one for one in cell.outputs if one.output_type == "execute_result"]
        printed = "".join(one.get("text", "") for one in cell.outputs).split()
        if printed != said or bool(shown) == bool(said or cell.source == GIVEN):
            sys.exit(f"{cell.source}\ngave {cell.outputs}")
    print(f"{len(blocks)} examples of README.md, {len(rows)} of docs/python.md")


main()

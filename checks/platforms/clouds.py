"""Calls the service with the clients of clouds, as their users do: ``make platform-check``.

What a client needs is said once more where it differs: docs/migrate.md.
"""

import sys
from pathlib import Path

from sentiment_service.engine.model.bundle import EMBEDDED_BUNDLE

from benchmarks.service import Service
from checks.platforms.check import called
from checks.platforms.generated_clients import CALLS, found, node_modules, problem_of, run

KEY = "key-of-the-check"
CLOUDS = ("azure_language", "comprehend", "google_language")
# Two requests of the clients' crowds fill it. Each takes the model longer than it takes a client
# to send the next, so that some of eight are refused on any machine.
CROWDED = ("--max-queue-tokens", "8192")


def main() -> int:
    failed = False
    with (
        Service(EMBEDDED_BUNDLE, "--api-keys", KEY) as service,
        Service(EMBEDDED_BUNDLE, "--api-keys", KEY, *CROWDED) as crowded,
    ):
        problems = {name: called(name, service.url, KEY, crowded.url) for name in CLOUDS}
        problems["clouds-javascript"] = problem_of(javascript, service.url)
    for name, problem in problems.items():
        print(f"platform-check: {name}: {problem or 'ok'}", flush=True)
        failed = failed or problem.startswith("FAILED")
    return int(failed)


def javascript(folder: Path, url: str) -> None:
    """Azure's clients and AWS' client, in Node."""
    (folder / "node_modules").symlink_to(node_modules())
    script = Path(folder, "call.mjs")
    script.write_text((CALLS / "call_clouds.mjs").read_text())
    run([found("node"), script, url, KEY], folder)


if __name__ == "__main__":
    sys.exit(main())

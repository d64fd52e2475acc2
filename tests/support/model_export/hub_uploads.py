"""What a model hub answers to a client that pushes files: made repositories, uploads, commits."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

LARGE_BYTES = 100  # a larger file is uploaded by itself, before the commit


class Uploads:
    """Keeps what is pushed in a folder of ``directory`` for each repository.

    ``add`` gets a repository's id and its folder after each commit, and gives the commit's id.
    """

    def __init__(self, url: str, directory: Path, add: Callable[[str, Path], str]) -> None:
        self._url = url
        self._directory = directory
        self._add = add
        self.made: list[str] = []
        self.uploaded: dict[str, bytes] = {}  # by digest

    def answer(self, path: str, body: bytes) -> dict[str, Any] | None:
        """The answer to POST or PUT; None if there is no such path."""
        parts = path.strip("/").split("/")
        if path.startswith("/uploads/"):
            self.uploaded[parts[-1]] = body
            return {}
        if path.endswith("/commit/main"):
            return self._commit("/".join(parts[2:4]), body)
        asked = json.loads(body)
        if path == "/api/repos/create":
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            self.made.append(name)
            return {"url": f"{self._url}/{name}"}
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if path.endswith("/preupload/main"):
            modes = {True: "lfs", False: "regular"}
            files = [
                {
                    "path": file["path"],
                    "uploadMode": modes[file["size"] > LARGE_BYTES],
                    "shouldIgnore": False,
                }
                for file in asked["files"]
            ]
            return {"files": files}
        if path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**one, "actions": {"upload": {"href": f"{self._url}/uploads/{one['oid']}"}}}
                for one in asked["objects"]
            ]
            return {"transfer": "basic", "objects": objects}
        return None

    def _commit(self, repo_id: str, body: bytes) -> dict[str, Any]:
        directory = self._directory / repo_id.replace("/", "--")
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                continue
            target = directory / unquote(value["path"])
            target.parent.mkdir(parents=True, exist_ok=True)
            if line["key"] == "lfsFile":
                target.write_bytes(self.uploaded[value["oid"]])
            else:
                target.write_bytes(base64.b64decode(value["content"]))
        commit = self._add(repo_id, directory)
        return {"commitUrl": f"{self._url}/{repo_id}/commit/{commit}", "commitOid": commit}

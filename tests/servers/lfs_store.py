"""A server of Git LFS beside git's own, honest and misbehaving."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.repositories import Repository
from tests.servers.git_lfs import bring_git_lfs

ATTRIBUTES = "*.bin filter=lfs diff=lfs merge=lfs -text\n"


class LfsStore:
    """Contents of large files, and how the server tells of them; brings git-lfs."""

    def __init__(self) -> None:
        bring_git_lfs()
        self.contents: dict[str, bytes] = {}
        self.href: Callable[[str, str], str] = lambda origin, oid: f"{origin}/content/{oid}"
        """The URL of an object by the server's own and the object's name."""
        self.header: Callable[[Any], Mapping[str, str]] = lambda _: {}
        """What the server tells the client to send for an object, by the handler of the request."""
        self.answer: Callable[[Any], bool] = lambda _: False
        """Answers a request in another way, if it returns True."""

    def commit(self, repository: Repository, files: Mapping[str, bytes], **plain: str) -> str:
        """Commit large files as pointers."""
        pointers: dict[str, str | bytes] = {".gitattributes": ATTRIBUTES, **plain}
        for name, content in files.items():
            oid = hashlib.sha256(content).hexdigest()
            self.contents[oid] = content
            pointers[name] = (
                f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(content)}\n"
            )
        return repository.commit(pointers)

    def handler(self, server: Any) -> Any:
        """Serve large files in front of the handler of a git server."""
        store = self

        def do_get(self: Any) -> None:
            if "/info/lfs/" not in self.path and "/content/" not in self.path:
                server.do_GET(self)
            elif not store.answer(self):
                body = store.body(self)
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return type("Lfs", (server,), {"do_GET": do_get})

    def body(self, handler: Any) -> bytes:
        """The honest answer to a request."""
        if "/content/" in handler.path:
            return self.contents[handler.path.rpartition("/")[2]]
        message = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        origin = f"https://{handler.headers['Host']}"
        objects = []
        for each in message["objects"]:
            action = {"href": self.href(origin, each["oid"]), "header": dict(self.header(handler))}
            known = {"actions": {"download": action}} if each["oid"] in self.contents else {}
            objects.append({"oid": each["oid"], "size": each["size"], **known})
        return json.dumps({"transfer": "basic", "objects": objects}).encode()

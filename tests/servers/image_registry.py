"""A registry of images on loopback that serves one image, or answers with an error."""

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

OCI = "application/vnd.oci.image.manifest.v1+json"


@dataclass(kw_only=True)
class ImageRegistry:
    """What the registry answers, and what it was asked."""

    folder: Path
    """An image as `podman push ... dir:FOLDER` writes it."""
    address: str = ""
    status: int = 200
    """The answer about manifests, if it is an error."""
    error: str = ""
    login: str = ""
    """`user:password`, which every request has to have."""
    on_question: Callable[[], object] = lambda: None
    """Called at each question for a manifest, while it waits for the answer."""
    requests: list[str] = field(default_factory=list)
    """The paths of manifests that were asked for."""

    @property
    def manifest(self) -> bytes:
        return (self.folder / "manifest.json").read_bytes()

    @property
    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.manifest).hexdigest()}"

    def is_let_in(self, authorization: str | None) -> bool:
        right = f"Basic {base64.b64encode(self.login.encode()).decode()}"
        return not self.login or authorization == right

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """The status, the type and the body."""
        if path == "/v2/":
            return 200, "application/json", b"{}"
        kind, reference = path.split("/")[-2:]
        if kind == "blobs" and (self.folder / reference.removeprefix("sha256:")).exists():
            blob = (self.folder / reference.removeprefix("sha256:")).read_bytes()
            return 200, "application/octet-stream", blob
        if kind == "manifests":
            self.requests.append(reference)
            self.on_question()
            if self.status == 200 and reference in {"1", self.digest}:
                return 200, OCI, self.manifest
        status, error = (404, "MANIFEST_UNKNOWN") if self.status == 200 else (self.status, self.error)
        body = json.dumps({"errors": [{"code": error, "message": error.lower().replace("_", " ")}]})
        return status, "application/json", body.encode()


@contextmanager
def image_registry(folder: Path) -> Iterator[ImageRegistry]:
    """Serve the image in `folder` under every name, with the tag `1`."""
    registry = ImageRegistry(folder=folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            let_in = registry.is_let_in(self.headers["Authorization"])
            status, kind, body = registry.answer(self.path) if let_in else (401, "application/json", b"{}")
            self.send_response(status)
            if not let_in:
                self.send_header("WWW-Authenticate", 'Basic realm="images"')
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815  the name that http.server looks up

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.address = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, name="image registry")
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

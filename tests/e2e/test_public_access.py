"""`solstice up` with a public address needs a token for requests that a proxy forwards."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.servers.solstice_up import SolsticeUp, solstice_up

PUBLIC = "ci.harbour.example"
FOR_ALL = {"/healthz", "/readyz", "/metrics", "/openapi.json"}
ID = "7d444840-9dc0-51d1-b245-5ffdce74fad2"
FORMS = ("/dead-letters/replay", "/dead-letters/drop")
PAGES = (
    *("/", "/workers", "/schedules", f"/runs/{ID}", f"/jobs/{ID}", "/deliveries"),
    *("/dead-letters", "/dead-letters/list", "/dead-letters/events", f"/dead-letters/{ID}", *FORMS),
)


@contextmanager
def forwarding(target: str, **sent: str) -> Iterator[str]:
    """A proxy on this machine that passes everything on with these headers more."""
    shared_files = urlsplit(target)

    class HeaderAdder(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            behind = http.client.HTTPConnection(shared_files.hostname or "", shared_files.port, timeout=30)
            behind.request(self.command, self.path, body, {**headers, **sent})
            answer = behind.getresponse()
            # A stream that is let through would never end; its status is enough.
            self.send_response(answer.status)
            content = b"" if "event-stream" in answer.headers.get("content-type", "") else answer.read()
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            behind.close()

        do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = _pass  # noqa: N815  http.server asks for these names

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), HeaderAdder) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SolsticeUp]:
    with solstice_up(tmp_path_factory.mktemp("up") / "state", "--public-url", f"https://{PUBLIC}") as running:
        yield running


def routes_of(base: str) -> list[tuple[str, str]]:
    """Every method and path of a service's document, and its pages."""
    document = httpx2.get(f"{base}/openapi.json", trust_env=False).raise_for_status().json()
    found = [
        (method.upper(), "/".join(ID if "{" in part else part for part in path.split("/")))
        for path, item in document["paths"].items()
        for method in item
        if method in {"get", "post", "put", "patch", "delete"}
    ]
    return [
        *((method, path) for method, path in found if path not in FOR_ALL),
        *(("GET", path) for path in PAGES),
        *(("POST", path) for path in FORMS),
    ]


def passed(base: str, url: str, **headers: str) -> dict[tuple[str, str], int]:
    with httpx2.Client(base_url=url, trust_env=False, timeout=30, headers=headers) as client:
        return {
            (method, path): client.request(method, path, json={} if method != "GET" else None).status_code
            for method, path in routes_of(base)
        }


@pytest.mark.parametrize(
    "sent",
    [{"X-Forwarded-For": "203.0.113.7"}, {"CF-Connecting-IP": "203.0.113.7"}, {"Host": PUBLIC}],
    ids=str,
)
def test_what_a_proxy_passes_on_opens_nothing_without_a_token(up: SolsticeUp, sent: dict[str, str]) -> None:
    for base in (up.page, up.webhooks.removesuffix("/webhooks")):
        with forwarding(base, **sent) as url:
            answers = passed(base, url)
            assert len(answers) > 8
            let_in = {what: status for what, status in answers.items() if status not in {401, 404, 421}}
            assert let_in == {}
            assert httpx2.get(f"{url}/healthz", trust_env=False).status_code == 200
            assert {what for what, status in answers.items() if status == 404} <= {
                *(("GET", path) for path in PAGES),
                *(("POST", path) for path in FORMS),
            }


def test_the_last_token_s_end_opens_nothing(up: SolsticeUp) -> None:
    assert httpx2.get(f"{up.page}/api/v1/runs", trust_env=False).status_code == 200
    up.solstice("token", "create", "one", "--scope", "read")
    reported = up.solstice("token", "revoke", "one")
    assert "That was the last token" in reported.stderr
    for base in (up.page, up.webhooks.removesuffix("/webhooks")):
        with forwarding(base, **{"X-Forwarded-For": "203.0.113.7"}) as url:
            assert set(passed(base, url).values()) <= {401, 404}
        assert set(passed(base, base).values()) <= {401, 404}
    refused = httpx2.get(f"{up.page}/api/v1/runs", trust_env=False)
    assert (refused.status_code, "no_tokens_left" in json.dumps(refused.json())) == (401, True)

"""The parts of uvicorn's inside that `http.server.protocol` uses are unchanged."""

import hashlib
import inspect

import uvicorn
from uvicorn.protocols.http import flow_control, httptools_impl


def test_uvicorns_inside_is_the_one_that_was_read() -> None:
    # When this fails: read what changed, run tests/unit/common/http, tests/unit/forge/edge/test_fast_path.py
    # and tests/integration/common/http/test_hostile_connections.py, and write the new digest here.
    inside = inspect.getsource(httptools_impl) + inspect.getsource(flow_control)
    assert hashlib.sha256(inside.encode()).hexdigest() == (
        "ea814cf42e50628dba76b72e12900943da6801b4bcf097f11dff4ea2cdc99455"
    )


def test_the_server_has_what_ours_replaces_and_closes() -> None:
    # Public by their names, and documented nowhere: `HttpServer` in `solstice_common.http.server.serving` relies on them.
    server = inspect.getsource(uvicorn.Server)
    assert "with self.capture_signals():" in server
    assert "await self.startup(sockets=sockets)" in server
    assert "self.servers.append(server)" in server
    assert (
        "for connection in list(self.server_state.connections):\n            connection.shutdown()" in server
    )

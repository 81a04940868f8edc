"""What `solstice_common.http.protocol` uses of uvicorn's inside is as it was when that was written."""

import hashlib
import inspect

from uvicorn.protocols.http import flow_control, httptools_impl


def test_uvicorns_inside_is_the_one_that_was_read() -> None:
    # When this fails: read what changed, run tests/unit/common/http, tests/unit/forge/edge/test_fast_path.py
    # and tests/integration/test_hostile_connections.py, and write the new digest here.
    inside = inspect.getsource(httptools_impl) + inspect.getsource(flow_control)
    assert hashlib.sha256(inside.encode()).hexdigest() == (
        "ea814cf42e50628dba76b72e12900943da6801b4bcf097f11dff4ea2cdc99455"
    )

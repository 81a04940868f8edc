"""One authority, which signs the certificates of all git servers."""

import pytest

from tests.servers.certificates import Authority, authority


@pytest.fixture(scope="session")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("certificates") / "authority")

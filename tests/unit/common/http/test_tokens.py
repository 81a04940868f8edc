"""Tokens, and the callers that they admit."""

import base64
import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from solstice_common.errors import ConfigurationError
from solstice_common.http.access import LOCAL, Access, Caller, Denied, admit, check_listening, log_access
from solstice_common.http.local_callers import is_loopback
from solstice_common.http.token_file import TokenFile, change
from solstice_common.http.tokens import Token, TokenScope, find, lifetime_seconds, mint

NOW = 1_800_000_000.0


def made(name: str, *scopes: TokenScope, lifetime: float | None = None) -> tuple[Token, str]:
    seed = hashlib.sha256(name.encode()).digest()
    return mint(name, scopes, now=NOW, lifetime_seconds=lifetime, random_bytes=seed)


READER, READS = made("reader", TokenScope.READ)
ASKER, ASKS = made("asker", TokenScope.ENQUEUE, lifetime=60)
BOTH = (READER, ASKER)


def login(password: str) -> str:
    return "Basic " + base64.b64encode(f"somebody:{password}".encode()).decode()


def test_of_a_token_only_its_hash_is_kept() -> None:
    assert READS.startswith("solstice_")
    assert READER.sha256 == hashlib.sha256(READS.encode()).hexdigest()
    assert READS not in repr(READER)
    assert READER.sha256 not in repr(READER)


@pytest.mark.parametrize("name", ["", "a b", "-x", "@local", "é", "x" * 64, "a\n"])
def test_name_that_could_be_misread_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="must be 1 to 63"):
        made(name, TokenScope.READ)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1800), ("12h", 43200), ("90d", 7_776_000), ("8w", 4_838_400)]
)
def test_lifetime_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert lifetime_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "d", "0d", "-1d", "1y", "1.5h", "1 d", "9999999d", "1d\n"])
def test_other_lifetimes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="30m, 12h, 90d or 8w"):
        lifetime_seconds(text)


@given(st.text())
def test_no_other_text_is_taken_for_a_token(text: str) -> None:
    assert find(BOTH, text) is None


@given(st.sampled_from([READS, ASKS]), st.data())
def test_a_token_with_one_letter_changed_is_unknown(token: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(token) - 1))
    character = data.draw(st.characters(codec="ascii").filter(lambda other: other != token[place]))
    assert find(BOTH, token[:place] + character + token[place + 1 :]) is None


@pytest.mark.parametrize(
    ("authorization", "needed", "answer"),
    [
        pytest.param(f"Bearer {READS}", TokenScope.READ, "reader", id="right token"),
        pytest.param(f"bearer   {READS} ", TokenScope.READ, "reader", id="scheme in lower case, spaces"),
        pytest.param(login(READS), TokenScope.READ, "reader", id="as the password of a login"),
        pytest.param(f"Bearer {READS}", TokenScope.OPERATE, "missing_scope", id="scope is missing"),
        pytest.param(f"Bearer {READS}", TokenScope.ENQUEUE, "missing_scope", id="read does not enqueue"),
        pytest.param(f"Bearer {ASKS}", TokenScope.READ, "missing_scope", id="enqueue does not read"),
        pytest.param(f"Bearer {ASKS}", TokenScope.ENQUEUE, "asker", id="not expired yet"),
        pytest.param(f"Bearer {READS}x", TokenScope.READ, "unknown_token", id="one letter more"),
        pytest.param("Bearer ", TokenScope.READ, "unknown_token", id="empty token"),
        pytest.param("Bearer \udcff", TokenScope.READ, "unknown_token", id="bytes that are no text"),
        pytest.param(login(""), TokenScope.READ, "unknown_token", id="empty password"),
        pytest.param("Basic !", TokenScope.READ, "unknown_token", id="login that is no base64"),
        pytest.param(None, TokenScope.READ, "token_needed", id="nothing"),
        pytest.param(READS, TokenScope.READ, "token_needed", id="without a scheme"),
        pytest.param(f"Digest {READS}", TokenScope.READ, "token_needed", id="another scheme"),
    ],
)
@pytest.mark.parametrize("is_local", [True, False], ids=["from here", "from afar"])
def test_with_tokens_the_token_decides(
    authorization: str | None, needed: TokenScope, answer: str, is_local: bool
) -> None:
    verdict = admit(BOTH, needed, authorization=authorization, is_local=is_local, now=NOW + 59)
    assert answer == (verdict.name if isinstance(verdict, Caller) else verdict.reason)


def test_an_expired_token_is_reported_as_expired() -> None:
    verdict = admit(BOTH, TokenScope.ENQUEUE, authorization=f"Bearer {ASKS}", is_local=True, now=NOW + 60)
    assert isinstance(verdict, Denied)
    assert (verdict.status, verdict.reason) == (401, "expired_token")
    assert verdict.challenge == 'Bearer realm="solstice", error="invalid_token"'


def test_a_missing_scope_is_named() -> None:
    verdict = admit(BOTH, TokenScope.OPERATE, authorization=f"Bearer {READS}", is_local=True, now=NOW)
    assert isinstance(verdict, Denied)
    assert verdict.status == 403
    assert "'reader' lacks the scope 'operate'" in verdict.detail
    assert verdict.challenge == 'Bearer realm="solstice", error="insufficient_scope", scope="operate"'


@pytest.mark.parametrize("needed", list(TokenScope))
@pytest.mark.parametrize(
    ("authorization", "is_local", "answer"),
    [
        pytest.param(None, True, LOCAL, id="from here"),
        pytest.param(None, False, "no_tokens_yet", id="from afar"),
        pytest.param(login("of the proxy"), True, LOCAL, id="login for a proxy, from here"),
        pytest.param(login("of the proxy"), False, "no_tokens_yet", id="login for a proxy, from afar"),
        pytest.param(f"Bearer {READS}", True, "unknown_token", id="revoked token, from here"),
        pytest.param(f"Bearer {READS}", False, "unknown_token", id="revoked token, from afar"),
    ],
)
def test_without_tokens_this_machine_decides(
    needed: TokenScope, authorization: str | None, is_local: bool, answer: str
) -> None:
    verdict = admit((), needed, authorization=authorization, is_local=is_local, now=NOW)
    assert answer == (verdict.name if isinstance(verdict, Caller) else verdict.reason)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("192.0.2.1", False),
        ("::", False),
        ("10.1.2.3", False),
        ("::ffff:10.1.2.3", False),
        ("localhost.example", False),
        ("", False),
        (None, False),
    ],
)
def test_which_addresses_are_this_machine(address: str | None, expected: bool) -> None:
    assert is_loopback(address) is expected


@pytest.mark.parametrize(
    ("authorization", "reported"),
    [
        pytest.param(f"Bearer {READS}", ["missing_scope"], id="scope is missing"),
        pytest.param("Bearer solstice_made-up", ["unknown_token"], id="unknown"),
        pytest.param(None, [], id="nothing"),
    ],
)
def test_a_wrong_token_is_reported_to_the_watching_caller(
    tmp_path: Path, authorization: str | None, reported: list[str]
) -> None:
    change(tmp_path / "tokens.json", lambda _: BOTH)
    access = Access(file=TokenFile(tmp_path / "tokens.json"), clock=lambda: NOW)
    with capture_logs() as logs:
        access.admit(TokenScope.OPERATE, authorization=authorization, is_local=True)
    assert [log["reason"] for log in logs] == reported
    assert READS not in str(logs)


class TestListening:
    @pytest.fixture
    def access(self, tmp_path_factory: pytest.TempPathFactory) -> Access:
        return Access(file=TokenFile(tmp_path_factory.mktemp("state") / "tokens.json"))

    def test_without_a_token_only_loopback(self, access: Access) -> None:
        check_listening(access, host="127.0.0.1", setting="SOME_HOST")
        with pytest.raises(ConfigurationError, match=r"SOME_HOST is '192\.0\.2\.1'.*solstice token create"):
            check_listening(access, host="192.0.2.1", setting="SOME_HOST")

    def test_the_operator_may_want_it_nevertheless(self, access: Access) -> None:
        opened = Access(file=access.file, is_open=True)
        check_listening(opened, host="192.0.2.1", setting="SOME_HOST")
        assert opened.admit(TokenScope.OPERATE, authorization="Bearer x", is_local=False) == Caller(
            name=LOCAL
        )

    def test_open_and_local_access_are_logged_at_the_start(self, access: Access) -> None:
        with capture_logs() as logs:
            log_access(access, service="one")
            log_access(Access(file=access.file, is_open=True), service="two")
        assert [(reported["event"], reported["service"]) for reported in logs] == [
            ("access.local_only", "one"),
            ("access.open", "two"),
        ]
        assert logs[0]["tokens"] == str(access.file.path)

    def test_with_a_token_there_are_no_notices(self, tmp_path: Path) -> None:
        change(tmp_path / "tokens.json", lambda _: BOTH)
        access = Access(file=TokenFile(tmp_path / "tokens.json"))
        with capture_logs() as logs:
            log_access(access, service="one")
        check_listening(access, host="192.0.2.1", setting="SOME_HOST")
        assert logs == []

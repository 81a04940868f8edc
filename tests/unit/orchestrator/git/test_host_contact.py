"""Which failures of git say that its host is away."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice_orchestrator.git.host_contact import SSH_FAILED, GitEvent, is_host_away

URL = "http://forge.example/river/app.git/"
ACCESS = "unable to access '%s': %s"


def access(words: str, url: str = URL) -> GitEvent:
    return GitEvent(format=ACCESS, message=f"unable to access '{url}': {words}")


def rpc(words: str) -> GitEvent:
    return GitEvent(format="RPC failed; %s", message=f"RPC failed; {words}")


AWAY = [
    access("Could not resolve host: forge.example"),
    access("Could not resolve proxy: proxy.example"),
    access("Resolving timed out after 300000 milliseconds"),
    access("Failed to connect to forge.example port 80 after 0 ms: Couldn't connect to server"),
    access("Connection timed out after 300000 milliseconds"),
    access("Operation too slow. Less than 100 bytes/sec transferred the last 30 seconds"),
    access("Operation timed out after 30000 milliseconds with 0 bytes received"),
    access("Recv failure: Connection reset by peer"),
    access("Send failure: Broken pipe"),
    access("Empty reply from server"),
    access("SSL certificate problem: self-signed certificate"),
    access("SSL: no alternative certificate subject name matches target host name 'forge.example'"),
    access("OpenSSL SSL_connect: Connection reset by peer in connection to forge.example:443"),
    access("TLS connect error: error:0A00010B:SSL routines::wrong version number"),
    access("gnutls_handshake() failed: Error in the pull function."),
    access("GnuTLS, handshake failed: An unexpected TLS packet was received."),
    access("server certificate verification failed. CAfile: none CRLfile: none"),
    access("CONNECT tunnel failed, response 502"),
    access("Received HTTP code 403 from proxy after CONNECT"),
    access("Proxy CONNECT aborted"),
    access("The requested URL returned error: 500"),
    access("The requested URL returned error: 503"),
    access(
        "The requested URL returned error: 502",
        "http://forge.example/': The requested URL returned error: 404/",
    ),
    rpc("HTTP 500 curl 22 The requested URL returned error: 500"),
    rpc("HTTP 200 curl 28 Operation too slow. Less than 100 bytes/sec transferred the last 30 seconds"),
    rpc("curl 28 Operation timed out"),
    GitEvent(format="unable to connect to %s:\n%s", message="unable to connect to forge.example:\n"),
    GitEvent(format="unable to look up %s (port %s) (%s)", message="unable to look up forge.example"),
    GitEvent(format=SSH_FAILED),
]
ANSWERS = [
    *(
        access(f"The requested URL returned error: {status}")
        for status in (300, 301, 308, 400, 404, 429, 499)
    ),
    access("The requested URL returned error: 403", "http://forge.example/': Could not resolve host: x/"),
    access("Error while processing content unencoding: incorrect header check"),
    access("transfer closed with 10 bytes remaining to read"),
    access("Received HTTP/0.9 when not allowed"),
    access("Illegal or missing hexadecimal sequence in chunked-encoding"),
    access("the words 'Failed to connect to ' within others"),
    rpc("HTTP 429 curl 22 The requested URL returned error: 429"),
    rpc("HTTP 200 curl 18 transfer closed with outstanding read data remaining"),
    rpc("curl 56 Recv failure: Connection reset by peer"),
    GitEvent(format="remote error: %s", message="remote error: unable to connect to forge.example"),
    GitEvent(
        format="Authentication failed for '%s'", message="Authentication failed for 'The requested URL'"
    ),
    GitEvent(format="the remote end hung up unexpectedly"),
    GitEvent(format="RPC failed; %s", message="another message"),
]


@pytest.mark.parametrize("event", AWAY, ids=lambda event: event.message or event.format)
def test_these_failures_count_against_the_host(event: GitEvent) -> None:
    assert is_host_away([GitEvent(format="early EOF"), event, GitEvent(format="fetch-pack: %s")])


@pytest.mark.parametrize("event", ANSWERS, ids=lambda event: event.message or event.format)
def test_these_failures_are_answers_of_the_host(event: GitEvent) -> None:
    assert not is_host_away([GitEvent(format="early EOF"), event])


def test_without_any_sign_the_host_is_not_accused() -> None:
    assert not is_host_away([])


def test_a_refusal_of_the_server_is_an_answer_even_when_ssh_fails_afterwards() -> None:
    refusal = GitEvent(format="remote error: %s", message="remote error: no")
    assert not is_host_away([GitEvent(format=SSH_FAILED), refusal])
    assert is_host_away([GitEvent(format=SSH_FAILED), GitEvent(format="x remote error: %s")])


@given(st.text(), st.sampled_from(["remote error: %s", "bad line length character: %.4s", "%s"]))
def test_no_words_that_git_quotes_accuse_the_host(words: str, git_format: str) -> None:
    for each in AWAY:
        assert not is_host_away([GitEvent(format=git_format, message=f"{words}{each.message}{words}")])


@given(st.text())
def test_no_url_hides_or_fakes_a_status(path: str) -> None:
    url = f"http://forge.example/{path}"
    assert not is_host_away([access("The requested URL returned error: 404", url)])
    assert is_host_away([access("The requested URL returned error: 500", url)])

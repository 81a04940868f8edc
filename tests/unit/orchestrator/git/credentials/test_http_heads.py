"""The heads of requests and answers that our proxy passes on."""

import pytest

from solstice_orchestrator.git.credentials.http_heads import authorization_of, read_answer, read_request


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode()


def test_a_tunnel_is_asked_for_with_other_credentials() -> None:
    request = read_request(
        head("CONNECT f.example:8443 HTTP/1.1", "Host: f.example", "proxy-AUTHORIZATION: Basic ours", "Keep-Alive: 5")
    )  # fmt: skip
    assert (request.is_tunnel, request.target, authorization_of(request)) == (True, "f.example:8443", "Basic ours")  # fmt: skip
    assert request.rewritten("Basic theirs") == head(
        "CONNECT f.example:8443 HTTP/1.1", "Host: f.example", "Proxy-Authorization: Basic theirs"
    )


def test_the_connection_of_a_plain_request_ends_after_it() -> None:
    request = read_request(
        head("POST http://joe@F.example/a?b HTTP/1.0", "Connection: keep-alive", "Content-Length: 12")
    )
    assert (request.is_tunnel, request.target, request.body_bytes) == (False, "f.example:80", 12)
    assert request.rewritten("Basic theirs") == head(
        "POST http://joe@F.example/a?b HTTP/1.0",
        "Content-Length: 12",
        "Proxy-Authorization: Basic theirs",
        "Connection: close",
    )


@pytest.mark.parametrize(
    ("target", "server"),
    [
        ("http://f.example:8080/a", "f.example:8080"),
        ("http://f.example?a=:1/@b", "f.example:80"),
        ("HTTP://f.example#a:2", "f.example:80"),
    ],
)
def test_the_server_of_a_request_ends_before_path_query_and_fragment(target: str, server: str) -> None:
    request = read_request(head(f"GET {target} HTTP/1.1"))
    assert (request.target, request.body_bytes) == (server, 0)


def test_a_tunnel_without_a_port_is_for_tls() -> None:
    assert read_request(head("CONNECT f.example HTTP/1.1")).target == "f.example:443"


@pytest.mark.parametrize("fields", [(), ("Proxy-Authorization: Basic a", "Proxy-Authorization: Basic a")])
def test_credentials_count_only_when_they_come_once(fields: tuple[str, ...]) -> None:
    assert authorization_of(read_request(head("CONNECT f:1 HTTP/1.1", *fields))) == ""


@pytest.mark.parametrize(
    "lines",
    [
        ("GET /a HTTP/1.1",),
        ("GET https://f/a HTTP/1.1",),
        ("GET http://f/a HTTP/2",),
        ("get http://f/a HTTP/1.1",),
        ("POST http://f/a HTTP/1.1", "Transfer-Encoding: chunked"),
        ("POST http://f/a HTTP/1.1", "Content-Length: 1", "Content-Length: 1"),
        ("POST http://f/a HTTP/1.1", "Content-Length: +1"),
        ("POST http://f/a HTTP/1.1", "Content-Length: a"),
        ("GET http://f/a HTTP/1.1", "no colon"),
        ("GET http://f/a HTTP/1.1", ": no name"),
        ("GET http://f/a HTTP/1.1", " Folded: a"),
        ("GET http://f/a HTTP/1.1", "Spaced : a"),
        ("GET http://f/a HTTP/1.1", "Two: lines\nIn: one"),
    ],
)
def test_a_head_of_another_form_is_refused(lines: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"^no "):
        read_request(head(*lines))


def test_a_body_whose_size_has_digits_of_another_script_is_refused() -> None:
    with pytest.raises(ValueError, match="no size of the body"):
        read_request(b"POST http://f/a HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n")


@pytest.mark.parametrize(
    ("line", "status", "is_final", "is_success"),
    [
        ("HTTP/1.1 100 Continue", 100, False, False),
        ("HTTP/1.1 199", 199, False, False),
        ("HTTP/1.0 200 Connection established", 200, True, True),
        ("HTTP/1.1 299 ", 299, True, True),
        ("HTTP/1.1 300 Multiple Choices", 300, True, False),
        ("HTTP/1.1 407 Proxy Authentication Required", 407, True, False),
    ],
)
def test_which_answers_are_final_and_which_succeed(
    line: str, status: int, is_final: bool, is_success: bool
) -> None:
    answer = read_answer(head(line))
    assert (answer.status, answer.is_final, answer.is_success) == (status, is_final, is_success)


@pytest.mark.parametrize("line", ["HTTP/2 200", "HTTP/1.1 2000", "HTTP/1.1 20", "200 OK", ""])
def test_what_has_no_status_is_no_answer(line: str) -> None:
    with pytest.raises(ValueError, match="no status line"):
        read_answer(head(line))


def test_git_gets_the_answer_and_the_end_of_its_connection() -> None:
    answer = read_answer(head("HTTP/1.1 200 OK", "Connection: keep-alive", "Keep-Alive: 9", "ETag: \t a:b "))
    assert answer.rewritten() == head("HTTP/1.1 200 OK", "ETag: a:b", "Connection: close")


def test_an_answer_that_another_follows_does_not_end_the_connection() -> None:
    continuing = head("HTTP/1.1 100 Continue", "Connection: keep-alive")
    assert read_answer(continuing).rewritten() == continuing


def test_of_the_ways_to_authenticate_only_their_names_are_read() -> None:
    answer = read_answer(
        head(
            "HTTP/1.1 407 No",
            'Proxy-Authenticate: Basic realm="a"',
            "proxy-authenticate: NTLM",
            'Proxy-Authenticate: "?"',
            "WWW-Authenticate: Digest",
        )
    )
    assert answer.authentication == "Basic, NTLM"

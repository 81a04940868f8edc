"""What a job may ask of its proxy, and what the host gets."""

import pytest

from solstice_orchestrator.processes.egress.allowed_hosts import Target
from solstice_orchestrator.processes.egress.egress_requests import read_egress_request


def test_a_tunnel_leads_where_its_first_line_says() -> None:
    request = read_egress_request(b"CONNECT a.example:443 HTTP/1.1\r\nHost: evil.example:25\r\n\r\n")
    assert (request.target, request.is_tunnel) == (Target("a.example", 443), True)


def test_a_plain_request_is_for_the_host_of_its_url_alone() -> None:
    request = read_egress_request(
        b"POST http://A.example?x=1 HTTP/1.1\r\nhost: evil.example\r\nX-Kept: yes\r\nX-Hop: no\r\nContent-Length: 3\r\n"
        b"Connection: keep-alive, X-Hop\r\nUpgrade: h2c\r\nProxy-Authorization: Basic eA==\r\n\r\n"
    )
    assert request.target == Target("a.example", 80)
    assert request.body_bytes == 3
    assert request.head == (
        b"POST /?x=1 HTTP/1.1\r\nHost: a.example\r\nX-Kept: yes\r\nContent-Length: 3\r\nConnection: close\r\n\r\n"
    )
    elsewhere = read_egress_request(b"GET http://[::1]:8080/a/b HTTP/1.0\r\n\r\n")
    assert elsewhere.head == b"GET /a/b HTTP/1.1\r\nHost: [::1]:8080\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("head", [
    b"CONNECT a:443\r\n\r\n", b"CONNECT a:443 HTTP/1.1 \r\n\r\n", b"CONNECT  a:443 HTTP/1.1\r\n\r\n", b"connect a:443 HTTP/1.1\r\n\r\n",
    b"CONNECT a:443 HTTP/2.0\r\n\r\n", b"CONNECT http://a:443 HTTP/1.1\r\n\r\n", b"CONNECT a@b:443 HTTP/1.1\r\n\r\n",
    b"CONNECT a:443\nX HTTP/1.1\r\n\r\n", b"CONNECT a:443 HTTP/1.1\r\nA: b\nCONNECT b:1 HTTP/1.1\r\n\r\n",
    b"CONNECT a:443 HTTP/1.1\r\n folded: yes\r\n\r\n", b"CONNECT a:443 HTTP/1.1\r\nno field\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"GET https://a/ HTTP/1.1\r\n\r\n", b"GET ftp://a/ HTTP/1.1\r\n\r\n",
    b"GET http:///a HTTP/1.1\r\n\r\n", b"GET http://a\\@b/ HTTP/1.1\r\n\r\n", b"GET http://user@a/ HTTP/1.1\r\n\r\n",
    b"GET http://a/ b HTTP/1.1\r\n\r\n", b"GET http://a/\xff HTTP/1.1\r\n\r\n",
    b"POST http://a/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST http://a/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"POST http://a/ HTTP/1.1\r\nContent-Length: +1\r\n\r\n", b"POST http://a/ HTTP/1.1\r\nContent-Length : 1\r\n\r\n",
    b"POST http://a/ HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", b"\x16\x03\x01\x02\r\n\r\n", b"\r\n\r\n",
])  # fmt: skip
def test_what_two_readers_could_read_differently_is_not_passed_on(head: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_egress_request(head)

"""A guestbook, in a store on the network: `guestbook.py LANGUAGE` signs it, and prints what is in it."""

import socket
import sys

GREETINGS = {"en": "Good morning", "de": "Schöne Grüße", "ja": "おはようございます"}


class Guestbook:
    """The entries of one language."""

    def __init__(self, language: str, host: str = "store", port: int = 7000) -> None:
        self._language, self._address = language, (host, port)

    def sign(self) -> None:
        """Add a greeting."""
        self._ask(f"add {self._language} {GREETINGS[self._language]}")

    def entries(self) -> list[str]:
        """Return all greetings, oldest first."""
        return self._ask(f"list {self._language}")

    def _ask(self, question: str) -> list[str]:
        with socket.create_connection(self._address, timeout=5) as connection:
            connection.sendall(f"{question}\n".encode())
            connection.shutdown(socket.SHUT_WR)
            with connection.makefile("r", encoding="utf-8") as answer:
                return answer.read().splitlines()


if __name__ == "__main__":
    guestbook = Guestbook(sys.argv[1])
    guestbook.sign()
    print(*guestbook.entries(), sep="\n")

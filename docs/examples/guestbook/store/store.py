"""A store of lists over TCP: `add LIST WORDS` adds an entry, `list LIST` answers with all, one per line.

`store.py` serves; `store.py ping` ends well if a store answers.
"""

import socket
import socketserver
import sys
from collections import defaultdict

ADDRESS = ("127.0.0.1", 7000)
LISTS = defaultdict[str, list[str]](list)


class Question(socketserver.StreamRequestHandler):
    """One connection, with one question."""

    def handle(self) -> None:
        command, _, rest = self.rfile.readline().decode().strip().partition(" ")
        name, _, words = rest.partition(" ")
        if command == "add":
            LISTS[name].append(words)
            print(f"{name}: {len(LISTS[name])} entries", flush=True)
        elif command == "list":
            self.wfile.write("".join(f"{entry}\n" for entry in LISTS[name]).encode())


def main() -> None:
    if sys.argv[1:] == ["ping"]:
        socket.create_connection(ADDRESS, timeout=2).close()
        return
    socketserver.ThreadingTCPServer.allow_reuse_address = True
    with socketserver.ThreadingTCPServer(ADDRESS, Question) as server:
        print("the store is ready", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()

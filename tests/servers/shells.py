"""Runs bash, zsh and fish on a terminal, and presses Tab."""

import fcntl
import os
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.servers.apt import apt_can_install, apt_install

SHELLS: Final = ("bash", "zsh", "fish")
ANSWER_SECONDS: Final = 60.0
ROWS, COLUMNS = 50, 80
COMPLETE: Final = "\x18t\x18p"
"""Keys that complete the line as Tab does, and print it, as the files below bind them."""
COMPLETE_ALL: Final = "\x18a"
"""Keys that write all candidates into the line, and print it."""
CLEAR: Final = "\x15"
NOTHING_FOUND: Final = """\
These tests need {shell}, and there is none here. Any one of these will do:
  - `apt-get install {shell}`, or the package of your system;
  - on Debian or Ubuntu: run the tests as root, and they install the package themselves."""
START_FILES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "bash": (
            ".bashrc",
            r"""PS1='> '
bind '"\C-xi": insert-completions'
bind '"\C-xt": complete'
bind '"\C-xa": "\C-xi\C-xp"'
bind 'set bell-style none'
printed() { printf 'LINE<%s>\n' "$READLINE_LINE"; }
bind -x '"\C-xp": printed'
""",
        ),
        "zsh": (
            ".zshrc",
            r"""PS1='> '
unsetopt beep
zstyle ':completion:all-matches::::' completer _all_matches _complete
zstyle ':completion:all-matches:*' insert yes
zle -C all-matches complete-word _generic
# zsh completes little while further keys wait, so that one key does both.
completed() { zle expand-or-complete -w; print -r "LINE<$BUFFER>" }
completed_all() { zle all-matches -w; print -r "LINE<$BUFFER>" }
zle -N completed
zle -N completed_all
bindkey '^Xt^Xp' completed
bindkey '^Xa' completed_all
""",
        ),
        "fish": (
            ".config/fish/config.fish",
            r"""function fish_prompt; printf '> '; end
set -g fish_greeting
function printed; printf 'LINE<%s>\n' (commandline); end
function all_matches
    set -l matches (complete -C (commandline -c) | string split -f 1 \t)
    commandline -r (string replace -r '\S*$' '' -- (commandline))(string join ' ' -- $matches)
end
bind \cxa 'all_matches; printed'
bind \cxt complete
bind \cxp printed
""",
        ),
    }
)


def program(shell: str) -> str:
    """The path of a shell, which is installed when it can be."""
    found = shutil.which(shell)
    if found is None and apt_can_install():
        apt_install(shell)
        found = shutil.which(shell)
    if found is None:
        raise RuntimeError(NOTHING_FOUND.format(shell=shell))
    return found


class Terminal:
    """An interactive shell on a terminal of its own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.seen = ""
        """All that was shown, with what steers the terminal."""
        self._read = 0

    def press(self, keys: str) -> None:
        """Type these keys."""
        os.write(self._descriptor, keys.encode())

    def until(self, pattern: str) -> re.Match[str]:
        """Read until `pattern` is shown behind what was read before, and return its match."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while (found := re.compile(pattern).search(self.seen, self._read)) is None:
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise AssertionError(f"{pattern!r} was not shown:\n{self.seen[self._read :]}")
            self.seen += os.read(self._descriptor, 65_536).decode(errors="replace")
        self._read = found.end()
        return found

    def run(self, line: str) -> str:
        """Run a command line, and return what it printed."""
        self.press(f"{line}; echo 'END''ED'\r")
        return self.until(r"(?s)\n(.*?)ENDED")[1]

    def completed(self, line: str, keys: str = COMPLETE) -> str:
        """What a line becomes by these keys; the line is empty afterwards."""
        self.press(line + keys)
        became = self.until(r"LINE<([^>]*)>")[1]
        self.press(CLEAR)
        return became

    def candidates(self, line: str) -> Sequence[str]:
        """All that the shell offers for the last word of a line."""
        offered, before = self.completed(line, COMPLETE_ALL), line.rpartition(" ")[0]
        assert offered.startswith(before), offered
        return offered.removeprefix(before).split()


@contextmanager
def terminal(
    shell: str, home: Path, environment: Mapping[str, str], *, programs: Path | None = None
) -> Iterator[Terminal]:
    """A shell whose files are in `home`, and start with those above.

    Our programs are those of this Python unless there is a folder of `programs`.
    """
    file, text = START_FILES[shell]
    place = home / file
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    our_end, shell_end = os.openpty()
    fcntl.ioctl(shell_end, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    variables = {name: each for name, each in environment.items() if name != "COLUMNS"} | {
        "HOME": str(home),
        "PATH": f"{programs or Path(sys.executable).parent}:{os.environ['PATH']}",
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local/share"),
    }
    process = subprocess.Popen(
        # The shell is to control its terminal, as one that a person opened does.
        [
            sys.executable,
            "-c",
            "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])",
            program(shell),
            "-i",
        ],
        stdin=shell_end,
        stdout=shell_end,
        stderr=shell_end,
        env=variables,
        cwd=home,
    )
    os.close(shell_end)
    try:
        shown = Terminal(our_end)
        shown.until(r"> ")
        yield shown
    finally:
        process.kill()
        process.wait()
        os.close(our_end)

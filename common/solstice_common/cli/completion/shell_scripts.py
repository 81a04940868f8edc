"""Knows what bash, zsh and fish ask and expect: their scripts, lines and answers. Pure.

A script calls its program with `VARIABLE` set to the shell's name. The program prints one candidate per line, in zsh and
fish with its meaning behind a tab, or `FILES` when the shell is to offer files.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from solstice_common.cli.completion.candidates import Completion

VARIABLE: Final = "_SOLSTICE_COMPLETION"
FILES: Final = ":files"
_LISTING: Final = frozenset({"33", "63", "64"})
"""COMP_TYPE of bash while it lists candidates and does not write one of them."""
_SAFE: Final = re.compile(r"[^\w@%+=:,./~-]", re.ASCII)

_BASH: Final = """\
_FUNCTION() {
    local candidates
    mapfile -t candidates < <(
        COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" COMP_TYPE="$COMP_TYPE" COMP_WORDBREAKS="$COMP_WORDBREAKS" \\
            COLUMNS="$COLUMNS" VARIABLE=bash "${1/#\\~/$HOME}" 2>/dev/null
    )
    if [[ ${candidates[0]-} == FILES ]]; then
        COMPREPLY=()
        compopt -o default
    else
        COMPREPLY=("${candidates[@]}")
    fi
}
complete -o nosort -F _FUNCTION PROGRAM
"""
_ZSH: Final = """\
#compdef PROGRAM

_FUNCTION() {
    local answer line value meaning
    local -a candidates words_before
    words_before=("${(@Q)words[2,CURRENT-1]}")
    (( CURRENT == 2 )) && words_before=()
    answer=$(VARIABLE=zsh "${words[1]/#\\~/$HOME}" "${words_before[@]}" "${(Q)PREFIX}" 2>/dev/null)
    if [[ $answer == FILES ]]; then
        _files
        return
    fi
    for line in "${(@f)answer}"; do
        value=${line%%$'\\t'*} meaning=${line#*$'\\t'}
        [[ -n $value ]] && candidates+=("${value//:/\\\\:}${meaning:+:$meaning}")
    done
    (( $#candidates )) && _describe -V value candidates
}

if [[ $funcstack[1] == _PROGRAM ]]; then
    _FUNCTION "$@"
else
    compdef _FUNCTION PROGRAM
fi
"""
_FISH: Final = """\
function _FUNCTION
    set -l words (commandline --current-process --tokenize --cut-at-cursor)
    set -l typed (commandline --current-token --cut-at-cursor)
    set -l candidates (env VARIABLE=fish $words "$typed" 2>/dev/null)
    if test "$candidates[1]" = FILES
        __fish_complete_path "$typed"
    else
        printf '%s\\n' $candidates
    end
end
complete --command PROGRAM --no-files --keep-order --arguments '(_FUNCTION)'
"""
_SCRIPTS: Final[Mapping[str, str]] = MappingProxyType({"bash": _BASH, "zsh": _ZSH, "fish": _FISH})
SHELLS: Final = tuple(_SCRIPTS)


def script(shell: str, program: str) -> str:
    """Return the script that makes `shell` ask `program`."""
    text = _SCRIPTS[shell].replace("VARIABLE", VARIABLE).replace("PROGRAM", program)
    return text.replace("FILES", FILES).replace("FUNCTION", f"{program.replace('-', '_')}_completion")


def words_of(
    shell: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> tuple[Sequence[str], str]:
    """Return the words before the cursor, and the last one, which is not yet complete."""
    if shell == "bash":
        words, _ = _split(_up_to_the_cursor(environment))
        return words[1:-1], words[-1] if len(words) > 1 else ""
    return arguments[:-1], arguments[-1] if arguments else ""


def answer(shell: str, found: Sequence[Completion] | None, environment: Mapping[str, str]) -> str:
    """Return what the shell is to read."""
    if found is None:
        return FILES
    printable = [
        Completion(each.value, "".join(filter(str.isprintable, each.help)))
        for each in dict.fromkeys(found)
        if each.value.isprintable()
    ]
    if shell == "bash":
        return "\n".join(_for_bash(printable, environment))
    return "\n".join(f"{each.value}\t{each.help}" for each in printable)


def _for_bash(found: Sequence[Completion], environment: Mapping[str, str]) -> Sequence[str]:
    """Return what stands behind the last character that divides words for bash.

    Meanings are added only to a list of several candidates.
    """
    words, is_quoted = _split(_up_to_the_cursor(environment))
    breaks = set(environment.get("COMP_WORDBREAKS", "")) - set("\"' ")
    cut = 0 if is_quoted else 1 + max((at for at, each in enumerate(words[-1]) if each in breaks), default=-1)
    values = [each.value[cut:] for each in found]
    if environment.get("COMP_TYPE") in _LISTING and len(found) > 1:
        columns = int(environment.get("COLUMNS") or 80)
        widest = max(map(len, values))
        return [
            f"{value:{widest}}  ({each.help})"[: columns - 1] if each.help else value
            for value, each in zip(values, found, strict=True)
        ]
    return values if is_quoted else [_SAFE.sub(r"\\\g<0>", value) for value in values]


def _up_to_the_cursor(environment: Mapping[str, str]) -> str:
    line = environment.get("COMP_LINE", "").encode()
    return line[: int(environment.get("COMP_POINT", len(line)))].decode(errors="replace")


def _split(line: str) -> tuple[Sequence[str], bool]:
    """Return the words of an unfinished line, and whether the last one is quoted."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        while (word := lexer.get_token()) is not None:
            words.append(word)
    except ValueError:
        return [*words, lexer.token], True
    return ([*words, ""] if not line or line[-1].isspace() else words), False

"""Read YAML with the line of each value, within limits. Pure.

Only nodes are composed: no tag makes an object. Aliases are followed, so what is visited is counted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import yaml

MAX_BYTES: Final = 256 * 1024
MAX_VALUES: Final = 20_000
MAX_DEPTH: Final = 40
_MERGE: Final = "<<"


class UnreadableFile(ValueError):
    """The file cannot be read; the message says why, with the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlValue:
    """One value: text, a list or a mapping."""

    line: int
    text: str = ""
    """Of a scalar, as it is written; empty for null and for everything else."""
    is_text: bool = False
    items: Sequence["YamlValue"] = ()
    """Of a list."""
    fields: Mapping[str, "YamlValue"] = field(default_factory=dict)
    """Of a mapping."""

    @property
    def listed(self) -> Sequence["YamlValue"]:
        """The items of a list, or the one text."""
        return (self,) if self.is_text and self.text else self.items


def read_yaml(content: bytes) -> YamlValue:
    """Return the one document. Raises UnreadableFile."""
    if len(content) > MAX_BYTES:
        raise UnreadableFile(f"the file has more than {MAX_BYTES // 1024} KiB")
    try:
        node = yaml.compose(content.decode("utf-8-sig"), Loader=yaml.SafeLoader)
        if node is None:
            raise UnreadableFile("the file is empty")
        return _Walk().value(node, 0)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableFile(" ".join(str(error).split())[:300] or "nested too deeply") from None


class _Walk:
    def __init__(self) -> None:
        self._visited = 0

    def value(self, node: yaml.Node, depth: int) -> YamlValue:
        self._visited += 1
        line = node.start_mark.line + 1
        if self._visited > MAX_VALUES or depth > MAX_DEPTH:
            raise UnreadableFile(f"line {line}: more than {MAX_VALUES} values, or more than {MAX_DEPTH} deep")
        match node:
            case yaml.MappingNode():
                return YamlValue(line=line, fields=dict(self._fields(node, depth)))
            case yaml.SequenceNode():
                return YamlValue(line=line, items=tuple(self.value(each, depth + 1) for each in node.value))
            case _:
                is_null = node.tag == "tag:yaml.org,2002:null"
                return YamlValue(line=line, text="" if is_null else str(node.value), is_text=not is_null)

    def _fields(self, node: yaml.MappingNode, depth: int) -> Iterator[tuple[str, YamlValue]]:
        own: list[tuple[str, YamlValue]] = []
        for key, value in node.value:
            read = self.value(value, depth + 1)
            if isinstance(key, yaml.ScalarNode) and key.value == _MERGE:
                for each in read.items or (read,):
                    yield from each.fields.items()
            else:
                name = self.value(key, depth + 1)
                # People look for the name: a block begins on the line after it.
                own.append((name.text, replace(read, line=name.line)))
        yield from own

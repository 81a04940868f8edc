"""Our KDL reader agrees with ckdl, and names the place of an error."""

import math
import re
from collections.abc import Sequence
from typing import Any

import ckdl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solstice_common.errors import InvalidWorkflow
from solstice_orchestrator.workflow.kdl import KdlNode, KdlValue, read, scan
from solstice_orchestrator.workflow.kdl.scanner import MAX_PARTS
from solstice_orchestrator.workflow.kdl.words import MAX_NUMBER_LENGTH

VALID = {
    "empty": "",
    "only white space": " \t\n\n  ",
    "byte order mark": "\ufeffnode 1",
    "no final newline": "node",
    "semicolons": "a; b;c ;",
    "arguments of every kind": 'n word "text" #true #false #null 1 -2 +3 1.5 1e10 1_000 0xff 0o17 0b1_0',
    "special numbers": "n #inf #-inf #nan",
    "big integers": "n 123456789012345678901234567890 -0xffffffffffffffffffff",
    "exponents": "n 1.23E+1000 1.0e-10_0 6.02e23 -1E-7",
    "properties": 'n a=1 "b c"=x d = 2 e= 3 f =4',
    "property given twice": "n a=1 a=2 b=3",
    "bare words": "n - + -- .x -x +x ~ ! a.b a-b a/*c*/ é 日本 <a> a,b x:y @z",
    "node names": '"quoted name" 1\n-dash\n#"raw"#\n"""\n  several\n  """',
    "children": "a { b { c 1 }; d }\ne {}",
    "children on lines": "a {\n  b\n  c\n}\n",
    "quoted argument against a brace": 'a "x"{ b }',
    "types": '(t)n (u8)1 a=(date)"x" ( spaced )y',
    "comments": "// one\nn /* in */ 1 // end\n/* a /* nested */ b */ m\n",
    "slashdash": "/-a 1\nb /-1 2 /-p=3 q=4\nc /-{ x } { y }\nd { y } /-{ z }\n/-\n  e\nf",
    "continued lines": "a 1 \\\n  2 \\ // why\n  3\nb \\\n",
    "escapes": r'n "\n\r\t\s\b\f\\\"\u{41}\u{1F600}\u{0}" "a\   b"',
    "escaped line break": 'n "one \\\n     two"',
    "raw strings": 'n #"a\\nb"# ##"x"#y"## #""# #"a""#',
    "multi-line": 'n """\n  one\n    two\n\n  three\n  """',
    "multi-line, empty": 'n """\n"""',
    "multi-line, blank lines of any white space": 'n """\n    a\n \t\n    """',
    "multi-line with escapes": 'n """\n  a\\tb \\\n     c\n  \\"\\"\\" x\n  """',
    "multi-line raw": 'n #"""\n  a\\n "b" #\n   c\n  """#',
    "line breaks of every kind": "a\rb\r\nc\x0cd\x85e\u2028f\u2029g",
    "spaces of every kind": "a\u00a01\u20032\u30003",
    "version marker": "/- kdl-version 2\nnode",
    "escaped backslash before quote": r'n "\\" "\\\\"',
}


@pytest.mark.parametrize("text", VALID.values(), ids=VALID.keys())
def test_both_readers_agree_on_valid_documents(text: str) -> None:
    assert disagreement(scan(text), ckdl.parse(text, version=2).nodes) is None
    assert disagreement(read(text), ckdl.parse(text, version=2).nodes) is None


BROKEN: dict[str, tuple[str, int, int, str]] = {
    "unclosed string": ('a "b\nc', 1, 3, "not closed on its line"),
    "unclosed string at the end": ('a\n  b "c', 2, 5, "never closed"),
    "unclosed raw string": ('a #"b"', 1, 3, 'never closed: "# is missing'),
    "unclosed multi-line string": ('a """\n  b\n', 1, 3, 'never closed: """ is missing'),
    "multi-line string on one line": ('a """b"""', 1, 6, "a new line must follow"),
    "closing quotes after text": ('a """\n  b\n  c"""', 3, 1, "line of its own"),
    "line not indented": ('a """\n    b\n  c\n    """', 3, 1, "indented at least as far"),
    "tabs against spaces": ('a """\n    b\n\tc\n    """', 3, 1, "in the same way"),
    "unknown escape": (r'a "x\q"', 1, 5, "no such escape"),
    "escaped slash of KDL 1": (r'a "\/"', 1, 4, "no such escape"),
    "surrogate": (r'a "\u{D800}"', 1, 4, "no character U+D800"),
    "beyond Unicode": (r'a "\u{110000}"', 1, 4, "no character U+110000"),
    "empty code point": (r'a "\u{}"', 1, 4, "no such escape"),
    "unclosed block": ("a {\n  b {\n  }\n", 1, 3, "'{' is never closed"),
    "block closed twice": ("a {\n}\n}\n", 3, 1, "closes nothing"),
    "unclosed comment": ("a\n/* b /* */", 2, 1, "comment is never closed"),
    "unclosed type": ("(t a", 1, 1, "'(' is never closed"),
    "empty type": ("()a", 1, 2, "a type is expected here, not ')'"),
    "type without value": ("a (t)", 1, 6, "a value is expected here, not the end of the file"),
    "property without value": ("a b=\nc", 1, 5, "a value is expected here, not the end of the line"),
    "property without name": ("a =1", 1, 3, "a value is expected here, not '='"),
    "number as property name": ("a 1=2", 1, 3, "must be a plain string"),
    "typed property name": ("a (t)b=2", 1, 3, "must be a plain string"),
    "number as node name": ("  12 a", 1, 3, "must be a string, '12' is none"),
    "keyword as node name": ("#true", 1, 1, "must be a string"),
    "no space between arguments": ('a "b""c"', 1, 6, "white space is needed before '\"'"),
    "no space before a brace": ("a {\n  b{}\n}", 2, 4, "white space is needed before '{'"),
    "no space before slashdash": ("a/-b", 1, 2, "white space is needed before '/-'"),
    "argument after block": ("a {} b", 1, 6, "after the block of children the node must end"),
    "two blocks": ("a {} {}", 1, 6, "this is its second"),
    "slashdash of nothing": ("a /-", 1, 3, "nothing after it"),
    "slashdash before a closing brace": ("a { /-}", 1, 5, "nothing after it"),
    "slashdash twice": ("/- /- a", 1, 4, "nothing to take away"),
    "text after a continuation": ("a \\ b", 1, 3, "only a comment may follow"),
    "bare true": ("a true", 1, 3, "write #true for the value"),
    "bare null as a property": ("a\nb c=null", 2, 5, "write #null for the value"),
    "unknown keyword": ("a #yes", 1, 3, "'#yes' is no value"),
    "hash within a word": ("a b#c", 1, 4, "cannot hold '#'"),
    "raw string of KDL 1": ('a r#"b"#', 1, 3, "raw string of KDL 1"),
    "version 1 marker": ("/- kdl-version 1\na", 1, 1, "says that it is KDL 1"),
    "number with letters": ("a 12ab", 1, 3, "'12ab' is no number"),
    "number with a bare dot": ("a 1.", 1, 3, "'1.' is no number"),
    "dot before digits": ("a .5", 1, 3, "'.5' is no number"),
    "wrong hexadecimal": ("a 0xfg", 1, 3, "is no number"),
    "endless number": (f"a {'9' * 65}", 1, 3, "64 characters long"),
    "bracket": ("a [1]", 1, 3, "a value is expected here, not '['"),
    "control character": ('a "b\x07"', 1, 5, "U+0007 may not stand in a KDL file"),
    "text direction override": ("a // \u202e", 1, 6, "U+202E may not stand"),
    "byte order mark in the middle": ("a\ufeff", 1, 2, "U+FEFF"),
    "column counts characters": ('é日 "a" "\\q"', 1, 9, "no such escape"),
    "position behind a byte order mark": ("\ufeffa {", 1, 3, "'{' is never closed"),
    "lines after CR LF": ("a\r\nb\r\nc =", 3, 3, "a value is expected"),
    "nested too deep": ("a {" * 40, 1, 100, "nested 32 deep"),
    "too many nodes": ("a\n" * 20_001, 20_001, 1, "20000 nodes and values"),
    "too many values": ("a" + " 1" * 20_000, 1, 40_001, "20000 nodes and values"),
}


@pytest.mark.parametrize(("text", "line", "column", "sentence"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_document_is_reported_with_its_place(
    text: str, line: int, column: int, sentence: str
) -> None:
    with pytest.raises(InvalidWorkflow) as caught:
        read(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert sentence in caught.value.problem


STRICTER_THAN_CKDL = {
    "nested too deep",
    "too many nodes",
    "too many values",
    "endless number",
    "empty code point",
    "slashdash twice",
}


@pytest.mark.parametrize(
    "text",
    [case[0] for name, case in BROKEN.items() if name not in STRICTER_THAN_CKDL and "version 1" not in name],
)
def test_ckdl_refuses_what_we_refuse(text: str) -> None:
    with pytest.raises(ckdl.ParseError):
        ckdl.parse(text.removeprefix("\ufeff"), version=2)


PIECES = [
    *'ab1.-+_=;{}()[]/\\"#\n\r\t <,é',
    *(
        '"""',
        '#"',
        '"#',
        '#"""',
        '"""#',
        "/-",
        "//",
        "/*",
        "*/",
        "\\n",
        "\\u{41}",
        "0x",
        "#true",
        "true",
        "k=v",
    ),
    *("\r\n", "\u00a0", "\u2028", ' "s" ', "\n  ", "a {\n", "}\n"),
]
documents = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


@settings(max_examples=1000)
@given(documents | st.text(max_size=200))
def test_any_text_is_read_as_ckdl_reads_it_or_refused_inside_it(text: str) -> None:
    nodes, error = attempt(text)
    if error is None:
        assert disagreement(nodes, ckdl.parse(text.removeprefix("\ufeff"), version=2).nodes) is None
        assert disagreement(scan(text), ckdl.parse(text.removeprefix("\ufeff"), version=2).nodes) is None
        return
    lines = re.split("\r\n|\r|\n", text.removeprefix("\ufeff"))
    assert 1 <= error.line <= len(lines)
    # One past the end is where something is missing; CR LF that ends the file is two characters.
    assert 1 <= error.column <= len(lines[error.line - 1]) + 2
    assert "readers of this document" not in error.problem
    assert "cannot be read as KDL 2 (" not in error.problem


@given(
    st.lists(
        st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\x0b")), max_size=4
    )
)
def test_text_survives_being_quoted(texts: list[str]) -> None:
    quoted = " ".join(
        '"' + "".join(c if c.isalnum() and ord(c) < 128 else f"\\u{{{ord(c):x}}}" for c in text) + '"'
        for text in texts
    )
    (node,) = read(f"n {quoted}")
    assert [argument.value for argument in node.arguments] == texts


def test_positions_are_those_of_names_and_values() -> None:
    (node,) = read('\n  (t)job "a" \\\n    runs-on="x" {\n\tstep 1\n}')
    assert (node.position.line, node.position.column) == (2, 6)
    assert (node.arguments[0].position.line, node.arguments[0].position.column) == (2, 10)
    (runs_on,) = node.properties
    assert (runs_on.position.line, runs_on.position.column) == (3, 5)
    assert (runs_on.value.position.line, runs_on.value.position.column) == (3, 13)
    assert (node.children[0].position.line, node.children[0].position.column) == (4, 2)


def test_a_repeated_property_keeps_each_value_in_its_place() -> None:
    (node,) = read("n a=1 b=2 a=3")
    assert [(item.name, item.value.value) for item in node.properties] == [("a", 1), ("b", 2), ("a", 3)]


def test_a_document_may_have_as_many_nodes_and_values_as_the_limit() -> None:
    (node,) = scan("a" + " 1" * (MAX_PARTS - 1))
    assert len(node.arguments) == MAX_PARTS - 1


def test_a_number_may_be_as_long_as_the_limit() -> None:
    (node,) = read(f"n {'9' * MAX_NUMBER_LENGTH}")
    assert node.arguments[0].value == int("9" * MAX_NUMBER_LENGTH)


@pytest.mark.parametrize(
    ("text", "other", "line", "column", "sentence"),
    [
        ("\n  a\nb", "a", 2, 3, "how many nodes"),
        ("", "a", 1, 1, "how many nodes"),
        ("a\n b", "a; c", 2, 2, "what this node holds"),
        ("a 1", "a", 1, 1, "what this node holds"),
        ("a b=1", "a c=1", 1, 1, "what this node holds"),
        ("\n a", "{", 2, 2, "cannot be read as KDL 2"),
        ("", "{", 1, 1, "cannot be read as KDL 2"),
    ],
)
def test_readers_that_disagree_refuse_the_document_at_the_nearest_position(
    monkeypatch: pytest.MonkeyPatch, text: str, other: str, line: int, column: int, sentence: str
) -> None:
    parse = ckdl.parse
    monkeypatch.setattr(ckdl, "parse", lambda _, version: parse(other, version=version))
    with pytest.raises(InvalidWorkflow, match=sentence) as caught:
        read(text)
    assert (caught.value.line, caught.value.column) == (line, column)


def attempt(text: str) -> tuple[Sequence[KdlNode], InvalidWorkflow | None]:
    try:
        return read(text), None
    except InvalidWorkflow as error:
        return (), error


def disagreement(own_nodes: Sequence[KdlNode], expected_nodes: Sequence[Any]) -> str | None:
    """The difference between the two results."""
    if len(own_nodes) != len(expected_nodes):
        return f"{len(own_nodes)} nodes against {len(expected_nodes)}"
    for node, other in zip(own_nodes, expected_nodes, strict=True):
        properties = {item.name: item.value for item in node.properties}
        same = (
            (node.name, node.annotation) == (other.name, other.type_annotation)
            and len(node.arguments) == len(other.args)
            and all(map(_same, node.arguments, other.args))
            and set(properties) == set(other.properties)
            and all(_same(value, other.properties[name]) for name, value in properties.items())
        )
        if not same:
            return f"{node} against {other} {other.args} {other.properties}"
        below = disagreement(node.children, other.children)
        if below:
            return below
    return None


def _same(own_nodes: KdlValue, expected_nodes: Any) -> bool:
    annotation = expected_nodes.type_annotation if isinstance(expected_nodes, ckdl.Value) else None
    plain = expected_nodes.value if isinstance(expected_nodes, ckdl.Value) else expected_nodes
    if own_nodes.annotation != annotation:
        return False
    if isinstance(own_nodes.value, float) and isinstance(plain, float):
        # ckdl rounds in its own way; the last digits of a float do not matter here.
        return (math.isnan(own_nodes.value) and math.isnan(plain)) or math.isclose(
            own_nodes.value, plain, rel_tol=1e-12
        )
    return type(own_nodes.value) is type(plain) and bool(own_nodes.value == plain)

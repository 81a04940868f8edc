"""Read JUnit XML that a job wrote, piece by piece and within limits.

Every byte may be hostile. There is no document type, so there are no entities and nothing external; and a file is
reduced test by test, so that memory holds one test of it. What a test says is for junitparser, which gets elements that
were built here and never bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement
from xml.parsers import expat

from junitparser import Error, Failure, Skipped
from junitparser.junitparser import System
from junitparser.xunit2 import FlakyError, FlakyFailure, TestCase

from solstice_orchestrator.reports.source_lines import SourceLine, source_line
from solstice_orchestrator.reports.values import BAD, MAX_NAME, RAW_MESSAGE, TestCaseResult, TestState

MAX_DEPTH: Final = 50
MAX_ATTRIBUTES: Final = 100
MAX_ELEMENTS_PER_TEST: Final = 1000
MAX_TEXT: Final = 32_000
"""Characters of one text that are looked at: its beginning; and as many of its end."""
MAX_OUTPUT: Final = 500
MAX_SECONDS: Final = 1e8

_ROOTS: Final = frozenset({"testsuites", "testsuite", "testrun"})
_SUITES: Final = frozenset({"testsuites", "testsuite", "testrun"})
_OUTPUT: Final = frozenset({"system-out", "system-err"})
_SKIPPED_STATES: Final = frozenset({"notrun", "disabled", "skipped", "suppressed", "ignored", "pending"})
_FAILED_STATES: Final = frozenset({"fail", "failed", "failure"})
_EMPTY_MESSAGES: Final = frozenset({"", "failed", "failure", "error", "fail", "test failure", "test error"})
"""What tools write that have nothing to say there: the text says more."""

TakeTest = Callable[[TestCaseResult], None]


class NotJUnit(Exception):
    """What was read is no JUnit XML; the sentence says why and where."""


def read_junit(content: bytes, take: TakeTest, roots: Sequence[str] = ()) -> None:
    """Give each test of a report to `take`, in order.

    Raises NotJUnit; tests before the place that it names have been given by then.
    """
    if not content.strip(b" \t\r\n\0"):
        raise NotJUnit("the file is empty")
    reader = _Reader(take, roots)
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.buffer_size = 64 * 1024
    parser.ordered_attributes = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.StartDoctypeDeclHandler = _refuse_document_type
    parser.EntityDeclHandler = _refuse_document_type
    parser.ExternalEntityRefHandler = _refuse_document_type
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    try:
        # At once: a long token that comes in pieces is looked at again with each of them.
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise NotJUnit(
            f"line {error.lineno}, column {error.offset + 1}: {expat.ErrorString(error.code)}"
        ) from None
    except NotJUnit as error:
        raise NotJUnit(f"line {parser.CurrentLineNumber}: {error}") from None
    except (LookupError, ValueError, UnicodeError):
        raise NotJUnit("its encoding is not known") from None


def _refuse_document_type(*_: object) -> int:
    raise NotJUnit("it has a document type (DTD), which a report may not have")


class _Reader:
    """Builds one test after the other."""

    def __init__(self, take: TakeTest, roots: Sequence[str]) -> None:
        self._take = take
        self._roots = roots
        self._suites: list[Mapping[str, str]] = []
        self._open: list[Element] = []
        """The element of the test that is being built, and those in it."""
        self._tags: list[str] = []
        self._unread = 0
        """Elements that are open from the first one that is not read."""
        self._elements = 0
        self._texts: dict[int, _Text] = {}

    def start(self, tag: str, pairs: list[str]) -> None:
        tag = tag.rpartition(":")[2]
        if not self._tags and tag not in _ROOTS:
            raise NotJUnit(f"it begins with <{tag[:40]}>, and JUnit XML with <testsuites> or <testsuite>")
        if len(self._tags) >= MAX_DEPTH:
            raise NotJUnit(f"more than {MAX_DEPTH} elements are inside each other")
        if len(pairs) > 2 * MAX_ATTRIBUTES:
            raise NotJUnit(f"an element has more than {MAX_ATTRIBUTES} attributes")
        self._tags.append(tag)
        if self._unread or tag == "properties" or (not self._open and tag in _OUTPUT):
            self._unread += 1
            return
        attributes = {
            name: value[: 2 * MAX_TEXT] for name, value in zip(pairs[::2], pairs[1::2], strict=True)
        }
        if self._open:
            self._elements += 1
            if self._elements > MAX_ELEMENTS_PER_TEST:
                raise NotJUnit(f"a test has more than {MAX_ELEMENTS_PER_TEST} elements")
            self._open.append(SubElement(self._open[-1], tag, attributes))
        elif tag == "testcase":
            self._begin(attributes)
        elif tag in {"failure", "error"} and self._suites:
            # Of the suite itself, which could not be run.
            self._begin({"name": self._suites[-1].get("name", "")})
            self._open.append(SubElement(self._open[-1], tag, attributes))
        else:
            self._suites.append(attributes if tag in _SUITES else {})

    def _begin(self, attributes: dict[str, str]) -> None:
        self._elements = 1
        self._open = [Element("testcase", attributes)]

    def text(self, text: str) -> None:
        if self._open and not self._unread:
            self._texts.setdefault(id(self._open[-1]), _Text()).add(text)

    def end(self, _tag: str) -> None:
        tag = self._tags.pop()
        if self._unread:
            self._unread -= 1
        elif self._open:
            element = self._open.pop()
            text = self._texts.pop(id(element), None)
            element.text = text.ends() if text else None
            if len(self._open) == 1 and tag in {"failure", "error"} and self._tags[-1] != "testcase":
                self._finish(self._open.pop())
            elif not self._open:
                self._finish(element)
        else:
            self._suites.pop()

    def _finish(self, element: Element) -> None:
        self._texts.clear()
        self._take(_test_of(element, self._suites, self._roots))


class _Text:
    """The text of an element, which comes in pieces.

    Its middle is dropped when it is long.
    """

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._length = 0

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self._length += len(piece)
        if self._length > 4 * MAX_TEXT:
            self._pieces = [self.ends()]
            self._length = len(self._pieces[0])

    def ends(self) -> str:
        text = "".join(self._pieces)
        return text if len(text) <= 2 * MAX_TEXT else f"{text[:MAX_TEXT]}\n{text[-MAX_TEXT:]}"


def _typed(library: Any) -> Any:
    """Return a class of junitparser, whose methods have no types."""
    return library


def _test_of(element: Element, suites: Sequence[Mapping[str, str]], roots: Sequence[str]) -> TestCaseResult:
    case: TestCase = _typed(TestCase).fromelem(element)
    attributes: Mapping[str, str] = element.attrib
    found = list(case)
    results = [each for each in found if isinstance(each, Failure | Error | Skipped)]
    state = _state_of(results, attributes)
    suite = next((each["name"] for each in reversed(suites) if each.get("name")), "")
    class_name = case.classname or attributes.get("class") or ""
    name = case.name or class_name or suite or "a test without a name"
    message, place = "", SourceLine()
    if state in BAD:
        decisive = [each for each in results if not isinstance(each, Skipped)]
        output = "\n".join(each.text for each in found if isinstance(each, System) and each.text).strip()
        message = _message_of(decisive, output)
        file = attributes.get("file") or attributes.get("filepath") or ""
        if not file:
            file = next((each["file"] for each in reversed(suites) if each.get("file")), "")
        line = attributes.get("line") or attributes.get("lineno") or ""
        texts = [part for each in decisive for part in (each.message, each.text) if part]
        if output and not any(each.text for each in decisive):
            texts.append(output)
        place = source_line((file, line), texts, class_name, roots)
    elif state is TestState.SKIPPED:
        message = next((each.message or each.text or "" for each in results), "").strip()
    return TestCaseResult(
        name=name[:MAX_NAME],
        class_name=class_name[:MAX_NAME],
        suite=suite[:MAX_NAME],
        state=state,
        seconds=_seconds(attributes),
        message=message[:RAW_MESSAGE],
        file=place.file,
        line=place.line,
        flaky=state is TestState.PASSED
        and any(isinstance(each, FlakyFailure | FlakyError) for each in found),
    )


def _state_of(results: Sequence[Failure | Error | Skipped], attributes: Mapping[str, str]) -> TestState:
    if any(isinstance(each, Failure) for each in results):
        return TestState.FAILED
    if any(isinstance(each, Error) for each in results):
        return TestState.ERRORED
    if results:
        return TestState.SKIPPED
    words = {attributes.get("status", "").lower(), attributes.get("result", "").lower()}
    if not words.isdisjoint(_FAILED_STATES):
        return TestState.FAILED
    return TestState.PASSED if words.isdisjoint(_SKIPPED_STATES) else TestState.SKIPPED


def _message_of(results: Sequence[Failure | Error | Skipped], output: str) -> str:
    """Return why a test did not pass.

    Where its tool does not say it, its output does.
    """
    for each in results:
        message, text = (each.message or "").strip(), (each.text or "").strip()
        if message.lower() not in _EMPTY_MESSAGES:
            return message
        if text:
            return text
    title = next((each.message or each.type or "" for each in results), "")
    if len(output) > 2 * MAX_OUTPUT:
        output = f"{output[:MAX_OUTPUT]}\n...\n{output[-MAX_OUTPUT:]}"
    return f"{title}\n{output}".strip()


def _seconds(attributes: Mapping[str, str]) -> float:
    """Return a time as tools write it: `1.5`, `1,234.5` or `1,5`.

    0 where it is none.
    """
    text = (attributes.get("time") or attributes.get("duration") or "").strip()
    if "," in text:
        text = text.replace(",", "") if "." in text or text.count(",") > 1 else text.replace(",", ".")
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return seconds if 0 <= seconds <= MAX_SECONDS else 0.0

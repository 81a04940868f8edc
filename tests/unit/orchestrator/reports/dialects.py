"""Test reports in the dialects of many tools, written for these tests."""

from typing import Final, NamedTuple


class Dialect(NamedTuple):
    """A report, and what it says."""

    tool: str
    xml: str
    counts: tuple[int, int, int, int]
    """Passed, failed, errored and skipped."""
    first: tuple[str, str, str, int | None] = ("", "", "", None)
    """The first failed test: its full name, the beginning of its message, its file and line."""


ROOTS: Final = ("/srv/ci/job-1/source", "/workspace")

DIALECTS: Final = (
    Dialect(
        "pytest, xunit2",
        """<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest" errors="1"
        failures="1" skipped="1" tests="4" time="0.145" timestamp="2026-11-28T16:04:31+00:00" hostname="ci">
        <testcase classname="tests.test_sums.TestAdd" name="test_two[1-2]" time="0.001" />
        <testcase classname="tests.test_sums" name="test_bad" time="0.002"><failure message="AssertionError: assert 3 == 4">
def test_bad():
&gt;       assert add(1, 2) == 4
E       AssertionError: assert 3 == 4

src/sums.py:31: in add
    return a + b
tests/test_sums.py:12: AssertionError</failure></testcase>
        <testcase classname="tests.test_sums" name="test_broken" time="0.01"><error message="failed on setup with &quot;KeyError&quot;">
tests/test_sums.py:20: KeyError</error></testcase>
        <testcase classname="tests.test_sums" name="test_later" time="0.0"><skipped type="pytest.skip" message="later">x</skipped></testcase>
        </testsuite></testsuites>""",
        (1, 1, 1, 1),
        ("tests.test_sums::test_bad", "AssertionError: assert 3 == 4", "tests/test_sums.py", 12),
    ),
    Dialect(
        "pytest, xunit1",
        """<testsuite name="pytest" errors="0" failures="1" tests="1"><testcase classname="tests.test_sums" name="test_bad"
        file="tests/test_sums.py" line="9" time="0.002"><failure message="assert 3 == 4">def test_bad():
E       assert 3 == 4

tests/test_sums.py:12: AssertionError</failure></testcase></testsuite>""",
        (0, 1, 0, 0),
        ("tests.test_sums::test_bad", "assert 3 == 4", "tests/test_sums.py", 12),
    ),
    Dialect(
        "unittest-xml-reporting",
        """<testsuites><testsuite name="sums.AddTest-20261128" tests="2" file="sums.py" time="0.010" failures="0" errors="1"
        skipped="0"><testcase classname="sums.AddTest" name="test_ok" time="0.000" timestamp="2026-11-28T16:02:50" file="sums.py"
        line="3"/><testcase classname="sums.AddTest" name="test_err" time="0.005" file="sums.py" line="5"><error type="KeyError"
        message="'x'"><![CDATA[Traceback (most recent call last):
  File "/srv/ci/job-1/source/sums.py", line 6, in test_err
    raise KeyError("x")
KeyError: 'x'
]]></error></testcase></testsuite></testsuites>""",
        (1, 0, 1, 0),
        ("sums.AddTest::test_err", "'x'", "sums.py", 6),
    ),
    Dialect(
        "nose2",
        """<testsuite name="nose2-junit" errors="0" failures="1" skipped="0" tests="1" time="0.0"><testcase time="0.0002"
        classname="sums.AddTest" name="test_bad"><failure message="test failure">Traceback (most recent call last):
  File "/workspace/sums.py", line 4, in test_bad
    self.assertEqual(1, 2)
AssertionError: 1 != 2
</failure><system-err /></testcase></testsuite>""",
        (0, 1, 0, 0),
        ("sums.AddTest::test_bad", "Traceback", "sums.py", 4),
    ),
    Dialect(
        "behave",
        """<testsuite name="sums.Adding" tests="1" errors="0" failures="1" skipped="0" time="0.0"><testcase classname="sums.Adding"
        name="two numbers" status="failed" time="0.0005"><failure type="AssertionError" message="1 != 2"><![CDATA[
Failing step: Then it is 2 ... failed in 0.000s
Location: features/sums.feature:5
]]></failure><system-out><![CDATA[@scenario.begin]]></system-out></testcase></testsuite>""",
        (0, 1, 0, 0),
        ("sums.Adding::two numbers", "1 != 2", "features/sums.feature", 5),
    ),
    Dialect(
        "Robot Framework",
        """<testsuite name="Sums" tests="2" errors="0" failures="1" skipped="0" time="0.02"><testcase classname="Sums" name="Good"
        time="0.01"></testcase><testcase classname="Sums" name="Bad" time="0.01"><failure message="1 != 2" type="AssertionError"/>
        </testcase></testsuite>""",
        (1, 1, 0, 0),
        ("Sums::Bad", "1 != 2", "", None),
    ),
    Dialect(
        "Maven Surefire",
        """<?xml version="1.0" encoding="UTF-8"?><testsuite xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
        xsi:noNamespaceSchemaLocation="https://maven.apache.org/surefire/maven-surefire-plugin/xsd/surefire-test-report.xsd" version="3.0"
        name="com.acme.SumsTest" time="1,234.5" tests="3" errors="0" skipped="1" failures="1">
        <properties><property name="java.version" value="21"/></properties>
        <testcase name="adds" classname="com.acme.SumsTest" time="1,234.5"/>
        <testcase name="breaks" classname="com.acme.SumsTest" time="0.004"><failure message="expected: &lt;4&gt; but was: &lt;3&gt;"
        type="org.opentest4j.AssertionFailedError"><![CDATA[org.opentest4j.AssertionFailedError: expected: <4> but was: <3>
	at org.junit.jupiter.api.AssertionUtils.fail(AssertionUtils.java:55)
	at com.acme.SumsTest.breaks(SumsTest.java:17)
]]></failure><system-out><![CDATA[noise]]></system-out></testcase>
        <testcase name="later" classname="com.acme.SumsTest" time="0"><skipped message="not yet"/></testcase></testsuite>""",
        (1, 1, 0, 1),
        ("com.acme.SumsTest::breaks", "expected: <4> but was: <3>", "com/acme/SumsTest.java", 17),
    ),
    Dialect(
        "Maven Surefire with reruns",
        """<testsuite name="com.acme.NetTest" time="0.2" tests="2" errors="0" skipped="0" failures="1" flakes="1">
        <testcase name="sometimes" classname="com.acme.NetTest" time="0.1"><flakyFailure message="timeout"
        type="java.lang.AssertionError"><stackTrace>at com.acme.NetTest.sometimes(NetTest.java:9)</stackTrace></flakyFailure></testcase>
        <testcase name="never" classname="com.acme.NetTest" time="0.1"><failure message="refused" type="java.net.ConnectException">
	at com.acme.NetTest.never(NetTest.java:14)</failure><rerunFailure message="refused" type="java.net.ConnectException">
        <stackTrace>at com.acme.NetTest.never(NetTest.java:14)</stackTrace></rerunFailure></testcase></testsuite>""",
        (1, 1, 0, 0),
        ("com.acme.NetTest::never", "refused", "com/acme/NetTest.java", 14),
    ),
    Dialect(
        "Gradle",
        """<testsuite name="com.acme.SumsTest" tests="1" skipped="0" failures="1" errors="0" timestamp="2026-11-28T16:00:00"
        hostname="ci" time="0.04"><properties/><testcase name="breaks()" classname="com.acme.SumsTest" time="0.04">
        <failure message="java.lang.AssertionError: no" type="java.lang.AssertionError">java.lang.AssertionError: no
	at com.acme.SumsTest.breaks(SumsTest.kt:8)
</failure></testcase><system-out><![CDATA[]]></system-out><system-err><![CDATA[]]></system-err></testsuite>""",
        (0, 1, 0, 0),
        ("com.acme.SumsTest::breaks()", "java.lang.AssertionError: no", "com/acme/SumsTest.kt", 8),
    ),
    Dialect(
        "Ant",
        """<testsuite errors="1" failures="0" hostname="ci" name="com.acme.OldTest" skipped="0" tests="1" time="0.3">
        <testcase classname="com.acme.OldTest" name="testRead" time="0.3"><error message="no file" type="java.io.IOException">
	at com.acme.OldTest.testRead(OldTest.java:40)</error></testcase></testsuite>""",
        (0, 0, 1, 0),
        ("com.acme.OldTest::testRead", "no file", "com/acme/OldTest.java", 40),
    ),
    Dialect(
        "ScalaTest",
        """<testsuite name="com.acme.SumsSpec" tests="1" failures="1" errors="0" skipped="0" time="0.1"><testcase
        name="Sums should add" classname="com.acme.SumsSpec" time="0.1"><failure message="3 did not equal 4"
        type="org.scalatest.exceptions.TestFailedException">	at com.acme.SumsSpec.$anonfun$new$1(SumsSpec.scala:11)</failure></testcase>
        </testsuite>""",
        (0, 1, 0, 0),
        ("com.acme.SumsSpec::Sums should add", "3 did not equal 4", "com/acme/SumsSpec.scala", 11),
    ),
    Dialect(
        "go-junit-report",
        """<testsuites tests="2" failures="1"><testsuite name="acme.dev/sums" tests="2" failures="1" errors="0" id="0" hostname="ci"
        time="0.003" timestamp="2026-11-28T16:00:00Z"><properties><property name="go.version" value="go1.24"></property></properties>
        <testcase name="TestOk" classname="acme.dev/sums" time="0.000"></testcase>
        <testcase name="TestBad" classname="acme.dev/sums" time="0.000"><failure message="Failed"><![CDATA[    sums_test.go:12: got 3]]>
        </failure></testcase></testsuite></testsuites>""",
        (1, 1, 0, 0),
        ("acme.dev/sums::TestBad", "sums_test.go:12: got 3", "sums_test.go", 12),
    ),
    Dialect(
        "gotestsum",
        """<testsuites tests="3" failures="1" errors="0" time="1.3"><testsuite tests="3" failures="1" time="0.001000"
        name="acme.dev/sums" timestamp="2026-11-28T16:00:00Z"><testcase classname="acme.dev/sums" name="TestOk" time="0.000000"></testcase>
        <testcase classname="acme.dev/sums" name="TestBad/two" time="0.000000"><failure message="Failed" type="">=== RUN   TestBad/two
    sums/sums_test.go:20: want 4, got 3
--- FAIL: TestBad/two (0.00s)
</failure></testcase><testcase classname="acme.dev/sums" name="TestLater" time="0.000000"><skipped message="=== RUN   TestLater"></skipped>
        </testcase></testsuite></testsuites>""",
        (1, 1, 0, 1),
        ("acme.dev/sums::TestBad/two", "=== RUN   TestBad/two", "sums/sums_test.go", 20),
    ),
    Dialect(
        "Ginkgo",
        """<testsuites tests="1" disabled="0" errors="0" failures="1" time="0.1"><testsuite name="Sums" package="/workspace/sums"
        tests="1" disabled="0" skipped="0" errors="0" failures="1" time="0.1"><testcase name="[It] Sums adds" classname="Sums"
        status="failed" time="0.1"><failure message="Expected&#xA;    &lt;int&gt;: 3" type="failed">[FAILED] Expected
In [It] at: /workspace/sums/sums_test.go:16 @ 11/28/26</failure></testcase></testsuite></testsuites>""",
        (0, 1, 0, 0),
        ("Sums::[It] Sums adds", "Expected\n", "sums/sums_test.go", 16),
    ),
    Dialect(
        "cargo-nextest",
        """<testsuites name="nextest-run" tests="3" failures="1" errors="0" uuid="6a" timestamp="2026-11-28T16:00:00.000+00:00"
        time="0.012"><testsuite name="acme" tests="3" disabled="0" errors="0" failures="1"><testcase name="tests::adds" classname="acme"
        timestamp="2026-11-28T16:00:00.000+00:00" time="0.004"/><testcase name="tests::flaky" classname="acme" time="0.004">
        <flakyFailure timestamp="2026-11-28T16:00:00.000+00:00" time="0.004" message="thread panicked" type="test failure">x</flakyFailure>
        </testcase><testcase name="tests::breaks" classname="acme" time="0.004"><failure message="thread 'tests::breaks' panicked at
        src/lib.rs:10:5" type="test failure">thread 'tests::breaks' panicked at src/lib.rs:10:5:
assertion failed: false
   0: std::panicking::begin_panic
             at /rustc/abc/library/std/src/panicking.rs:665:5</failure></testcase></testsuite></testsuites>""",
        (2, 1, 0, 0),
        ("acme::tests::breaks", "thread 'tests::breaks' panicked", "src/lib.rs", 10),
    ),
    Dialect(
        "Rust libtest",
        """<testsuites><testsuite name="test" package="test" id="0" errors="0" failures="1" tests="2" skipped="0"><testcase
        classname="tests" name="ok" time="0"/><testcase classname="tests" name="bad" time="0"><failure type="assert"/><system-out>
        <![CDATA[thread 'tests::bad' panicked at src/lib.rs:4:9:]]>&#xA;<![CDATA[no]]></system-out></testcase></testsuite></testsuites>""",
        (1, 1, 0, 0),
        ("tests::bad", "assert\nthread 'tests::bad' panicked", "src/lib.rs", 4),
    ),
    Dialect(
        "jest-junit",
        """<testsuites name="jest tests" tests="3" failures="1" errors="0" time="0.66"><testsuite name="math" errors="0" failures="1"
        skipped="1" timestamp="2026-11-28T16:00:00" time="0.3" tests="3"><testcase classname="math adds" name="math adds" time="0.002">
        </testcase><testcase classname="math breaks" name="math breaks" time="0.003"><failure>Error: expect(received).toBe(expected)

Expected: 2
Received: 1
    at Object.toBe (/srv/ci/job-1/source/src/math.test.js:5:13)
    at Promise.then.completed (/srv/ci/job-1/source/node_modules/jest-circus/build/utils.js:298:28)</failure></testcase>
        <testcase classname="math later" name="math later" time="0"><skipped/></testcase></testsuite></testsuites>""",
        (1, 1, 0, 1),
        ("math breaks", "Error: expect(received)", "src/math.test.js", 5),
    ),
    Dialect(
        "mocha-junit-reporter",
        """<testsuites name="Mocha Tests" time="0.01" tests="1" failures="1"><testsuite name="Root Suite"
        timestamp="2026-11-28T16:00:00" tests="0" time="0.0" failures="0"></testsuite><testsuite name="Sums"
        file="/workspace/test/sums.js" tests="1" time="0.01" failures="1"><testcase name="Sums breaks" time="0.001" classname="breaks">
        <failure message="1 == 2" type="AssertionError"><![CDATA[AssertionError [ERR_ASSERTION]: 1 == 2
    at Context.<anonymous> (test/sums.js:3:30)
    at process.processImmediate (node:internal/timers:483:21)]]></failure></testcase></testsuite></testsuites>""",
        (0, 1, 0, 0),
        ("breaks::Sums breaks", "1 == 2", "test/sums.js", 3),
    ),
    Dialect(
        "mocha, xunit",
        """<testsuite name="Mocha Tests" tests="2" failures="0" errors="1" skipped="1" time="0.002"><testcase classname="Sums"
        name="breaks" file="/workspace/spec/m.js" time="0.001"><failure>1 == 2
    at Context.&#x3C;anonymous&#x3E; (spec/m.js:2:68)</failure></testcase><testcase classname="Sums" name="later" time="0"><skipped/>
        </testcase></testsuite>""",
        (0, 1, 0, 1),
        ("Sums::breaks", "1 == 2", "spec/m.js", 2),
    ),
    Dialect(
        "Vitest",
        """<testsuites name="vitest tests" tests="2" failures="1" errors="0" time="0.03"><testsuite name="src/math.spec.ts"
        tests="2" failures="1" errors="0" skipped="0" time="0.03"><testcase classname="src/math.spec.ts" name="m &gt; ok" time="0.001">
        </testcase><testcase classname="src/math.spec.ts" name="m &gt; bad" time="0.027"><failure
        message="expected 1 to be 2 // Object.is equality" type="AssertionError">
  at src/math.spec.ts:7:63
</failure></testcase></testsuite></testsuites>""",
        (1, 1, 0, 0),
        ("src/math.spec.ts::m > bad", "expected 1 to be 2", "src/math.spec.ts", 7),
    ),
    Dialect(
        "node --test",
        """<testsuites><testcase name="ok" time="0.01" classname="test"/><testsuite name="sums" time="0.001" disabled="0" errors="0"
        tests="2" failures="1" skipped="1" hostname="ci"><testcase name="bad" time="0.001" classname="test" failure="1 !== 2"><failure
        type="testCodeFailure" message="1 !== 2">
    at new Promise (&lt;anonymous>)
      at TestContext.&lt;anonymous> (/workspace/test/sums.test.js:2:78)
      at Test.runInAsyncScope (node:async_hooks:206:9)</failure></testcase><testcase name="sk" time="0.0001" classname="test">
        <skipped type="skipped" message="true"/></testcase></testsuite></testsuites>""",
        (1, 1, 0, 1),
        ("test::bad", "1 !== 2", "test/sums.test.js", 2),
    ),
    Dialect(
        "Playwright",
        """<testsuites id="" name="" tests="1" failures="1" skipped="0" errors="0" time="3.1"><testsuite name="shop.spec.ts"
        timestamp="2026-11-28T16:00:00.000Z" hostname="chromium" tests="1" failures="1" skipped="0" time="3.0" errors="0"><testcase
        name="buys a book" classname="shop.spec.ts" time="3.0"><failure message="shop.spec.ts:8:1 buys a book" type="FAILURE">
<![CDATA[  [chromium] shop.spec.ts:8:1 buys a book
    at /workspace/e2e/shop.spec.ts:12:30]]></failure></testcase></testsuite></testsuites>""",
        (0, 1, 0, 0),
        ("shop.spec.ts::buys a book", "shop.spec.ts:8:1 buys a book", "shop.spec.ts", 8),
    ),
    Dialect(
        "ESLint",
        """<testsuites><testsuite package="org.eslint" time="0" tests="1" errors="1" name="/workspace/src/a.js"><testcase time="0"
        name="org.eslint.no-unused-vars" classname="/workspace/src/a.js"><failure message="'x' is never used."><![CDATA[line 3, col 7,
Error - 'x' is never used. (no-unused-vars)]]></failure></testcase></testsuite></testsuites>""",
        (0, 1, 0, 0),
        ("/workspace/src/a.js::org.eslint.no-unused-vars", "'x' is never used.", "src/a.js", 3),
    ),
    Dialect(
        "PHPUnit",
        """<testsuites><testsuite name="" tests="3" assertions="3" errors="0" failures="1" skipped="1" time="0.01"><testsuite
        name="Acme\\SumsTest" file="/workspace/tests/SumsTest.php" tests="3"><testsuite name="Acme\\SumsTest::testData" tests="2">
        <testcase name="testData with data set &quot;two&quot;" class="Acme\\SumsTest" classname="Acme.SumsTest"
        file="/workspace/tests/SumsTest.php" line="12" assertions="1" time="0.001"><failure
        type="PHPUnit\\Framework\\ExpectationFailedException">Acme\\SumsTest::testData with data set "two" (2)
Failed asserting that 2 is identical to 1.

/workspace/tests/SumsTest.php:14
</failure></testcase><testcase name="testData with data set &quot;one&quot;" class="Acme\\SumsTest" classname="Acme.SumsTest"
        file="/workspace/tests/SumsTest.php" line="12" assertions="1" time="0.001"/></testsuite><testcase name="testLater"
        class="Acme\\SumsTest" classname="Acme.SumsTest" file="/workspace/tests/SumsTest.php" line="20" assertions="0" time="0.000">
        <skipped/></testcase></testsuite></testsuite></testsuites>""",
        (1, 1, 0, 1),
        (
            'Acme.SumsTest::testData with data set "two"',
            "Acme\\SumsTest::testData with data set",
            "tests/SumsTest.php",
            14,
        ),
    ),
    Dialect(
        "RSpec",
        """<testsuite name="rspec" tests="2" skipped="1" failures="1" errors="0" time="0.02" timestamp="2026-11-28T16:00:00+00:00"
        hostname="ci"><properties><property name="seed" value="1"/></properties><testcase classname="spec.sums_spec" name="Sums adds"
        file="./spec/sums_spec.rb" time="0.01"><failure message="expected: 4, got: 3"
        type="RSpec::Expectations::ExpectationNotMetError">Failure/Error: expect(add(1, 2)).to eq(4)
./spec/sums_spec.rb:5:in `block (2 levels) in &lt;top (required)&gt;'</failure></testcase><testcase classname="spec.sums_spec"
        name="Sums later" file="./spec/sums_spec.rb" time="0.0"><skipped/></testcase></testsuite>""",
        (0, 1, 0, 1),
        ("spec.sums_spec::Sums adds", "expected: 4, got: 3", "spec/sums_spec.rb", 5),
    ),
    Dialect(
        "Minitest",
        """<testsuites><testsuite name="SumsTest" filepath="test/sums_test.rb" skipped="0" failures="1" errors="0" tests="1"
        assertions="1" time="0.01"><testcase name="test_add" lineno="7" classname="SumsTest" assertions="1" time="0.01"
        file="test/sums_test.rb"><failure type="test_add" message="Expected: 4 Actual: 3">Failure:
test_add(SumsTest) [test/sums_test.rb:9]: Expected: 4</failure></testcase></testsuite></testsuites>""",
        (0, 1, 0, 0),
        ("SumsTest::test_add", "Expected: 4 Actual: 3", "test/sums_test.rb", 9),
    ),
    Dialect(
        ".NET, JunitXml.TestLogger",
        """<testsuites><testsuite name="Acme.Tests.dll" tests="2" skipped="1" failures="1" errors="0" time="0.1"
        timestamp="2026-11-28T16:00:00" hostname="CI" id="0" package="Acme.Tests.dll"><properties /><testcase
        classname="Acme.Tests.SumsTests" name="Adds(a: 1)" time="0.02"><failure type="failure" message="Assert.Equal() Failure">
   at Acme.Tests.SumsTests.Adds(Int32 a) in /workspace/tests/SumsTests.cs:line 21</failure></testcase><testcase
        classname="Acme.Tests.SumsTests" name="Later" time="0.0"><skipped /></testcase><system-out>noise</system-out></testsuite></testsuites>""",
        (0, 1, 0, 1),
        ("Acme.Tests.SumsTests::Adds(a: 1)", "Assert.Equal() Failure", "tests/SumsTests.cs", 21),
    ),
    Dialect(
        "NUnit, transformed",
        """<testsuites><testsuite tests="1" time="0.1" failures="1" errors="0" skipped="0" name="Acme.Tests"><testcase
        name="Adds" assertions="1" time="0.05" classname="Acme.Tests.Sums"><failure message="  Expected: 4&#xD;&#xA;  But was: 3">
at Acme.Tests.Sums.Adds() in C:\\workspace\\Sums.cs:line 9</failure></testcase></testsuite></testsuites>""",
        (0, 1, 0, 0),
        ("Acme.Tests.Sums::Adds", "Expected: 4", "C:/workspace/Sums.cs", 9),
    ),
    Dialect(
        "ctest",
        """<testsuite name="Linux-c++" tests="4" failures="1" disabled="1" skipped="1" hostname="" time="1"
        timestamp="2026-11-28T16:06:19"><testcase name="good" classname="good" time="0.01" status="run"><properties/><system-out>
        </system-out></testcase><testcase name="bad" classname="bad" time="0.01" status="fail"><failure message="Failed"/><properties/>
        <system-out>sums.cc:14: 3 is not 4</system-out></testcase><testcase name="off" classname="off" time="0" status="disabled">
        <properties/></testcase><testcase name="absent" classname="absent" time="0" status="notrun"><skipped
        message="Unable to find executable"/></testcase></testsuite>""",
        (1, 1, 0, 2),
        ("bad", "Failed\nsums.cc:14: 3 is not 4", "sums.cc", 14),
    ),
    Dialect(
        "GoogleTest",
        """<testsuites tests="4" failures="1" disabled="1" errors="0" time="0.1" name="AllTests"><testsuite name="Sums" tests="4"
        failures="1" disabled="1" skipped="1" errors="0" time="0.1"><testcase name="Adds" file="src/sums_test.cc" line="2" status="run"
        result="completed" time="0." classname="Sums" /><testcase name="Breaks" file="src/sums_test.cc" line="3" status="run"
        result="completed" time="0." classname="Sums"><failure message="src/sums_test.cc:5&#x0A;Expected equality" type=""><![CDATA[x]]>
        </failure></testcase><testcase name="DISABLED_Off" file="src/sums_test.cc" line="8" status="notrun" result="suppressed" time="0."
        classname="Sums" /><testcase name="Skips" file="src/sums_test.cc" line="9" status="run" result="skipped" time="0."
        classname="Sums"><skipped message="no"/></testcase></testsuite></testsuites>""",
        (1, 1, 0, 2),
        ("Sums::Breaks", "src/sums_test.cc:5\nExpected equality", "src/sums_test.cc", 5),
    ),
    Dialect(
        "Catch2",
        """<testsuites><testsuite name="sums" errors="1" failures="0" tests="2" hostname="tbd" time="0" timestamp="2026-11-28T16:00:00Z">
        <testcase classname="sums.global" name="adds" time="0" status="run"/><testcase classname="sums.global" name="throws" time="0"
        status="run"><error type="TEST_CASE">FAILED:
Unknown exception
at src/sums.cpp:5</error></testcase><system-out/></testsuite></testsuites>""",
        (1, 0, 1, 0),
        ("sums.global::throws", "FAILED:", "src/sums.cpp", 5),
    ),
    Dialect(
        "Bats",
        """<testsuites time="0.045"><testsuite name="sums.bats" tests="3" failures="1" errors="0" skipped="1" time="0.045"
        timestamp="2026-11-28T16:00:00" hostname="ci"><testcase classname="sums.bats" name="adds" time="0.01" /><testcase
        classname="sums.bats" name="breaks" time="0.02"><failure type="failure">(in test file test/sums.bats, line 6)
  `[ 1 -eq 2 ]&#39; failed</failure></testcase><testcase classname="sums.bats" name="later" time="0"><skipped>no</skipped></testcase>
        </testsuite></testsuites>""",
        (1, 1, 0, 1),
        ("sums.bats::breaks", "(in test file test/sums.bats, line 6)", "test/sums.bats", 6),
    ),
    Dialect(
        "Bazel",
        """<testsuites><testsuite name="sums/sums_test" tests="1" failures="0" errors="1"><testcase name="sums/sums_test" status="run"
        duration="1" time="1"><error message="exited with error code 1"></error></testcase><system-out>
Generated test.log (if the file is not UTF-8, then this may be unreadable):</system-out></testsuite></testsuites>""",
        (0, 0, 1, 0),
        ("sums/sums_test", "exited with error code 1", "", None),
    ),
    Dialect(
        "ExUnit",
        """<testsuites><testsuite errors="0" failures="1" name="Elixir.SumsTest" tests="1" time="0.01"><testcase
        classname="Elixir.SumsTest" file="test/sums_test.exs" name="test adds" time="0.01"><failure message="error: Assertion with ==
        failed">    test/sums_test.exs:5: (test)</failure></testcase></testsuite></testsuites>""",
        (0, 1, 0, 0),
        ("Elixir.SumsTest::test adds", "error: Assertion", "test/sums_test.exs", 5),
    ),
    Dialect(
        "xcbeautify (XCTest)",
        """<testsuites name="AcmeTests.xctest" tests="1" failures="1"><testsuite name="SumsTests" tests="1" failures="1"><testcase
        classname="AcmeTests.SumsTests" name="testAdds" time="0.01"><failure message="XCTAssertEqual failed">/workspace/Tests/SumsTests.swift:9
        </failure></testcase></testsuite></testsuites>""",
        (0, 1, 0, 0),
        ("AcmeTests.SumsTests::testAdds", "XCTAssertEqual failed", "Tests/SumsTests.swift", 9),
    ),
    Dialect(
        "a suite that could not be run",
        """<testsuite name="com.acme.Broken" tests="0" errors="1"><error message="no class" type="java.lang.Error">x</error></testsuite>""",
        (0, 0, 1, 0),
        ("com.acme.Broken", "no class", "", None),
    ),
    Dialect(
        "nothing was run", """<testsuites><testsuite name="empty" tests="0"/></testsuites>""", (0, 0, 0, 0)
    ),
)

"""scripts/lib/results.py: what counts as passed, failed and skipped."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "lib" / "results.py"

CTEST = """<testsuite>
<testcase name="good_test" status="run"/>
<testcase name="bad_test" status="fail"><failure message=""/></testcase>
<testcase name="crashing_test" status="fail"><failure message="SEGFAULT"/></testcase>
<testcase name="missing_test" status="notrun"><skipped message="Unable to find executable"/></testcase>
<testcase name="script" status="run"/>
<testcase name="skipping_script" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>
</testsuite>"""
GOOD = """<testsuites><testsuite>
<testcase name="A" status="run" result="completed" classname="Good"/>
<testcase name="B" status="run" result="skipped" classname="Good"><skipped message="x.cc:1&#x0A;needs a file"/></testcase>
<testcase name="C" status="notrun" result="suppressed" classname="Good"/>
</testsuite></testsuites>"""
BAD = """<testsuites><testsuite>
<testcase name="A" status="run" result="completed" classname="Bad"><failure message="1 is not 2"/></testcase>
<testcase name="B" status="run" result="completed" classname="Bad"/>
</testsuite></testsuites>"""


def run(*arguments):
    done = subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stdout


class ResultsTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def summarize(self, *rows):
        path = self.folder / "results.tsv"
        path.write_text("".join("\t".join(row) + "\n" for row in rows))
        code, output = run("summarize", path)
        return code, output.splitlines()

    def test_collects_each_case(self):
        (self.folder / "ctest.junit").write_text(CTEST)
        (self.folder / "good_test.xml").write_text(GOOD)
        (self.folder / "bad_test.xml").write_text(BAD)
        (self.folder / "crashing_test.xml").write_text(GOOD[:40])  # cut off
        code, output = run("collect", "release", self.folder)
        self.assertEqual(code, 0)
        rows = {row[1]: row[2:] for row in (line.split("\t") for line in output.splitlines())}
        self.assertEqual({name: row[0] for name, row in rows.items()}, {
            "good_test: Good.A": "passed", "good_test: Good.B": "skipped", "good_test: Good.C": "skipped",
            "bad_test: Bad.A": "failed", "bad_test: Bad.B": "passed", "crashing_test": "failed",
            "missing_test": "failed", "script": "passed", "skipping_script": "skipped"})
        self.assertIn("needs a file", rows["good_test: Good.B"][1])
        self.assertIn("1 is not 2", rows["bad_test: Bad.A"][1])

    def test_no_results_are_a_failure(self):
        code, output = run("collect", "release", self.folder)
        self.assertIn("\tfailed\t", output)

    def test_last_line_and_exit_code(self):
        passed, failed, skipped = (("s", "t", outcome, "") for outcome in ("passed", "failed", "skipped"))
        self.assertEqual(self.summarize(passed, passed, skipped)[0], 0)
        self.assertEqual(self.summarize(passed, passed, skipped)[1][-1], "2 passed, 0 failed, 1 skipped")
        code, lines = self.summarize(passed, failed)
        self.assertEqual((code, lines[-1]), (1, "1 passed, 1 failed, 0 skipped"))
        self.assertIn("  [s] t", lines)
        self.assertEqual(self.summarize()[0], 1)
        self.assertEqual(self.summarize(skipped)[0], 1)


if __name__ == "__main__":
    unittest.main()

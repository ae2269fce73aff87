#!/usr/bin/env python3
"""Counts test results for scripts/test.

  results.py collect STAGE REPORTS    reads ctest's JUnit file and the XML files of the test programs in the
                                      folder REPORTS; prints a line for each test case
  results.py summarize FILE           prints what failed, what was skipped and why, and the totals

A line is stage, test, outcome (passed, failed or skipped) and reason, with tabs between. GoogleTest and pytest
write one XML file per program, named like the CTest test; a program that wrote none (it crashed, or it is a
script) counts as one test.
"""

import collections
import pathlib
import sys
import xml.etree.ElementTree as ET


def one_line(text):
    return " ".join((text or "").split())


def outcome_of(case):
    """(outcome, reason) of a <testcase> of GoogleTest, pytest or ctest."""
    for tag in ("failure", "error"):
        found = case.find(tag)
        if found is not None:
            return "failed", one_line(found.get("message") or found.text)[:300]
    if case.get("status") == "fail":
        return "failed", "exit code or timeout"
    skipped = case.find("skipped")
    if skipped is not None or case.get("result") in ("skipped", "suppressed") or case.get("status") == "notrun":
        return "skipped", one_line((skipped.get("message") or skipped.text) if skipped is not None else "disabled")
    return "passed", ""


def program_cases(path):
    """(name, outcome, reason) of each case in the XML file of one test program."""
    for case in ET.parse(path).iter("testcase"):
        yield (f"{case.get('classname')}.{case.get('name')}", *outcome_of(case))


def ctest_outcome(case):
    """ctest calls a test whose program is missing `notrun`: for us that is a failure, not a skip."""
    outcome, reason = outcome_of(case)
    if outcome == "skipped" and not reason.startswith("SKIP_"):
        return "failed", f"not run: {reason}"
    return outcome, reason


def collect(stage, reports):
    reports = pathlib.Path(reports)
    try:
        tests = list(ET.parse(reports / "ctest.junit").iter("testcase"))
    except (OSError, ET.ParseError) as error:
        yield stage, "ctest", "failed", f"no results: {error}"
        return
    for test in tests:
        name = test.get("name")
        outcome, reason = ctest_outcome(test)
        cases = []
        try:
            cases = list(program_cases(reports / f"{name}.xml"))
        except (OSError, ET.ParseError):
            pass
        if outcome == "failed" and not any(case[1] == "failed" for case in cases):
            cases.append((name, "failed", reason or "the program failed outside its test cases"))
        for case in cases or [(name, outcome, reason)]:
            case_name, case_outcome, case_reason = case
            label = case_name if case_name == name else f"{name}: {case_name}"
            yield stage, label, case_outcome, case_reason


def summarize(path):
    rows = [line.rstrip("\n").split("\t") for line in open(path, encoding="utf-8")]
    stages = collections.OrderedDict()
    for stage, _, outcome, _ in rows:
        stages.setdefault(stage, collections.Counter())[outcome] += 1
    for stage, counts in stages.items():
        print(f"  {stage:12} {counts['passed']:6} passed {counts['failed']:5} failed {counts['skipped']:5} skipped")
    for wanted in ("skipped", "failed"):
        group = [row for row in rows if row[2] == wanted]
        if group:
            print(f"\n{wanted.capitalize()}:")
        for stage, test, _, reason in group:
            print(f"  [{stage}] {test}" + (f": {reason}" if reason else ""))
    totals = collections.Counter(row[2] for row in rows)
    print(f"\n{totals['passed']} passed, {totals['failed']} failed, {totals['skipped']} skipped")
    return 1 if totals["failed"] or not totals["passed"] else 0


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "collect":
        for row in collect(sys.argv[2], sys.argv[3]):
            print("\t".join(one_line(field) for field in row))
        return 0
    if len(sys.argv) == 3 and sys.argv[1] == "summarize":
        return summarize(sys.argv[2])
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

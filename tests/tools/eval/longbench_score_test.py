"""tools/eval/longbench_score.py: LongBench's metrics on answers whose scores are known, and the table of a run's rows.

What needs jieba, rouge or rapidfuzz is skipped without them: pip install -r tools/eval/requirements.txt
"""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "tools" / "eval" / "longbench_score.py"
SPEC = importlib.util.spec_from_file_location("longbench_score", SCRIPT)
longbench = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(longbench)

FACTS = {"evaluation": "longbench", "model": "tiny"}


def needs(package):
    return unittest.skipUnless(importlib.util.find_spec(package), f"needs {package}")


def row(task, sample, setting, budget, output, expected, classes=()):
    return {"task": task, "question": "strict", "sample": sample, "setting": setting, "token_budget": budget,
            "score": None, "output": output, "expected": expected, "all_classes": list(classes)}


class MetricsTest(unittest.TestCase):

    def score(self, task, answer, *expected, classes=()):
        return longbench.score(task, answer, expected, classes)

    def test_all_tasks_have_a_metric(self):
        self.assertEqual(len(longbench.METRICS), 21)
        self.assertLessEqual(longbench.FIRST_LINE, set(longbench.METRICS))

    def test_f1_of_words(self):
        # Words [cat, sat] and [cat, sat, down]: precision 1, recall 2/3.
        self.assertAlmostEqual(self.score("hotpotqa", "The cat sat.", "a cat, sat down"), 0.8)
        self.assertEqual(self.score("qasper", "Unanswerable", "unanswerable"), 1)
        self.assertEqual(self.score("qasper", "", "unanswerable"), 0)
        # A word said three times counts as often as it is expected.
        self.assertAlmostEqual(self.score("musique", "rome rome rome", "Rome"), 0.5)
        self.assertEqual(self.score("narrativeqa", "in Paris", "London", "in Paris"), 1)

    def test_first_lines_of_few_shot_tasks(self):
        self.assertEqual(self.score("triviaqa", "\nParis\nQuestion: more", "Paris"), 1)
        self.assertLess(self.score("hotpotqa", "\nParis\nQuestion: more", "Paris"), 1)

    def test_classes(self):
        classes = ["Date", "Location", "Other location", "Human"]
        self.assertEqual(self.score("trec", " Location", "Location", classes=classes), 1)
        self.assertEqual(self.score("trec", "Location or Date", "Location", classes=classes), 0.5)
        self.assertEqual(self.score("trec", "Human", "Location", classes=classes), 0)
        self.assertEqual(self.score("lsht", "nothing", "Location", classes=classes), 0)
        # "location" is a part of the expected name, and not another class.
        classes = ["location", "Other location"]
        self.assertEqual(self.score("trec", "Other location", "Other location", classes=classes), 1)
        # The entry behind one that is removed is passed over, as the benchmark does.
        classes = ["Other", "location", "Other location"]
        self.assertEqual(self.score("trec", "Other location", "Other location", classes=classes), 0.5)

    def test_numbers(self):
        self.assertEqual(self.score("passage_count", "17", "17"), 1)
        self.assertEqual(self.score("passage_count", "17 of 30, no, 17 or 4", "17"), 0.5)
        self.assertEqual(self.score("passage_count", "many", "17"), 0)
        self.assertEqual(self.score("passage_retrieval_en", "Paragraph 3", "Paragraph 3"), 1)
        self.assertEqual(self.score("passage_retrieval_en", "Paragraph 30", "Paragraph 3"), 0)
        self.assertEqual(self.score("passage_retrieval_zh", "段落3或段落4", "段落3"), 0.5)

    @needs("rouge")
    def test_rouge_l(self):
        self.assertAlmostEqual(self.score("gov_report", "the cat sat", "the cat lay"), 2 / 3, places=6)
        self.assertAlmostEqual(self.score("multi_news", "a b c d", "a b c d"), 1, places=6)
        self.assertEqual(self.score("qmsum", "", "something"), 0)
        self.assertAlmostEqual(self.score("samsum", "they meet\nDialogue:", "they meet"), 1, places=6)

    @needs("jieba")
    def test_chinese_words(self):
        self.assertEqual(self.score("multifieldqa_zh", "首都是北京。", "北京是首都"), 1)
        self.assertEqual(self.score("multifieldqa_zh", "上海", "北京"), 0)

    @needs("jieba")
    @needs("rouge")
    def test_chinese_rouge_l(self):
        # 北京 是 首都 and 首都 是 北京: one word in a row of three.
        self.assertAlmostEqual(self.score("vcsum", "首都是北京", "北京是首都"), 1 / 3, places=6)
        self.assertAlmostEqual(self.score("dureader", "北京", "北京"), 1, places=6)

    @needs("rapidfuzz")
    def test_code(self):
        self.assertEqual(self.score("lcc", "```python\n# a comment\nreturn x", "return x"), 1)
        # "return y" takes one substitution, which counts as two edits of 16 letters.
        self.assertEqual(self.score("repobench-p", "return y", "return x"), 0.88)
        self.assertEqual(self.score("lcc", "# only this", "return x"), 0)


class RowsTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "rows.jsonl"

    def write(self, rows, end=""):
        lines = [json.dumps(line, ensure_ascii=False) + "\n" for line in [FACTS, *rows]]
        self.path.write_text("".join(lines) + end, encoding="utf-8")

    def run_script(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT, self.path, *arguments], capture_output=True, text=True)

    def test_table_of_settings_and_tasks(self):
        self.write([row("qasper", "qasper/0/0", "dense", 0, "yes", ["yes"]),
                    row("qasper", "qasper/0/1", "dense", 0, "no", ["yes"]),
                    row("qasper", "qasper/0/0", "sketch", 512, "no", ["yes"]),
                    row("passage_count", "passage_count/0/0", "dense", 0, "4", ["4"])],
                   end='{"task": "cut o')
        out = self.path.with_suffix(".json")
        done = self.run_script("--json", str(out))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.splitlines(), [
            "| setting | qasper | passage_count | average | samples |",
            "|---|--:|--:|--:|--:|",
            "| dense strict | 50.00 | 100.00 | 75.00 | 3 |",
            "| sketch strict 512 | 0.00 | - | - | 1 |"])
        scores = json.loads(out.read_text(encoding="utf-8"))
        self.assertEqual(scores["dense strict"]["qasper"], {"score": 50.0, "samples": 2})

    def test_other_files_are_refused(self):
        self.write([row("vt", "vt/4096/0", "dense", 0, "x", ["y"])])
        self.assertIn("no LongBench tasks: vt", self.run_script().stderr)
        self.write([])
        self.assertIn("has no rows", self.run_script().stderr)


if __name__ == "__main__":
    unittest.main()

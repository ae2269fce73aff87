"""tools/eval/plot.py: tables with intervals and verdicts, put between a page's markers; images when matplotlib is there."""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "tools" / "eval" / "plot.py"
FACTS = {"cpu": "A CPU", "threads": 2, "kernel_target": "avx2", "dtype": "bfloat16", "version": "1.2.3", "date": "2030-01-02",
         "commit": "abc1234", "model": "Small-1B.Q4_1.gguf", "context_len": 4096, "block_size": 128, "sink_tokens": 32, "local_window": 128}
PAGE = "Before\n<!-- measured: kl -->\nold\n<!-- end -->\nBetween\n<!-- measured: ruler -->\n<!-- end -->\nAfter\n"


def kl_row(setting, kl, budget=512, interval=1, **changes):
    return {"setting": setting, "token_budget": budget, "predictor": None, "interval": interval, "candidates": 0, "scan_fraction": 1.0,
            "neighbours": 0, "mean_kl": kl, "kl_low": kl / 2, "kl_high": 2 * kl, "over_exact": kl / 0.01, "over_exact_low": kl / 0.02,
            "over_exact_high": kl / 0.005, "vs_exact": "worse", "same_top": 0.97, "same_top_low": 0.96, "same_top_high": 0.98,
            "perplexity_ratio": 1.01, "perplexity_low": 0.99, "perplexity_high": 1.02, "vs_dense": "tie", "attended_tokens": 512.0,
            "mass_recall": 0.875, "overlap": 0.75, "read_bytes": 18432000.0, "moved_bytes": 1e6 / interval, "hit_rate": 0.9,
            "documents": 40, **changes}


def task_row(setting, score, budget=512, **changes):
    return {"task": "vt", "setting": setting, "token_budget": budget, "predictor": None, "interval": 1,
            "candidates": 0, "score": score, "score_low": score - 0.1, "score_high": score + 0.1, "minus_dense": score - 0.9,
            "minus_dense_low": score - 1.0, "minus_dense_high": score - 0.8, "vs_dense": "tie", "vs_exact": None,
            "attended_tokens": 512.0, "mass_recall": None, "read_bytes": 18432000.0, "moved_bytes": 1e6, "samples": 50,
            **changes}


class PlotTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        heads = [{"setting": "exact", "token_budget": 512, "count": [0, 0, 5, 5], "mass": [None, None, 0.9, 0.8],
                  "overlap": [None, None, 1.0, 1.0]}]
        self.write("kl.json", {**FACTS, "evaluation": "kl", "scored_tokens": 128, "intervals": "95 %", "num_layers": 2, "num_kv_heads": 2,
                               "heads": heads, "rows": [
                                   kl_row("quest", 0.11), kl_row("exact", 0.01, vs_exact="tie"), kl_row("exact", 0.02, 256),
                                   kl_row("sketch", 0.012), kl_row("sketch:interval=4,candidates=1/8", 0.05, interval=4),
                                   kl_row("tokenbutler", 0.03, predictor="ours.safetensors@00ff"),
                                   kl_row("xkv", 0.2, mass_recall=None, overlap=None, moved_bytes=None)]})
        self.tasks = {**FACTS, "evaluation": "ruler", "question": "strict", "seed": 1, "intervals": "95 %", "min_dense_score": 0.5,
                      "too_hard_for_the_model": ["cwe"], "rows": [
                          task_row("dense", 0.9, 0, minus_dense=0.0, minus_dense_low=0.0, minus_dense_high=0.0),
                          task_row("sketch", 0.85), task_row("sketch", 0.5, 256, vs_dense="worse"),
                          task_row("random", 0.1, minus_dense=None, vs_dense=None)]}
        self.write("ruler.json", self.tasks)

    def write(self, name, value):
        (self.folder / name).write_text(json.dumps(value), encoding="utf-8")

    def run_script(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT, *arguments], cwd=self.folder, capture_output=True, text=True)

    def test_rows_say_what_was_measured_and_how_sure_it_is(self):
        lines = self.run_script("--kl", "kl.json").stdout.split("\n")
        self.assertIn("**small-1b, 4K** (2030-01-02, A CPU, 2 threads, avx2, bfloat16, version 1.2.3, commit abc1234): the last 128 of "
                      "4096 tokens of each text, sink 32, local window 128. Intervals: 95 %.", lines)
        self.assertIn("| 512 | sketch | 0.0120 | 0.0060 to 0.0240 | 1.20 (0.60 to 2.40) | worse | 97.0 % | 1.0100 | tie | 0.875 | 0.750 "
                      "| 512 | 18432 | 1000 | 40 |", lines)
        self.assertIn("| 512 | xkv | 0.2000 | 0.1000 to 0.4000 | 20.00 (10.00 to 40.00) | worse | 97.0 % | 1.0100 | tie | - | - | 512 "
                      "| 18432 | - | 40 |", lines)
        self.assertTrue(any(line.startswith("| 512 | tokenbutler (ours.safetensors) | 0.0300 ") for line in lines))
        self.assertTrue(any("does not show" in line for line in lines))
        rows = [line.split(" | ")[:2] for line in lines if line.startswith(("| 512", "| 256"))]
        self.assertEqual(rows[:3], [["| 256", "exact"], ["| 512", "exact"], ["| 512", "sketch"]], "by budget, then by divergence")

    def test_results_of_one_model_and_context_are_told_apart_by_their_title(self):
        result = json.loads((self.folder / "kl.json").read_text(encoding="utf-8"))
        self.write("title.json", {**result, "title": "intervals"})
        lines = self.run_script("--kl", "kl.json", "title.json").stdout.split("\n")
        self.assertEqual([line.split(" (")[0] for line in lines if line.startswith("**")], ["**small-1b, 4K**", "**small-1b, 4K, intervals**"])

    def test_tasks_are_compared_with_dense(self):
        output = self.run_script("--tasks", "ruler.json").stdout
        lines = output.split("\n")
        self.assertIn("| vt | 512 | sketch | 85.0 (75.0 to 95.0) | -5.0 (-15.0 to 5.0) | tie | - | 512 | 18432 | 1000 | 50 |", lines)
        self.assertIn("| vt | - | dense | 90.0 (80.0 to 100.0) | +0.0 (0.0 to 0.0) | tie | - | 512 | 18432 | 1000 | 50 |", lines)
        self.assertIn("| vt | 512 | random | 10.0 (0.0 to 20.0) | - | - | - | 512 | 18432 | 1000 | 50 |", lines)
        self.assertIn("Dense attention scores less than 50 in cwe: left out of averages.", output)

    def test_of_several_tasks_the_average_is_shown_whole(self):
        self.tasks["rows"] = [task_row(setting, score, task=task) for task, score in (("vt", 0.8), ("cwe", 0.4), ("average", 0.6))
                              for setting in ("dense", "sketch")]
        self.write("ruler.json", self.tasks)
        lines = self.run_script("--tasks", "ruler.json").stdout.split("\n")
        self.assertEqual([line.split(" | ")[0] for line in lines if line.startswith("| average |")], ["| average"] * 2)
        self.assertIn("| budget | setting | vt | cwe | average |", lines)
        self.assertIn("| 512 | sketch | 80.0 | 40.0 | 60.0 |", lines)

    def test_what_a_script_scores_is_left_open_and_forced_answers_have_columns(self):
        self.tasks["rows"] = [{**task_row("sketch", 0.85), "score": None, "score_low": None, "score_high": None, "minus_dense": None, "vs_dense": None},
                              task_row("exact", 0.9, vs_exact="better", token_score=0.95, generated_score=0.8, coverage_mean=0.5, coverage_any=1.0,
                                       coverage_mass=None)]
        self.write("ruler.json", self.tasks)
        lines = self.run_script("--tasks", "ruler.json").stdout.split("\n")
        self.assertIn("| vt | 512 | sketch | - | - | - | - | - | - | - | - | - | 512 | 18432 | 1000 | 50 |", lines)
        self.assertIn("| vt | 512 | exact | 90.0 (80.0 to 100.0) | +0.0 (-10.0 to 10.0) | tie | better | 95.0 | 80.0 | 50.0 | 100.0 | - | 512 | 18432 "
                      "| 1000 | 50 |", lines)

    def test_tables_go_between_the_markers(self):
        (self.folder / "page.md").write_text(PAGE, encoding="utf-8")
        for _ in range(2):  # the second time replaces the first
            done = self.run_script("--kl", "kl.json", "--tasks", "ruler.json", "--page", "page.md")
            self.assertEqual(done.returncode, 0, done.stderr)
        page = (self.folder / "page.md").read_text(encoding="utf-8")
        self.assertNotIn("\nold\n", page)
        self.assertEqual(page.count("**small-1b, 4K"), 2)
        self.assertEqual([line for line in page.split("\n") if line in ("Before", "Between", "After")], ["Before", "Between", "After"])
        self.assertLess(page.index("| 512 | sketch |"), page.index("Between"))
        self.assertGreater(page.index("| vt |"), page.index("Between"))

    def test_tables_of_other_results_stay_on_the_page(self):
        result = json.loads((self.folder / "kl.json").read_text(encoding="utf-8"))
        self.write("title.json", {**result, "title": "intervals"})
        self.write("papers.json", {**self.tasks, "question": "papers"})
        (self.folder / "page.md").write_text(PAGE, encoding="utf-8")
        self.run_script("--kl", "kl.json", "title.json", "--tasks", "ruler.json", "papers.json", "--page", "page.md")
        before = (self.folder / "page.md").read_text(encoding="utf-8")
        self.write("kl.json", {**result, "commit": "fffffff"})
        done = self.run_script("--kl", "kl.json", "--page", "page.md")
        self.assertEqual(done.returncode, 0, done.stderr)
        after = (self.folder / "page.md").read_text(encoding="utf-8")
        self.assertEqual(after, before.replace("abc1234", "fffffff", 1), "the first table's commit, and nothing else")
        headings = [line.split(" (")[0] for line in after.split("\n") if line.startswith("**")]
        self.assertEqual(headings, ["**small-1b, 4K**", "**small-1b, 4K, intervals**", "**small-1b, 4K, strict**", "**small-1b, 4K, papers**"])

    def test_what_is_no_result_ends_with_a_sentence(self):
        for text in ("{", "", "[]", "{}", '{"evaluation": "kl"}', '{"evaluation": "kl", "rows": [{}]}', "\xff"):
            (self.folder / "bad.json").write_bytes(text.encode("latin-1"))
            done = self.run_script("--kl", "bad.json")
            self.assertEqual(done.returncode, 1, text)
            self.assertIn("plot.py: bad.json is no", done.stderr)
            self.assertNotIn("Traceback", done.stderr, text)
        for missing in (("--kl", "missing.json"), ("--kl", "kl.json", "--page", "missing.md")):
            done = self.run_script(*missing)
            self.assertEqual(done.returncode, 1)
            self.assertIn("missing", done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def test_a_page_without_markers_is_refused(self):
        (self.folder / "page.md").write_text("nothing", encoding="utf-8")
        done = self.run_script("--kl", "kl.json", "--page", "page.md")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("measured: kl", done.stderr)
        self.assertNotEqual(self.run_script().returncode, 0, "no results")

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "needs matplotlib: pip install -r bench/requirements.txt")
    def test_images_are_drawn(self):
        (self.folder / "page.md").write_text(PAGE, encoding="utf-8")
        result = json.loads((self.folder / "kl.json").read_text(encoding="utf-8"))
        self.write("title.json", {**result, "title": "intervals"})
        done = self.run_script("--kl", "kl.json", "title.json", "--tasks", "ruler.json", "--images", "docs/images", "--page", "page.md")
        self.assertEqual(done.returncode, 0, done.stderr)
        page = (self.folder / "page.md").read_text(encoding="utf-8")
        for name in ("kl-small-1b-4k", "kl-small-1b-4k-heads", "kl-small-1b-4k-intervals", "ruler-small-1b-4k-strict-vt"):
            self.assertIn(f"](docs/images/{name}.png)", page)
            self.assertTrue((self.folder / "docs" / "images" / f"{name}.png").read_bytes().startswith(b"\x89PNG"))
        self.assertNotIn("intervals-heads", page)


if __name__ == "__main__":
    unittest.main()

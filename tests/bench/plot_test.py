"""bench/plot.py: tables joined by setting, put between a page's markers; images when matplotlib is there."""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "plot.py"
FACTS = {"cpu": "A CPU", "threads": 2, "kernel_target": "avx2", "dtype": "bfloat16", "date": "2030-01-02", "commit": "abc1234"}
PAGE = "Before\n<!-- measured: decode -->\nold\n<!-- end -->\nBetween\n<!-- measured: quality -->\n<!-- end -->\nAfter\n"


def decode_row(depth, setting, ms):
    return {"depth": depth, "setting": setting, "token_budget": 4096, "interval": 1, "candidates": 0, "scored_share": 0.5,
            "ms_per_token": ms, "p99_step_ms": 2 * ms, "dense_ms": 100.0, "speedup": 100 / ms, "floor_ms": ms / 2,
            "over_floor": 2.0, "attended_tokens": 4096.0, "read_gb_s": 40.0, "gather_gb_s": 20.0}


def quality_row(setting, kl, mass_recall=0.875):
    return {"setting": setting, "token_budget": 768, "mean_kl": kl, "kl_low": kl / 2, "kl_high": 2 * kl, "over_exact": 1.5,
            "same_top": 0.97, "perplexity_ratio": 1.01, "attended_tokens": 768.0, "mass_recall":  mass_recall, "documents": 10}


class PlotTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        rows = [decode_row(4096, "dense", 10.0), decode_row(262144, "dense", 100.0), decode_row(262144, "fast", 8.0),
                decode_row(262144, "h2o", 9.0), decode_row(1000, "fast", 7.0)]
        self.write("small.json", {**FACTS, "model": "Small-1B.Q4_1.gguf", "rope_scaling": "none", "rows": rows})
        self.write("other.json", {**FACTS, "model": "Other.gguf", "rope_scaling": "yarn x 8", "rows": rows})
        self.write("quality.json", {**FACTS, "model": "Other.gguf", "context_len": 12288, "scored_tokens": 96, "sink_tokens": 32,
                                    "local_window": 128, "rows": [quality_row("h2o", 0.2, None), quality_row("fast", 0.0123)]})

    def write(self, name, value):
        (self.folder / name).write_text(json.dumps(value), encoding="utf-8")

    def run_script(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT, "--decode", "small.json", "other.json", "--quality", "quality.json",
                               *arguments], cwd=self.folder, capture_output=True, text=True)

    def test_tables_go_between_the_markers(self):
        (self.folder / "page.md").write_text(PAGE, encoding="utf-8")
        for _ in range(2):  # the second time replaces the first
            done = self.run_script("--page", "page.md")
            self.assertEqual(done.returncode, 0, done.stderr)
        page = (self.folder / "page.md").read_text(encoding="utf-8")
        self.assertNotIn("old", page)
        self.assertEqual(page.count("**small-1b** (2030-01-02, A CPU, 2 threads, avx2, bfloat16, commit abc1234)"), 1)
        self.assertEqual([line for line in page.split("\n") if line in ("Before", "Between", "After")],
                         ["Before", "Between", "After"])

    def test_every_row_of_speed_carries_its_divergence(self):
        lines = self.run_script().stdout.split("\n")
        small = lines[:next(i for i, line in enumerate(lines) if line.startswith("**other"))]
        self.assertIn("| 256K | fast | 8.00 | 16.0 | 12.50 | 4.00 | 2.00 | 4096 | 0.5 | 0.875* | 0.0123* |", small)
        self.assertIn("| 256K | fast | 8.00 | 16.0 | 12.50 | 4.00 | 2.00 | 4096 | 0.5 | 0.875 | 0.0123 |", lines)
        self.assertIn("| 4K | dense | 10.0 | 20.0 | 10.00 | 5.00 | 2.00 | 4096 | 0.5 | - | 0 |", lines)
        self.assertFalse(any(line.startswith("| 1000") for line in lines), "a depth that was not asked for")

    def sweep_rows(self):
        rows = [decode_row(depth, setting, ms) for depth, setting, ms in
                ((1024, "dense", 3.0), (2048, "dense", 4.0), (1024, "fast", 2.0), (2048, "fast", 2.5), (2048, "h2o", 9.0))]
        for interval in (4, 2):
            rows.append({**decode_row(2048, f"sketch:interval={interval},candidates=2x", 6.0 / interval), "interval": interval})
        rows.append({**decode_row(2048, "fast", 5.0), "token_budget": 8192})
        for multiple in (1, 8):
            rows.append({**decode_row(2048, f"sketch:interval=4,candidates={multiple}x", multiple), "candidates": multiple * 4096})
        sweeps = [("depth", ["dense", "fast"], [4096], [1024, 2048]), ("policy", ["dense", "fast", "h2o"], [4096], [2048]),
                  ("interval", ["sketch:interval=2,candidates=2x", "sketch:interval=4,candidates=2x"], [4096], [2048]),
                  ("token_budget", ["fast"], [4096, 8192], [2048]),
                  ("candidates", ["sketch:interval=4,candidates=1x", "sketch:interval=4,candidates=8x"], [4096], [2048])]
        return {"rows": rows, "sweeps": [dict(zip(("name", "settings", "token_budgets", "depths"), sweep)) for sweep in sweeps]}

    def test_sweeps_have_tables_of_their_own(self):
        self.write("small.json", {**FACTS, "model": "Small-1B.Q4_1.gguf", "rope_scaling": "none", **self.sweep_rows()})
        lines = self.run_script("--depths", "1024", "2048").stdout.split("\n")
        start = lines.index("**small-1b**, one thing varied at a time.")
        curves, swept = lines[:start], lines[start:]
        self.assertFalse(any("interval=" in line or "| 8192" in line for line in curves), "only curves against the context")
        self.assertIn("| 2K | fast | 2.50 | 5.00 | 40.00 | 1.25 | 2.00 | 4096 | 0.5 | 0.875* | 0.0123* |", curves)
        expected = ["| prediction interval | 2 | sketch:interval=2,candidates=2x | 2K | 3.00 |",
                    "| prediction interval | 4 | sketch:interval=4,candidates=2x | 2K | 1.50 |",
                    "| token budget | 4096 | fast | 2K | 2.50 |", "| token budget | 8192 | fast | 2K | 5.00 |",
                    "| candidates, budgets | 1 | sketch:interval=4,candidates=1x | 2K | 1.00 |",
                    "| candidates, budgets | 8 | sketch:interval=4,candidates=8x | 2K | 8.00 |"]
        found = [line for line in swept if line.startswith(("| prediction", "| token budget", "| candidates"))]
        self.assertEqual(len(found), len(expected))
        for line, beginning in zip(found, expected):
            self.assertTrue(line.startswith(beginning), line)

    def test_quality_is_sorted(self):
        output = self.run_script().stdout
        self.assertLess(output.index("| fast | 768 | 0.0123 | 0.0062 to 0.0246 | 1.50 | 97.0 % | 1.0100 | 0.875 | 10 |"),
                        output.index("| h2o | 768"))

    def test_link_and_peers_have_tables_of_their_own(self):
        self.write("link.json", {**FACTS, "model": "Other.gguf", "context_len": 12288, "decoded_tokens": 96, "selections_kept": 3, "modelled": "a step of 8 ms",
                                 "rows": [{"setting": "fast", "misses": "deferred", "token_budget": 768, "hit_rate": 0.975,
                                           "sent_ahead": 0.5, "kb_per_token": 123.4, "modelled_device_gb": 1.25, "modelled_mb": 8.0,
                                           "modelled_link_ms": 0.32, "modelled_stall_ms": 0.64, "modelled_stall_share": 0.08,
                                           "mean_kl": 0.05, "documents": 3}]})
        self.write("peers.json", {"date": "2030-01-02", "cpu": "A CPU", "threads": 2, "model": "Other.gguf", "llama_cpp_python": "1.2", "token_budget": 4096,
                                  "llama_file_bytes": 5e8, "ours_weight_bytes": 1e9, "ours_dtype": "bfloat16",
                                  "rows": [{"depth": 4096, "llama_ms": 20.0, "llama": "prefilled", "fast_ms": 10.0, "llama_over_fast": 2.0},
                                           {"depth": 262144, "llama_ms": 900.0, "llama": "filled", "fast_ms": 30.0,
                                            "llama_over_fast": 30.0}]})
        output = self.run_script("--link", "link.json", "--peers", "peers.json").stdout
        self.assertIn("*Modelled*: a step of 8 ms.", output)
        self.assertIn("| fast | deferred | 768 | 97.5 % | 50 % | 123 | 1.2 | 8.0 | 0.32 | 0.64 | 8.0 % | 0.0500 |", output)
        self.assertIn("**other** (2030-01-02, A CPU, 2 threads), llama-cpp-python 1.2, ", output)
        self.assertIn("| 4K | 20.0 | 10.0 | 2.0 |", output)
        self.assertIn("| 256K | 900.0 (filled) | 30.0 | 30.0 |", output)

    def test_a_page_without_markers_is_refused(self):
        (self.folder / "page.md").write_text("nothing", encoding="utf-8")
        done = self.run_script("--page", "page.md")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("measured: decode", done.stderr)
        self.assertEqual((self.folder / "page.md").read_text(encoding="utf-8"), "nothing")

    def test_labels_of_points_close_together_do_not_overlap(self):
        spec = importlib.util.spec_from_file_location("plot", SCRIPT)
        plot = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(plot)
        points = [(100, 50, "sketch"), (101, 50, "quality"), (100, 51, "fast"), (300, 50, "exact"), (131, 52, "pca")]
        offsets = plot.label_offsets(points)
        self.assertEqual(offsets[0], (5, 4))  # the first from the left keeps its usual place
        self.assertEqual(offsets[3], (5, 4))
        boxes = [(x + dx, y + dy, x + dx + 5 * len(text), y + dy + 9) for (x, y, text), (dx, dy) in zip(points, offsets)]
        for i, a in enumerate(boxes):
            for b in boxes[:i]:
                self.assertTrue(a[0] >= b[2] or b[0] >= a[2] or a[1] >= b[3] or b[1] >= a[3], (a, b))

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "needs matplotlib: pip install -r bench/requirements.txt")
    def test_images_are_drawn(self):
        (self.folder / "page.md").write_text(PAGE, encoding="utf-8")
        self.write("small.json", {**FACTS, "model": "Small-1B.Q4_1.gguf", "rope_scaling": "none", **self.sweep_rows()})
        done = self.run_script("--images", "docs/images", "--page", "page.md")
        self.assertEqual(done.returncode, 0, done.stderr)
        page = (self.folder / "page.md").read_text(encoding="utf-8")
        self.assertIn("](docs/images/decode_vs_context.png)", page)
        self.assertIn("](docs/images/frontier.png)", page)
        for name in ("decode_vs_context", "frontier", "sweeps"):
            self.assertIn(f"](docs/images/{name}.png)", page)
            self.assertTrue((self.folder / "docs" / "images" / f"{name}.png").read_bytes().startswith(b"\x89PNG"))


if __name__ == "__main__":
    unittest.main()

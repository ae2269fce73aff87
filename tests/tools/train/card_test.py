"""tools/train/card.py and plot.py: a card from a file, a log and results; curves where matplotlib is there."""

import importlib.util
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[3] / "tools" / "train"
METADATA = {"format": "tokenbutler-predictor", "kind": "lookahead", "projected_dim": "16", "layers_per_predictor": "4",
            "late_projections": "true", "lookahead_point": "input", "correction_rank": "2", "pooling": "max_lse",
            "architecture": "llama", "model_sha256": "ab" * 32, "training.model": "Small.gguf", "training.data": "7 documents, of train",
            "training.packages": "a-doc 1, b-doc 2", "training.num_steps": "100", "training.learning_rate": "0.0010000000474974513",
            "training.steps_done": "50", "training.seconds": "5400", "training.command": "tokenbutler-train Small.gguf --text train"}
LOG = [{"type": "run", "options": {}},
       {"type": "validation", "step": 0, "seconds": 1, "loss": 1.5, "layers": [0, 1, 2], "early": [None, 1.0, 2.0], "late": [0.5, 0.5, 0.5]},
       {"type": "step", "step": 1, "seconds": 2, "loss": 1.4, "learning_rate": 1e-3, "gradient_norm": 0.3},
       {"type": "validation", "step": 50, "seconds": 60, "loss": 0.5, "layers": [0, 1, 2], "early": [None, 0.25, 0.5], "late": [0.1, 0.2, 0.3]},
       {"type": "validation", "step": 100, "seconds": 99, "loss": 0.75, "layers": [0, 1, 2], "early": [None, 0.5, 0.5], "late": [0.2, 0.2, 0.3]}]
ROW = {"token_budget": 512, "mean_kl": 0.0123, "kl_low": 0.01, "kl_high": 0.02, "over_exact": 2.05, "documents": 40}


class CardTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LOG) + '{"type": "st')
        self.write_predictor(METADATA)

    def write_predictor(self, metadata):
        header = json.dumps({"__metadata__": metadata, "key_projection": {"dtype": "BF16", "shape": [3, 1, 8, 16], "data_offsets": [0, 768]}})
        (self.folder / "p.safetensors").write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(768))

    def run_tool(self, name, *arguments):
        return subprocess.run([sys.executable, TOOLS / name, *arguments], capture_output=True, text=True, check=False)

    def card(self, *more):
        result = self.run_tool("card.py", self.folder / "p.safetensors", "--log", self.folder / "log.jsonl", "--output",
                               self.folder / "card.md", *more)
        self.assertEqual(result.returncode, 0, result.stderr)
        return (self.folder / "card.md").read_text()

    def test_the_card_says_what_how_and_how_well(self):
        text = self.card("--note", "A note.")
        for words in ("# Predictor for Small.gguf", "kind `lookahead`, 384 parameters", "16 dimensions, with late projections",
                      "correction of rank 2", "`" + "ab" * 32 + "`", "7 documents, of train.", "packages a-doc 1, b-doc 2.",
                      "steps 100, learning rate 0.001.", "that of step 50; it took 1.50 hours", "tokenbutler-train Small.gguf --text train",
                      "| predicted queries | 1.5000 | 0.3750 | 2: 0.5000 |", "| own queries | 0.5000 | 0.2000 | 2: 0.3000 |", "A note."):
            self.assertIn(words, text)

    def test_damaged_files_end_with_a_sentence(self):
        log, output = self.folder / "log.jsonl", self.folder / "out"
        for data in (b"", b"GGUF" * 9, struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 2) + b"[]"):
            (self.folder / "bad").write_bytes(data)
            done = self.run_tool("card.py", self.folder / "bad", "--log", log, "--output", output)
            self.assertEqual((done.returncode, done.stderr.strip()), (1, f"card.py: {self.folder / 'bad'} is no predictor file"))
        for text in ("", "[]", "{}", '{"evaluation": "kl", "rows": [{}]}', '{"evaluation": "ruler", "rows": []}'):
            (self.folder / "bad").write_text(text)
            done = self.run_tool("card.py", self.folder / "p.safetensors", "--log", log, "--output", output, "--quality", self.folder / "bad")
            self.assertEqual(done.returncode, 1, text)
            self.assertRegex(done.stderr, r"^card\.py: \S+bad is no result of tokenbutler-eval kl", text)
        done = self.run_tool("card.py", self.folder / "missing", "--log", log, "--output", output)
        self.assertRegex(done.stderr, r"^card\.py: .*missing")
        for text in ("5\n", "[]\n", "{}\n"):
            (self.folder / "bad").write_text(text)
            done = self.run_tool("plot.py", self.folder / "bad", "--output", output)
            self.assertEqual(done.returncode, 1, text)
            self.assertRegex(done.stderr, r"^\S+bad is no log of tokenbutler-train", text)

    def test_the_card_takes_rows_of_the_policy_and_of_exact(self):
        rows = [dict(ROW, setting="tokenbutler"), dict(ROW, setting="exact", over_exact=None), dict(ROW, setting="quest")]
        (self.folder / "kl.json").write_text(json.dumps({"evaluation": "kl", "model": "Small.gguf", "context_len": 4096, "rows": rows}))
        text = self.card("--quality", str(self.folder / "kl.json"))
        self.assertIn("| Small.gguf | 4096 | tokenbutler | 512 | 0.0123 | 0.0100 to 0.0200 | 2.05 x | 40 |", text)
        self.assertIn("| exact | 512 |", text)
        self.assertNotIn("quest", text)

    def test_a_file_for_low_bit_keys_says_so(self):
        self.write_predictor(dict(METADATA, projected_dim="0", late_projections="false"))
        self.assertIn("no projections: for low-bit keys", self.card())

    def test_other_files_are_refused(self):
        self.write_predictor(dict(METADATA, format="else"))
        result = self.run_tool("card.py", self.folder / "p.safetensors", "--log", self.folder / "log.jsonl", "--output", self.folder / "c.md")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("is no predictor file", result.stderr)

    def test_a_log_without_validation_is_refused(self):
        (self.folder / "log.jsonl").write_text(json.dumps(LOG[0]) + "\n")
        result = self.run_tool("plot.py", self.folder / "log.jsonl", "--output", self.folder / "x.png")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("holds no validation yet", result.stderr)

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "no matplotlib")
    def test_curves_are_an_image(self):
        result = self.run_tool("plot.py", self.folder / "log.jsonl", "--output", self.folder / "x.png")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue((self.folder / "x.png").read_bytes().startswith(b"\x89PNG"))


if __name__ == "__main__":
    unittest.main()

"""The pages against the tree: links lead somewhere, every flag and every metric is described."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OPERATIONS = (ROOT / "docs/operations.md").read_text()
# What is named before it exists, with the page that says so.
PLANNED = {"CONTRIBUTING.md: engine/kernels/cuda/"}
TOP_FOLDERS = "assets base bench cmake deploy docs engine offload proto scripts server tests tools".split()


class DocsTest(unittest.TestCase):
    def test_links_lead_somewhere(self):
        for page in PAGES:
            for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
                if "://" not in target:
                    self.assertTrue((page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}")

    def test_paths_in_code_font_exist(self):
        for page in PAGES:
            name = page.relative_to(ROOT).as_posix()
            for path in re.findall(r"`([\w.-]+/[\w./-]*)`", page.read_text()):
                if path.split("/")[0] not in TOP_FOLDERS or f"{name}: {path}" in PLANNED:
                    continue
                # A name without suffix stands for the .h and the .cc.
                found = [p for p in (path, path + ".h", path + ".cc") if (ROOT / p).exists()]
                self.assertTrue(found, f"{name} names {path}")

    def test_every_flag_is_described(self):
        source = "".join((ROOT / "server" / name).read_text() for name in ("server_config.cc", "attention_flags.cc"))
        flags = set(re.findall(r'"(--[a-z][a-z-]+)"', source))
        flags -= {"--help", "--version"}
        self.assertGreater(len(flags), 25)
        described = set(re.findall(r"`(--[a-z-]+)`", OPERATIONS))
        self.assertEqual(flags - described, set())
        self.assertEqual({f for f in described if f not in flags} - {"--help", "--server", "--timeout", "--setting"}, set())

    def test_every_metric_is_described(self):
        source = (ROOT / "base/metrics.cc").read_text()
        metrics = set(re.findall(r'"([a-z0-9_]+(?:_total|_seconds|_bytes|_info|_running|_waiting|_preparing|_streams|_ratio|_tokens))"', source))
        self.assertGreater(len(metrics), 20)
        described = set(re.findall(r"`([a-z0-9_]+)(?:\{[a-z,]+\})?`", OPERATIONS))
        self.assertEqual(metrics - described, set())


if __name__ == "__main__":
    unittest.main()

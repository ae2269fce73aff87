"""scripts/lib/corpus.py: plain text of every form, one form of each package, the same files from the same packages."""

import contextlib
import gzip
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/lib"))
import corpus  # noqa: E402
import corpus_text  # noqa: E402


def prose(number, sentences=60):
    return "\n\n".join(f"Sentence {number}-{i} of the manual is about the parts that it has, and how a reader is to use "
                       f"them, {number}-{i} times over, in the order of the chapters and of the things that they describe, "
                       "to the very end of the book." for i in range(sentences))


class TextTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def text(self, name, source):
        path = self.folder / name
        path.write_bytes(source if isinstance(source, bytes) else source.encode())
        return corpus_text.text_of(path, corpus_text.kind_of(name))

    def test_html_keeps_the_words_and_the_shape_of_code(self):
        text = self.text("a.html", "<html><head><title>no</title></head><body><div class='navbar'><a>no</a></div><h1>One&amp;two"
                         "<a class='headerlink' href='#x'>¶</a></h1><p>A  <b>bold</b>\nword.<p>B<ul><li>x<li>y</ul><pre>if a:\n    b\n"
                         "</pre><script>no()</script><table><tr><td>c</td><td>d</td></tr></table></body></html>")
        self.assertEqual(text, "One&two\n\nA bold word.\n\nB\n\n- x\n- y\n\nif a:\n    b\n\n  c  d\n")

    def test_html_in_other_languages_is_left_out(self):
        self.assertEqual(self.text("a.html", "<html lang='de'><body>Hallo</body></html>"), "\n")
        self.assertEqual(self.text("a.html", "<html lang='en-GB'><body>Hello</body></html>"), "Hello\n")

    def test_an_unclosed_head_does_not_swallow_the_page(self):
        self.assertEqual(self.text("a.html", "<html><head><body><nav><p>no</nav>Yes"), "Yes\n")

    def test_info_loses_its_nodes_and_menus(self):
        text = self.text("a.info", "Preamble\n\x1f\nFile: a.info,  Node: Top\n\n1 Top\n*****\n\nWords.\n\n* Menu:\n\n* One::  first\n"
                         "* Two::\n\n\x1f\nFile: a.info,  Node: One\n\nMore.\n\x1f\nTag Table:\nNode: Top\x7f12\n")
        self.assertEqual(text, "1 Top\n*****\n\nWords.\n\nMore.\n")

    def test_pod_loses_its_codes(self):
        text = self.text("a.pod.gz", gzip.compress(b"=head1 NAME\n\nB<bold I<both>> C<< a->b >> E<lt>x E<gt> L<this|there>X<index>\n\n"
                                                   b"=for html <b>no</b>\n\n=over 4\n\n=item first\n\n=back\n\n=cut\n"))
        self.assertEqual(text, "NAME\n\nbold both a->b <x > this\n\nfirst\n")

    def test_what_is_english_text(self):
        self.assertTrue(corpus_text.is_english_text(prose(1)))
        self.assertFalse(corpus_text.is_english_text("Too short, the text."))
        self.assertFalse(corpus_text.is_english_text("0123 4567 " * 100))
        self.assertFalse(corpus_text.is_english_text("Слова на другом языке, а не на этом. " * 20))
        self.assertFalse(corpus_text.is_english_text("zwanzig Worte einer anderen Sprache ohne Gemeinsamkeit " * 20))


class CorpusTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "list.txt").write_text("# comment\n[heldout]\nheld-doc\n\n[train]\ntrain-doc\nnames-doc share/*[a-z] # two\n")
        self.write("held-doc/usr/share/doc/held/manual.html", "<body><p>" + prose(1, 1500).replace("\n\n", "<p>") + "</body>")
        self.write("held-doc/usr/share/doc/held/changelog.txt", prose(9))
        self.write("train-doc/usr/share/doc/a/chapter2.txt", prose(2, 200))
        self.write("train-doc/usr/share/doc/a/chapter10.txt", prose(3, 1500))
        self.write("train-doc/usr/share/doc/a/de/chapter1.txt", prose(4))
        self.write("train-doc/usr/share/doc/a/chapter1.pod", prose(5))
        self.write("names-doc/share/sayings", prose(6, 100) + "\n\n" + prose(3, 1))
        self.write("names-doc/share/sayings.dat1", prose(7))

    def write(self, name, text):
        path = self.folder / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        package = name.split("/")[0]
        (self.folder / "packages" / f"{package}.version").write_text("1.0-1\n")

    def make(self, name):
        with contextlib.redirect_stdout(io.StringIO()):
            return self.make_aloud(name)

    def make_aloud(self, name):
        corpus.main(self.folder / "list.txt", self.folder / "packages", self.folder / name)
        return {path.relative_to(self.folder / name).as_posix(): path.read_text() for path in sorted((self.folder / name).rglob("*"))
                if path.is_file()}

    def test_the_same_packages_give_the_same_files(self):
        first = self.make("one")
        self.assertEqual(first, self.make("two"))
        self.assertEqual(first, self.make("one"))
        self.assertEqual(sorted(first), ["heldout/held-doc.txt", "manifest.json", "train/names-doc-01.txt", "train/train-doc-01.txt",
                                         "train/train-doc-02.txt"])
        manifest = json.loads(first["manifest.json"])["packages"]
        self.assertEqual([(entry["package"], entry["version"], entry["part"], len(entry["files"])) for entry in manifest],
                         [("held-doc", "1.0-1", "heldout", 1), ("train-doc", "1.0-1", "train", 2), ("names-doc", "1.0-1", "train", 1)])

    def test_chapters_in_order_of_one_form_each_paragraph_once(self):
        files = self.make("one")
        self.assertLess(len(files["heldout/held-doc.txt"]), corpus.HELDOUT_BYTES + 500)
        self.assertTrue(files["train/train-doc-01.txt"].startswith("Sentence 2-0 "))
        self.assertIn("Sentence 3-0 ", files["train/train-doc-01.txt"])
        self.assertNotIn("Sentence 4-", "".join(files.values()))
        self.assertNotIn("Sentence 5-", "".join(files.values()))
        self.assertNotIn("Sentence 7-", "".join(files.values()))
        self.assertNotIn("Sentence 9-", "".join(files.values()))
        self.assertEqual("".join(files.values()).count("Sentence 3-0 of"), 1)

    def test_too_little_text_names_the_package(self):
        self.write("held-doc/usr/share/doc/held/manual.html", "<body>" + prose(1, 3) + "</body>")
        with self.assertRaisesRegex(SystemExit, "too little text for a document: held-doc"):
            self.make("one")


if __name__ == "__main__":
    unittest.main()

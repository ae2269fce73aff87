#!/usr/bin/env python3
"""Turns unpacked Debian packages into the texts that predictors are trained and measured with.

Called by scripts/fetch-corpus:  corpus.py LIST PACKAGES FOLDER
LIST names the packages of each part (corpus_packages.txt). PACKAGES holds NAME/ (the unpacked files) and NAME.version
for each. FOLDER gets train/*.txt, heldout/*.txt and manifest.json. The same packages give the same files.
"""

import hashlib
import json
import pathlib
import re
import sys

from corpus_text import is_english_text, kind_of, text_of

TRAIN_DOCUMENT_BYTES = 256 << 10  # about 64,000 tokens
TRAIN_PACKAGE_BYTES = 2 << 20     # so that no package outweighs the others
HELDOUT_BYTES = 200 << 10
LEAST_HELDOUT_BYTES = 130_000  # 24K tokens of a tokenizer that is good at the text
LEAST_TRAIN_BYTES = 20_000
REPEATED_PARAGRAPH = 200  # characters from which on a paragraph may not come again

# Indices, listings of changes, copies in other languages, and pages without text of their own.
LEFT_OUT = re.compile(
    r"/(changelog|copyright|NEWS|TODO|AUTHORS|THANKS|README\.(Debian|source)|genindex|py-modindex|search\.html|searchindex|"
    r"_sources|_static|theindex|doxygen_crawl|sitemap|idx\.)|[-_](source|members)\.html|/(?!en)[a-z]{2}([_-][A-Za-z]{2,4})?/|"
    r"\.(?!en|js|py|md|sh)[a-z]{2}([_-][A-Za-z]{2})?\.(html?|txt)(\.gz)?$|\.html\.(?!en)[a-z]{2}", re.IGNORECASE)


def read_list(path):
    """[(part, package, globs)] in the order of the file."""
    entries, part = [], None
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        if words[0] in ("[heldout]", "[train]"):
            part = words[0].strip("[]")
        elif part is None:
            raise SystemExit(f"{path}: '{line}' comes before [heldout] or [train]")
        else:
            entries.append((part, words[0], words[1:]))
    return entries


def natural(path):
    """Sorts chapter2 before chapter10."""
    return [(int(word), "") if word.isdigit() else (-1, word) for word in re.split(r"(\d+)", str(path))]


def files_of(folder, globs):
    """[(path, kind)] of an unpacked package's documentation in the order of names: of the form that there is most of, as
    others are mostly the same text again."""
    found = {}
    paths = {path for glob in globs or ["**/*"] for path in folder.glob(glob)}
    for path in sorted(paths, key=natural):
        kind = kind_of(path.name, "text" if globs else None)
        name = "/" + path.relative_to(folder).as_posix()
        if kind and path.is_file() and not path.is_symlink() and (globs or not LEFT_OUT.search(name)):
            found.setdefault(kind, []).append(path)

    def weight(kind):  # about the bytes of text
        packed = sum(path.stat().st_size * (3 if path.suffix == ".gz" else 1) for path in found[kind])
        return packed / 2 if kind == "html" else packed

    kind = max(sorted(found), key=weight, default=None)
    return [(path, kind) for path in found.get(kind, [])]


class Once:
    """Passes each long paragraph once: licences and notices come with every manual."""

    def __init__(self):
        self.seen = set()

    def __call__(self, text):
        kept = []
        for paragraph in text.split("\n\n"):
            key = hashlib.sha256(" ".join(paragraph.split()).encode()).digest()
            if len(paragraph) < REPEATED_PARAGRAPH or key not in self.seen:
                kept.append(paragraph)
                self.seen.add(key)
        return "\n\n".join(kept).strip()


def documents(texts, size, most):
    """The texts joined, cut where a paragraph ends into documents of about `size` bytes, `most` bytes in all. Takes no more
    texts than that needs."""
    document, length, total = [], 0, 0
    for text in texts:
        for paragraph in text.split("\n\n"):
            document.append(paragraph)
            length += len(paragraph.encode()) + 2
            if length >= size:
                yield "\n\n".join(document) + "\n"
                total += length
                document, length = [], 0
                if total >= most:
                    return
    if document:
        yield "\n\n".join(document) + "\n"


def write_package(unpacked, part, globs, once, folder):
    """Writes one package's documents. Returns what the manifest says of them."""
    texts = (text_of(path, kind) for path, kind in files_of(unpacked, globs))
    texts = filter(None, (once(text) for text in texts if is_english_text(text)))
    is_heldout = part == "heldout"
    size, most = (HELDOUT_BYTES, HELDOUT_BYTES) if is_heldout else (TRAIN_DOCUMENT_BYTES, TRAIN_PACKAGE_BYTES)
    least = LEAST_HELDOUT_BYTES if is_heldout else LEAST_TRAIN_BYTES
    written = []
    for text in documents(texts, size, most):
        data = text.encode("utf-8")
        if len(data) < least:
            continue
        name = unpacked.name + ("" if is_heldout else f"-{len(written) + 1:02}")
        (folder / part / f"{name}.txt").write_bytes(data)
        written.append({"file": f"{part}/{name}.txt", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    return written


def main(list_path, packages, folder):
    packages, folder = pathlib.Path(packages), pathlib.Path(folder)
    entries = read_list(pathlib.Path(list_path))
    once, manifest, totals, short = Once(), [], {"heldout": 0, "train": 0}, []
    for part in totals:
        (folder / part).mkdir(parents=True, exist_ok=True)
        for old in (folder / part).glob("*.txt"):
            old.unlink()
    for number, (part, package, globs) in enumerate(entries, 1):
        written = write_package(packages / package, part, globs, once, folder)
        version = (packages / f"{package}.version").read_text(encoding="utf-8").strip()
        manifest.append({"package": package, "version": version, "part": part, "files": written})
        if not written:
            short.append(package)
        size = sum(file["bytes"] for file in written)
        totals[part] += size
        print(f"[{number}/{len(entries)}] {package}: {size / 1e6:.2f} MB for {part}/", flush=True)
    if short:
        raise SystemExit(f"too little text for a document: {', '.join(short)}")
    python = ".".join(map(str, sys.version_info[:2]))
    (folder / "manifest.json").write_text(json.dumps({"python": python, "packages": manifest}, indent=1) + "\n", encoding="utf-8")
    counts = {part: sum(len(entry["files"]) for entry in manifest if entry["part"] == part) for part in totals}
    print(f"train/: {counts['train']} documents, {totals['train'] / 1e6:.1f} MB; "
          f"heldout/: {counts['heldout']} documents, {totals['heldout'] / 1e6:.1f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])

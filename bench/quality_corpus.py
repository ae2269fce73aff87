#!/usr/bin/env python3
"""Collects long texts for `tokenbutler-eval kl` and `tokenbutler-bench link` from what a Debian machine with Python has anyway.

Python's language reference (the topics of its interactive help) in four parts, perl's list of diagnostics, the licence
texts, and modules of the standard library, ten documents in all. The same machine gives the same files; their sha256
sums are written beside them (SHA256SUMS), so that two machines can be compared.
"""

import argparse
import hashlib
import pathlib
import pydoc_data.topics
import sys
import sysconfig

MODULES = ["typing", "argparse", "inspect", "_pydecimal", "turtle", "doctest"]
TOPIC_PARTS = 4
LEAST_BYTES = 80_000  # about 20,000 tokens


def topic_parts():
    """The topics in alphabetical order, cut into parts of about the same length."""
    topics = [text for _, text in sorted(pydoc_data.topics.topics.items())]
    total = sum(map(len, topics))
    parts, length = [""] * TOPIC_PARTS, 0
    for text in topics:
        parts[min(length * TOPIC_PARTS // total, TOPIC_PARTS - 1)] += text + "\n\n"
        length += len(text)
    return parts


def read(path):
    return path.read_text(encoding="utf-8", errors="replace")


def documents():
    """(name, text) of each document this machine has."""
    for number, text in enumerate(topic_parts(), 1):
        yield f"python-reference-{number}", text
    for path in sorted(pathlib.Path("/usr/share/perl").glob("*/pod/perldiag.pod"))[-1:]:
        yield "perl-diagnostics", read(path)
    licences = sorted(path for path in pathlib.Path("/usr/share/common-licenses").glob("*")
                      if path.is_file() and not path.is_symlink())
    if licences:
        yield "licences", "\n\n".join(map(read, licences))
    stdlib = pathlib.Path(sysconfig.get_path("stdlib"))
    for module in MODULES:
        yield f"python-{module.strip('_')}", read(stdlib / f"{module}.py")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="where the files go")
    parser.add_argument("--count", type=int, default=10, help="documents wanted (default: %(default)s)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    sums = []
    for name, text in documents():
        data = text.encode("utf-8")
        if len(data) < LEAST_BYTES:
            print(f"{name}: {len(data)} bytes, left out (at least {LEAST_BYTES})", file=sys.stderr)
            continue
        if len(sums) == options.count:
            break
        (options.folder / f"{name}.txt").write_bytes(data)
        sums.append(f"{hashlib.sha256(data).hexdigest()}  {name}.txt\n")
    (options.folder / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    print("".join(sums), end="")
    if len(sums) < options.count:
        raise SystemExit(f"this machine has {len(sums)} documents, {options.count} are wanted")


if __name__ == "__main__":
    main()

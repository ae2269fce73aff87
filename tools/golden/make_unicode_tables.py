"""Writes engine/tokenizer/unicode_tables.cc: what Hugging Face's `tokenizers` thinks of each code point.

The library mixes several Unicode versions (Oniguruma's for regular expressions, Rust's for digits and
word characters, an old one for NFC), so its classes are asked for, one code point at a time, instead of
being taken from a copy of the Unicode data.

Usage: python3 make_unicode_tables.py --utf8proc libutf8proc.so.2 > engine/tokenizer/unicode_tables.cc
"""

import argparse
import ctypes

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
# In the order of the bits of unicode.h's CodePointClass.
REGEXES = [r"\p{L}", r"\p{N}", r"\s", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"]
# Marks of every combining class that exists in quantity, to see how a code point is reordered.
MARKS = "\u0334\u094d\u0327\u0323\u0301\u0345\u302b\u05b0\u3099"


def matching(regex):
    """Code points that the one-character pattern `regex` matches."""
    split = pre_tokenizers.Split(Regex(regex), "removed")
    result = set(CODE_POINTS)
    for i in range(0, len(CODE_POINTS), 4096):
        text = "".join(map(chr, CODE_POINTS[i : i + 4096]))
        for piece, _ in split.pre_tokenize_str(text):
            result.difference_update(map(ord, piece))
    return result


def digits():
    split = pre_tokenizers.Digits(individual_digits=True)
    return {c for c in CODE_POINTS if len(split.pre_tokenize_str("A" + chr(c) + "A")) > 1}


def word_characters():
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer.add_tokens([AddedToken("XX", single_word=True, normalized=False)])
    return {c for c in CODE_POINTS if not any(i == 1 for i in tokenizer.encode(chr(c) + "XX").ids)}


def nfc_boundaries(path):
    """Code points that are inert for the library's NFC although utf8proc combines or reorders them."""
    lib = ctypes.CDLL(path)
    lib.utf8proc_NFC.restype = lib.utf8proc_NFD.restype = ctypes.c_void_p
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]

    def call(function, text):
        pointer = function(text.encode())
        result = ctypes.string_at(pointer).decode()
        free(pointer)
        return result

    nfc, nfd = normalizers.NFC(), normalizers.NFD()
    result = set()
    for c in CODE_POINTS[1:]:
        text = "".join("a" + chr(c) + m + "b" + m + chr(c) for m in MARKS)
        if nfc.normalize_str(text) != call(lib.utf8proc_NFC, text):
            result.add(c)
        decomposed = call(lib.utf8proc_NFD, chr(c))
        if nfd.normalize_str(chr(c)) != decomposed:
            result.add(c)
            result.update(map(ord, decomposed))
    return result


def print_array(values):
    line = "   "
    for value in values:
        item = f" 0x{value:x},"
        if len(line) + len(item) > 100:
            print(line)
            line = "   "
        line += item
    print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--utf8proc", default="libutf8proc.so.2")
    sets = [matching(r) for r in REGEXES] + [digits(), word_characters()]
    classes = [0] * 0x110000
    for bit, members in enumerate(sets):
        for c in members:
            classes[c] |= 1 << bit
    ranges = [c << 8 | classes[c] for c in range(0x110000) if c == 0 or classes[c] != classes[c - 1]]
    boundaries = sorted(nfc_boundaries(parser.parse_args().utf8proc))
    print('#include "engine/tokenizer/unicode.h"\n')
    print(f"// Made by tools/golden/make_unicode_tables.py with tokenizers {tokenizers.__version__}.")
    print("namespace tokenbutler {\n\n// clang-format off")
    print(f"const std::array<uint32_t, {len(ranges)}> kCodePointClassRanges = {{")
    print_array(ranges)
    print("};\n")
    print(f"const std::array<char32_t, {len(boundaries)}> kNfcBoundaries = {{")
    print_array(boundaries)
    print("};\n// clang-format on\n\n}  // namespace tokenbutler")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Checks who includes whom. The rules are the data at the top; docs/architecture.md explains them.

usage: check_layering.py [ROOT]   prints each violation as `file:line: sentence`; exit code 1 if there are any.
"""

import collections
import pathlib
import re
import sys

SOURCE_SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".inc"}
TOP_FOLDERS = ["base", "offload", "engine", "server", "tools", "bench", "tests"]
MAX_LINES = 500

# What a folder may include of ours: prefixes of paths. Everything may include what is in its own folder.
ALLOWED_PROJECT_INCLUDES = {
    "base/": ["base/"],
    "offload/": ["offload/", "base/"],
    # The layers see the data plane of offload/, the scheduler its control plane, nobody its insides.
    "engine/": ["engine/", "base/", "offload/block_pool.h", "offload/block_table.h", "offload/eviction.h",
                "offload/kv_layout.h", "offload/kv_store.h", "offload/resident_tokens.h",
                "offload/state_layout.h", "offload/token_selection.h"],
    "server/": ["server/", "base/", "proto/", "engine/"],
    "tools/": ["tools/", "base/", "offload/", "engine/", "server/", "proto/"],
    "bench/": ["bench/", "tools/scoring/", "base/", "offload/", "engine/"],
    "tests/": [""],
}
# Files that may do more than their folder: they build the object graph.
EXTRA_PROJECT_INCLUDES = {
    "server/model_stack.h": ["offload/"],
    "server/model_stack.cc": ["offload/"],
}

# Headers of others, and the only places that may include them (prefixes of paths).
LIBRARIES = {
    "gRPC and protobuf": {
        "headers": r"grpcpp/|grpc/|google/(protobuf|rpc)/|.*\.pb\.h$",
        "allowed_in": ["server/", "tools/", "bench/", "tests/"],
    },
    "LibTorch": {
        "headers": r"(torch|ATen|c10)/",
        "allowed_in": ["engine/prefill_", "tools/", "bench/", "tests/"],
    },
    "Eigen": {
        "headers": r"Eigen/",
        "allowed_in": ["engine/selection/low_rank", "engine/selection/principal_directions", "tests/"],
    },
    "OpenSSL": {
        "headers": r"openssl/",
        "allowed_in": ["base/sha256"],
    },
    "spdlog": {
        "headers": r"spdlog/",
        "allowed_in": ["base/logging"],
    },
}
FORBIDDEN_IN_HEADERS = {
    r"torch/(torch|extension)\.h|ATen/ATen\.h":
        "costs many seconds in every file that sees it; use ATen/core/Tensor.h or a forward declaration",
    r"iostream|regex": "costs every file that includes this header; include it in the .cc",
}
FORBIDDEN_EVERYWHERE = {r"regex": "std::regex is slow and overflows the stack; use RE2 or write the loop"}
CUDA_HEADERS = r"(cuda|cuda_\w+|cublas\w*|cupti)\.h$"

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')


def sources(root):
    for top in TOP_FOLDERS:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SOURCE_SUFFIXES and path.is_file():
                yield path.relative_to(root).as_posix()


def includes_of(root, name):
    """(line number, header) of each include."""
    lines = (root / name).read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1) or match.group(2)


def starts_with_any(name, prefixes):
    return any(name.startswith(prefix) for prefix in prefixes)


def check_include(name, header):
    """Yields a sentence for each rule that `name` breaks by including `header`."""
    is_ours = header.split("/")[0] in TOP_FOLDERS + ["proto"]
    top = name.split("/")[0] + "/"
    allowed = ALLOWED_PROJECT_INCLUDES[top] + EXTRA_PROJECT_INCLUDES.get(name, [])
    if is_ours and not starts_with_any(header, allowed):
        yield f"{top} may not include {header}"
    for library, rule in LIBRARIES.items():
        if re.match(rule["headers"], header) and not starts_with_any(name, rule["allowed_in"]):
            yield f"{header}: {library} may only be included in {', '.join(rule['allowed_in'])}"
    if re.search(CUDA_HEADERS, header) and "cuda" not in name.split("/")[:-1]:
        yield f"{header}: CUDA headers may only be included in a folder named cuda/"
    rules = dict(FORBIDDEN_EVERYWHERE)
    if name.endswith((".h", ".cuh")):
        rules.update(FORBIDDEN_IN_HEADERS)
    for pattern, why in rules.items():
        if re.fullmatch(pattern, header):
            yield f"{header} may not be included here: {why}"


def check_file(root, name):
    text = (root / name).read_text(encoding="utf-8", errors="replace")
    num_lines = text.count("\n")
    if num_lines > MAX_LINES:
        yield f"{name}:{num_lines}: {num_lines} lines; a file has at most {MAX_LINES}"
    # Highway includes a -inl.h once per instruction set; it has a guard of its own kind.
    if name.endswith((".h", ".cuh")) and not name.endswith("-inl.h"):
        code = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S).strip()
        if not code.startswith("#pragma once"):
            yield f"{name}:1: the first line of code of a header is #pragma once"


def find_cycle(graph):
    """One cycle of {node: set of nodes} as a list that ends where it starts, or None."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node):] + [node]
        if node in done:
            return None
        path.append(node)
        for following in sorted(graph.get(node, ())):
            cycle = visit(following)
            if cycle:
                return cycle
        path.pop()
        done.add(node)
        return None

    for start in sorted(graph):
        cycle = visit(start)
        if cycle:
            return cycle
    return None


def violations(root):
    root = pathlib.Path(root)
    files, folders = collections.defaultdict(set), collections.defaultdict(set)
    names = set(sources(root))
    for name in sorted(names):
        yield from check_file(root, name)
        for number, header in includes_of(root, name):
            for sentence in check_include(name, header):
                yield f"{name}:{number}: {sentence}"
            if header in names and header != name:
                files[name].add(header)
                here, there = name.rpartition("/")[0], header.rpartition("/")[0]
                if here != there:
                    folders[here].add(there)
    for kind, graph in (("files", files), ("folders", folders)):
        cycle = find_cycle(graph)
        if cycle:
            yield f"{cycle[0]}: a cycle of {kind}: {' -> '.join(cycle)}"


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent
    found = list(violations(root))
    for line in found:
        print(line)
    num_files = len(set(sources(root)))
    if num_files == 0:
        print(f"{root}: no source files found")
        return 1
    print(f"{num_files} files, {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

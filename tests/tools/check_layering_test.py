"""Plants one violation at a time in a small tree and expects tools/check_layering.py to name it."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_layering.py"

CLEAN_TREE = {
    "base/status.h": "#pragma once\n\n#include <string>\n",
    "base/logging.cc": '#include "base/status.h"\n#include <spdlog/spdlog.h>\n',
    "offload/kv_layout.h": '// What this is.\n#pragma once\n\n#include "base/status.h"\n',
    "engine/request.h": '#pragma once\n\n#include "offload/kv_layout.h"\n',
    "engine/prefill_math.cc": '#include <ATen/core/Tensor.h>\n\n#include "engine/request.h"\n',
    "engine/kernels/cuda/linear.cu": "#include <cuda_runtime.h>\n",
    "server/model_stack.cc": '#include <grpcpp/grpcpp.h>\n\n#include "engine/request.h"\n#include "offload/kv_layout.h"\n',
    "tests/base/status_test.cc": '#include "base/status.h"\n',
}


def run(changes):
    """Exit code and output of the script over CLEAN_TREE with `changes`."""
    with tempfile.TemporaryDirectory() as root:
        for name, text in {**CLEAN_TREE, **changes}.items():
            path = pathlib.Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        done = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr


class CheckLayeringTest(unittest.TestCase):

    def test_clean_tree_passes(self):
        code, output = run({})
        self.assertEqual(code, 0, output)
        self.assertIn("8 files, 0 violations", output)

    def test_empty_tree_fails(self):
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(subprocess.run([sys.executable, SCRIPT, root], capture_output=True).returncode, 1)

    def expect(self, name, text, *sentences):
        code, output = run({name: text})
        self.assertEqual(code, 1, f"{name} was accepted:\n{output}")
        for sentence in sentences:
            self.assertIn(sentence, output)

    def test_includes_go_downward_only(self):
        self.expect("base/x.cc", '#include "offload/kv_layout.h"\n', "base/x.cc:1: base/ may not include offload/")
        self.expect("base/x.cc", '\n  #  include <engine/request.h>\n', "base/x.cc:2: base/ may not include engine/")
        self.expect("offload/x.cc", '#include "engine/request.h"\n', "offload/ may not include engine/request.h")
        self.expect("engine/x.cc", '#include "server/auth.h"\n', "engine/ may not include server/auth.h")
        self.expect("engine/x.cc", '#include "offload/fetch_plan.h"\n', "engine/ may not include offload/fetch_plan.h")
        self.expect("server/x.cc", '#include "offload/kv_layout.h"\n', "server/ may not include offload/")
        self.expect("server/x.cc", '#include "tests/x.h"\n', "server/ may not include tests/x.h")

    def test_libraries_stay_in_their_rooms(self):
        self.expect("engine/x.cc", "#include <grpcpp/grpcpp.h>\n", "gRPC and protobuf may only")
        self.expect("engine/x.cc", '#include "tokenbutler/v1/inference.pb.h"\n', "gRPC and protobuf may only")
        self.expect("engine/kernels/x.cc", "#include <ATen/core/Tensor.h>\n", "LibTorch may only")
        self.expect("engine/transformer.cc", "#include <ATen/core/Tensor.h>\n", "LibTorch may only")
        self.expect("offload/x.cc", "#include <torch/torch.h>\n", "LibTorch may only")
        self.expect("server/x.cc", "#include <c10/util/Half.h>\n", "LibTorch may only")
        self.expect("server/x.cc", "#include <spdlog/spdlog.h>\n", "spdlog may only")
        self.expect("engine/kernels/x.cc", "#include <cuda_runtime.h>\n", "a folder named cuda/")
        self.expect("tests/x.cc", "#include <cuda_runtime.h>\n", "a folder named cuda/")

    def test_expensive_headers_stay_out_of_headers(self):
        self.expect("engine/transformer.h", "#pragma once\n#include <torch/torch.h>\n", "torch/torch.h may not be")
        self.expect("base/x.h", "#pragma once\n#include <iostream>\n", "iostream may not be")
        self.expect("server/x.cc", "#include <regex>\n", "regex may not be")

    def test_cycles(self):
        code, output = run({"base/a.h": '#pragma once\n#include "base/b.h"\n',
                            "base/b.h": '#pragma once\n#include "base/a.h"\n'})
        self.assertEqual(code, 1)
        self.assertIn("a cycle of files: base/a.h -> base/b.h -> base/a.h", output)
        code, output = run({"engine/models/a.h": '#pragma once\n#include "engine/request.h"\n',
                            "engine/model.h": '#pragma once\n#include "engine/models/b.h"\n',
                            "engine/models/b.h": "#pragma once\n"})
        self.assertEqual(code, 1)
        self.assertIn("a cycle of folders: engine -> engine/models -> engine", output)

    def test_file_form(self):
        self.expect("base/x.h", "#ifndef X\n#define X\n#endif\n", "base/x.h:1: the first line of code")
        self.expect("base/x.cc", "\n" * 501, "501 lines; a file has at most 500")
        code, output = run({"base/x.cc": "\n" * 500, "engine/kernels/x-inl.h": "#if defined(TOGGLE) == 1\n#endif\n"})
        self.assertEqual(code, 0, output)


if __name__ == "__main__":
    unittest.main()

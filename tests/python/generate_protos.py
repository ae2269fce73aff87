"""usage: generate_protos.py PROTO_FOLDER OUTPUT_FOLDER: Python code for every .proto file."""

import pathlib
import sys

import grpc_tools
from grpc_tools import protoc

source, output = map(pathlib.Path, sys.argv[1:])
output.mkdir(parents=True, exist_ok=True)
files = sorted(path.relative_to(source).as_posix() for path in source.rglob("*.proto"))
well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
sys.exit(protoc.main(["protoc", f"-I{source}", f"-I{well_known}", f"--python_out={output}",
                      f"--grpc_python_out={output}", *files]))

"""What scripts/generate needs beside buf: descriptors from the flyteidl wheel, and the order of the generated files.

Commands: `imports` and `released` write a FileDescriptorSet to standard output; `arrange FROM TO` puts buf's output
where it belongs.
"""

import shutil
import sys
from pathlib import Path

from flyteidl.core import tasks_pb2
from flyteidl.plugins import common_pb2, pytorch_pb2
from flyteidl.plugins.kubeflow import common_pb2 as kubeflow_common_pb2
from flyteidl.plugins.kubeflow import pytorch_pb2 as kubeflow_pytorch_pb2
from google.protobuf import descriptor_pb2, duration_pb2, struct_pb2

RELEASED = (common_pb2, pytorch_pb2, kubeflow_common_pb2, kubeflow_pytorch_pb2)
OVERLAY = '''"""Puts these modules before those of the flyteidl wheel, which supplies all others."""

__path__ = __import__("pkgutil").extend_path(__path__, __name__)
'''


def with_imports(*modules):
    """The files of the modules after all that they import, each once."""
    found = {}

    def visit(file):
        for dependency in file.dependencies:
            visit(dependency)
        if file.name not in found:
            found[file.name] = descriptor_pb2.FileDescriptorProto()
            file.CopyToProto(found[file.name])

    for module in modules:
        visit(module.DESCRIPTOR)
    return descriptor_pb2.FileDescriptorSet(file=found.values())


def arrange(source, target):
    """Ours into gen/python; types of the upstream modules, and of what they import, into gen/stubs."""
    python, stubs = target / "python", target / "stubs" / "flyteidl-stubs"
    for file in sorted((source / "python").rglob("*.py")):
        name = file.relative_to(source / "python")
        if name.parts[0] == "flyteidl_torchrun" or name.parts[:2] == ("flyteidl", "plugins"):
            move(file, python / name)
    for file in sorted((source / "types").rglob("*.pyi")):
        name = file.relative_to(source / "types")
        if name.parts[0] == "flyteidl_torchrun":
            move(file, python / name)
        elif name.parts[0] == "flyteidl":
            move(file, stubs.joinpath(*name.parts[1:]))
    (stubs / "py.typed").write_text("partial\n")
    (python / "flyteidl_torchrun" / "py.typed").touch()
    for folder in folders(python / "flyteidl"):
        (folder / "__init__.py").write_text(OVERLAY)
    for folder in folders(python / "flyteidl_torchrun"):
        (folder / "__init__.py").touch()
    for folder in folders(stubs):
        (folder / "__init__.pyi").touch()


def folders(root):
    return [root, *(path for path in root.rglob("*") if path.is_dir())]


def move(file, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(file, target)


if __name__ == "__main__":
    if sys.argv[1] == "arrange":
        arrange(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        modules = RELEASED if sys.argv[1] == "released" else (tasks_pb2, duration_pb2, struct_pb2)
        sys.stdout.buffer.write(with_imports(*modules).SerializeToString(deterministic=True))

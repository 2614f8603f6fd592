"""Takes the messages of distributed PyTorch tasks out of released flyteidl and flyteidl2 wheels.

`scripts/registry.py FOLDER...`: each folder holds an unpacked wheel; writes the descriptor sets that differ, named by
the first release that has them, to src/flyte_torchrun/schema/descriptors.
"""

import ast
import re
import sys
from pathlib import Path

from google.protobuf import descriptor_pb2

TARGET = Path(__file__).parents[1] / "src" / "flyte_torchrun" / "schema" / "descriptors"
FILES = ("core/tasks", "plugins/common", "plugins/pytorch", "plugins/kubeflow/common", "plugins/kubeflow/pytorch")


def descriptor_set(folder, package):
    """The files that hold these messages, without what they do not need; None where there are none."""
    found = []
    for name in FILES:
        module = folder / package / f"{name}_pb2.py"
        if module.exists():
            file = descriptor_pb2.FileDescriptorProto.FromString(serialized(module))
            found.append(only_resources(file) if name == "core/tasks" else file)
            for message in found[-1].message_type:
                write_json_names(message)
    known = {file.name for file in found}
    for file in found:
        file.ClearField("options")  # what code is made of it, and where, says nothing about the messages
        assert set(file.dependency) <= known, (file.name, file.dependency)
    return descriptor_pb2.FileDescriptorSet(file=found)


def write_json_names(message):
    """Older generators left them out where they follow from the name."""
    for field in message.field:
        field.json_name = field.json_name or re.sub("_(.)", lambda match: match[1].upper(), field.name)
    for nested in message.nested_type:
        write_json_names(nested)


def only_resources(file):
    """core/tasks.proto holds more than a replica's resources; that is what is kept."""
    kept = descriptor_pb2.FileDescriptorProto(name=file.name, package=file.package, syntax=file.syntax)
    kept.message_type.extend(message for message in file.message_type if message.name == "Resources")
    return kept


def serialized(module):
    """The file descriptor in a generated module, whichever protoc made it; the module is not run."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "AddSerializedFile":
            return ast.literal_eval(node.args[0])
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb":
            if isinstance(node.value, ast.Call):  # _b('...'), for Python 2
                return ast.literal_eval(node.value.args[0]).encode("latin1")
            return ast.literal_eval(node.value)
    raise SystemExit(f"{module} holds no file descriptor")


def version(folder):
    metadata = next(folder.glob("flyteidl*.dist-info")) / "METADATA"
    return re.search(r"^Version: (.*)$", metadata.read_text(), re.MULTILINE)[1]


def main(folders):
    written = {}
    for folder in map(Path, folders):
        for package in ("flyteidl", "flyteidl2"):
            if (folder / package).is_dir():
                content = descriptor_set(folder, package).SerializeToString(deterministic=True)
                if content not in written:
                    written[content] = f"{package}-{version(folder)}.binpb"
    for content, name in written.items():
        (TARGET / name).write_bytes(content)
        print(name, len(content))


if __name__ == "__main__":
    main(sys.argv[1:])

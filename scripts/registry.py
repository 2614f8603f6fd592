"""Takes the messages of distributed PyTorch tasks out of released flyteidl and flyteidl2 wheels.

`scripts/registry.py FOLDER`: the folder holds wheels, such as `pip download --no-deps flyteidl==1.5.1` gets; writes the
descriptor sets that differ, each named by the first release that has it, and which releases have which, to
src/flyte_torchrun/schema/descriptors.
"""

import ast
import json
import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from google.protobuf import descriptor_pb2

from flyte_torchrun.schema.normal import FILES, normal

TARGET = Path(__file__).parents[1] / "src" / "flyte_torchrun" / "schema" / "descriptors"


def descriptor_set(folder, package):
    """The files that hold these messages."""
    modules = [folder / package / f"{name}_pb2.py" for name in FILES]
    files = [descriptor_pb2.FileDescriptorProto.FromString(serialized(module)) for module in modules if module.exists()]
    return normal(files, package)


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


def release(wheel):
    """The wheel's distribution and release, and the number to sort it by."""
    distribution, number = wheel.name.split("-")[:2]
    parts = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:(a|b|rc|\.post)(\d+))?", number)
    stage = {"a": 0, "b": 1, "rc": 2, None: 3, ".post": 4}[parts[4]]
    return distribution, number, (*map(int, parts.groups()[:3]), stage, int(parts[5] or 0))


def unpacked(wheel):
    """The generated modules that matter, in a folder of their own."""
    folder = Path(tempfile.mkdtemp())
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if any(name.endswith(f"/{file}_pb2.py") for file in FILES):
                archive.extract(name, folder)
    return folder


def schemas(wheels):
    """Each state of the messages, with the releases that have it, oldest first."""
    found = {}
    for wheel in sorted(wheels, key=lambda wheel: (release(wheel)[0], release(wheel)[2])):
        distribution, number, _ = release(wheel)
        folder = unpacked(wheel)
        try:
            content = descriptor_set(folder, distribution)
        finally:
            shutil.rmtree(folder)
        if any(
            message.name == "DistributedPyTorchTrainingTask" for file in content.file for message in file.message_type
        ):
            found.setdefault(content.SerializeToString(deterministic=True), []).append((distribution, number))
    return found


def main(folder):
    names = {}
    for content, releases in schemas(Path(folder).glob("*.whl")).items():
        distribution, first = releases[0]
        name = f"{distribution}-{first}"
        (TARGET / f"{name}.binpb").write_bytes(content)
        names[name] = [number for _, number in releases]
        print(name, len(content), "bytes,", len(releases), "releases, to", releases[-1][1])
    lines = [f"  {json.dumps(name)}: {json.dumps(releases)}" for name, releases in names.items()]
    (TARGET / "releases.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1])

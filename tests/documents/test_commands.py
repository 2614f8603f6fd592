"""Each command of the documents prints what they show.

With FLYTE_TORCHRUN_WRITE_DOCUMENTS set, the documents are written anew from what the commands print.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from flyte_torchrun.schema.messages import schema_of_release

DOCUMENTS = ("README.md", "docs/command.md", "docs/surprises.md")
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


@pytest.fixture
def folder(root, tmp_path):
    for package in (root / "tests" / "fixtures").glob("*.tgz"):
        shutil.copy(package, tmp_path)
    files = descriptor_pb2.FileDescriptorSet.FromString(schema_of_release("1.16.8").serialized)
    for file in files.file:
        for message in file.message_type:
            for field in message.field:
                if field.name == "restart_policy" and message.name == "DistributedPyTorchTrainingReplicaSpec":
                    field.name, field.json_name = "restarts", "restarts"
    (tmp_path / "renamed.binpb").write_bytes(files.SerializeToString())
    return tmp_path


def commands(block):
    """The commands of a block, each with its continued lines."""
    found = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append([line])
        elif line.startswith("> ") and found and all(each.startswith(("$ ", "> ")) for each in found[-1]):
            found[-1].append(line)
    return found


def run(block, folder):
    """The block as a terminal would show it."""
    shown = []
    for lines in commands(block):
        done = subprocess.run(
            ["bash", "-c", "\n".join(line[2:] for line in lines)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            cwd=folder,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        )
        shown += [*lines, *(line.rstrip() for line in done.stdout.splitlines())]
    return "\n".join(shown) + "\n"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_commands_print_what_is_shown(root, folder, document):
    path = root / document
    text = path.read_text()
    new = BLOCK.sub(lambda block: f"```console\n{run(block[1], folder)}```", text)
    if os.environ.get("FLYTE_TORCHRUN_WRITE_DOCUMENTS"):
        path.write_text(new)
        return
    assert new == text
    assert "Traceback" not in text


def test_every_command_and_option_is_in_its_page(root):
    from flyte_torchrun.cli import main

    page = (root / "docs" / "command.md").read_text()
    synopsis = page.partition("## Input")[0]
    for name, command in main.commands.items():
        assert name in synopsis
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert option in synopsis or len(option) == 2, (name, option)
    for name in main.commands["schema"].commands:
        assert name in synopsis

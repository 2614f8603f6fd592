"""A file written for other releases: real packages, messages of every kind, texts."""

import io
import json
import tarfile
from pathlib import Path

import pytest
import yaml
from flyteidl.admin import task_pb2
from flyteidl.core import compiler_pb2, tasks_pb2
from google.protobuf import json_format

from flyte_torchrun.compat import InputError, Verdict, check, convert, templates_in
from flyte_torchrun.contract import DistributedPyTorchTrainingTask

FIXTURES = Path(__file__).parents[1] / "fixtures"
OLD = {  # the layout of version 1 under version 0, as flytekit 1.7.0 wrote it
    "id": {"name": "train"},
    "type": "pytorch",
    "custom": {"workerReplicas": {"replicas": 2}, "masterReplicas": {"replicas": 1}},
    "container": {"image": "x", "args": ["a"]},
}
NEW = {"workerReplicas": {"replicas": 2}, "masterReplicas": {"replicas": 1}}
MESSAGE = json_format.ParseDict(OLD, tasks_pb2.TaskTemplate())


def members(content):
    with tarfile.open(fileobj=io.BytesIO(content)) as package:
        return {each.name: package.extractfile(each).read() for each in package if each.isfile()}


@pytest.mark.parametrize("package", sorted(path.name for path in FIXTURES.glob("*.tgz")))
def test_a_real_package_is_honoured_after_it_was_written_for_its_platform(package, tmp_path):
    content, written = convert(FIXTURES / package, ">=1.10.6,<2")
    assert written
    assert all(findings == () for _, findings in written)
    path = tmp_path / "new.tgz"
    path.write_bytes(content)
    before, after = ({each.name: each.template for each in templates_in(file)} for file in (FIXTURES / package, path))
    assert list(before) == list(after)
    for name, template in after.items():
        assert check(template, flyte=">=1.10.6,<2", operator="1.9").verdict <= Verdict.ADVICE
        old = before[name]
        if name in {found.name for found, _ in written}:
            meant = DistributedPyTorchTrainingTask.from_template(old, allow_violations=True)
            now = DistributedPyTorchTrainingTask.from_template(template)
            assert now.worker_replicas.replicas == meant.worker_replicas.replicas
            assert (now.elastic_config, now.run_policy) == (meant.elastic_config, meant.run_policy)
            template.ClearField("custom"), template.ClearField("task_type_version")
            old.ClearField("custom"), old.ClearField("task_type_version")
        assert template == old
    untouched = {name: data for name, data in members((FIXTURES / package).read_bytes()).items() if "no_torch" in name}
    assert untouched
    assert untouched.items() <= members(content).items()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda template: template,
        lambda template: task_pb2.TaskSpec(template=template, description={"short_description": "kept"}),
        lambda template: compiler_pb2.CompiledTask(template=template),
        lambda template: task_pb2.Task(closure={"compiled_task": {"template": template}}, short_description="kept"),
        lambda template: compiler_pb2.CompiledWorkflowClosure(tasks=[{"template": template}, {"template": template}]),
    ],
)
def test_a_message_stays_the_message_that_it_is(wrap, tmp_path):
    path = tmp_path / "old.pb"
    path.write_bytes(wrap(MESSAGE).SerializeToString() + b"\xfa\x3f\x04kept")  # and a field that nobody knows
    content, written = convert(path, "1.16.8")
    assert {found.name for found, _ in written} == {"train"}
    new = tasks_pb2.TaskTemplate()
    new.CopyFrom(MESSAGE)
    new.task_type_version = 1
    new.custom.Clear()
    new.custom.update(NEW)
    expected = wrap(new)
    assert content.endswith(b"\xfa\x3f\x04kept")
    assert type(expected).FromString(content[:-7]) == expected


def test_json_and_yaml_keep_what_is_not_read(tmp_path):
    value = {"closure": {"compiledTask": {"template": {**OLD, "unknown": 1}}}, "other": [1, {"template": 3}]}
    expected = {
        "closure": {"compiledTask": {"template": {**OLD, "unknown": 1, "taskTypeVersion": 1, "custom": NEW}}},
        "other": [1, {"template": 3}],
    }
    (tmp_path / "old.json").write_text(json.dumps(value))
    content, _ = convert(tmp_path / "old.json", ">=1.9,<2")
    assert json.loads(content) == expected
    (tmp_path / "old.yaml").write_text(yaml.safe_dump_all([value, value]))
    content, written = convert(tmp_path / "old.yaml", ">=1.9,<2")
    assert list(yaml.safe_load_all(content)) == [expected, expected]
    assert len(written) == 2


def test_other_files_and_links_of_a_package_stay(tmp_path):
    with tarfile.open(tmp_path / "old.tar", "w") as package:
        for name, data in (("a.pb", MESSAGE.SerializeToString()), ("code/main.py", b"print()"), ("empty", b"")):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(data), 0o640, 7
            package.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        package.addfile(link)
    content, written = convert(tmp_path / "old.tar", "1.16.8")
    assert len(written) == 1
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as package:
        found = [(each.name, each.type, each.mode, each.mtime, each.linkname) for each in package]
        assert package.extractfile("code/main.py").read() == b"print()"
    assert found == [
        ("a.pb", tarfile.REGTYPE, 0o640, 7, ""),
        ("code/main.py", tarfile.REGTYPE, 0o640, 7, ""),
        ("empty", tarfile.REGTYPE, 0o640, 7, ""),
        ("link", tarfile.SYMTYPE, 0o644, 0, "/etc/passwd"),
    ]


def test_what_would_be_lost_comes_with_the_content():
    content, written = convert(FIXTURES / "flytekit-1.16.31.tgz", ">=1.6,<2")
    assert content
    [(found, findings)] = [each for each in written if each[0].name == "tasks.everything"]
    assert {finding.verdict for finding in findings} == {Verdict.REJECTED}
    assert found.source.endswith("_tasks.everything_1.pb")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pb", b"\xff\xff", "a.pb: no serialized protobuf message"),
        ("a.json", b'{"type": "container", "container": {}}', "a.json: holds no PyTorch task"),
        ("a.tgz", b"none", "a.tgz: no package that can be read"),
    ],
)
def test_what_cannot_be_converted_is_an_error(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        convert(tmp_path / name, "1.16.8")
    with pytest.raises(InputError, match="is a folder"):
        convert(tmp_path, "1.16.8")

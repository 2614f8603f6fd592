"""Task templates out of what a person has, and out of what nobody should have."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
import yaml
from flyteidl.admin import task_pb2
from flyteidl.core import compiler_pb2, tasks_pb2
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from flyte_torchrun.compat import InputError, Verdict, check, claimed_writer, templates_in, writer_of
from flyte_torchrun.compat.wire import WireError, fields_of
from flyte_torchrun.contract import ContractError, DistributedPyTorchTrainingTask

FIXTURES = Path(__file__).parents[1] / "fixtures"
PACKAGES = sorted(path.name for path in FIXTURES.glob("flytekit-*.tgz"))
FLYTE_2 = sorted(path.name for path in FIXTURES.glob("flyte-*.tgz"))
TEMPLATE = {
    "id": {"name": "train"},
    "type": "pytorch",
    "taskTypeVersion": 1,
    "custom": {"workerReplicas": {"replicas": 2}},
    "container": {"image": "x"},
}
MESSAGE = json_format.ParseDict(TEMPLATE, tasks_pb2.TaskTemplate())


def names(path):
    return [found.name for found in templates_in(path)]


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_there_are_packages_of_five_flytekits_and_two_flyte_2_sdks():
    assert [len(PACKAGES), len(FLYTE_2)] == [5, 2]


@pytest.mark.parametrize("package", FLYTE_2)
def test_what_the_flyte_2_sdk_serializes_is_read_whole(package):
    found = {each.name: each.template for each in templates_in(FIXTURES / package)}
    assert {name: each.type for name, each in found.items()} == {
        "elastic.elastic": "pytorch",
        "range.ranged": "pytorch",
        "one_node.one_node": "python-task",
        "no_torch.no_torch": "python",
    }
    ranged = DistributedPyTorchTrainingTask.from_template(found["range.ranged"])
    assert (ranged.elastic_config.min_replicas, ranged.elastic_config.max_replicas) == (2, 4)
    for template in found.values():
        assert check(template, flyte="2.0.43").verdict <= Verdict.ADVICE
    for name in ("elastic.elastic", "range.ranged"):
        assert check(found[name], flyte="2.0.7").verdict is Verdict.DROPPED
    assert claimed_writer(found["elastic.elastic"]) == f"the Flyte 2 SDK {package[6:-4]}"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_real_package_is_read_whole(package):
    found = {each.name: each.template for each in templates_in(FIXTURES / package)}
    assert set(found) == {f"tasks.{name}" for name in ("plain", "elastic", "one_node", "no_torch", "everything")}
    for template in found.values():
        assert check(template).readers
    elastic = DistributedPyTorchTrainingTask.from_template(found["tasks.elastic"], allow_violations=True)
    assert (elastic.worker_replicas.replicas, elastic.elastic_config.nproc_per_node) == (2, 4)


@pytest.mark.parametrize(
    ("package", "task", "writer"),
    [
        ("flytekit-1.6.2.tgz", "plain", "flytekit before 1.7, PyTorch"),
        ("flytekit-1.6.2.tgz", "elastic", "flytekit 1.6.0b1 to 1.6.3, or 1.2.12 to 1.2.13, Elastic"),
        ("flytekit-1.7.0.tgz", "elastic", "flytekit 1.7.0, 1.7.1, 1.6.2b1 or 1.2.14 to 1.2.17 (version 1's layout"),
        ("flytekit-1.8.3.tgz", "plain", "flytekit 1.8 or newer, PyTorch"),
        ("flytekit-1.10.7.tgz", "elastic", "flytekit 1.8 to 1.13, or the Flyte 2 SDK, Elastic"),
        ("flytekit-1.16.31.tgz", "everything", "flytekit 1.8 or newer, PyTorch"),
        ("flyte-2.12.1.tgz", "one_node", "the Flyte 2 SDK, Elastic of one node"),
    ],
)
def test_a_writer_is_known_by_the_shape_of_what_it_wrote(package, task, writer):
    [template] = [each.template for each in templates_in(FIXTURES / package) if each.name.endswith(f".{task}")]
    assert writer_of(template)[0].startswith(writer)
    assert writer_of(template)[1] in ("certain", "likely")
    assert claimed_writer(template).endswith(package.partition("-")[2].removesuffix(".tgz"))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_has_not_is_read_and_refused_by_name(number):
    template = tasks_pb2.TaskTemplate(type="pytorch", task_type_version=1)
    template.custom.update({"workerReplicas": {"replicas": number}})
    assert writer_of(template) == ("no released SDK", "certain")
    assert check(template).verdict is Verdict.REJECTED
    with pytest.raises(ContractError, match=r"workerReplicas\.replicas: .* a finite number"):
        DistributedPyTorchTrainingTask.from_template(template)


def test_every_message_that_holds_a_template_is_taken(tmp_path):
    spec = task_pb2.TaskSpec(template=MESSAGE)
    compiled = compiler_pb2.CompiledTask(template=MESSAGE)
    closure = compiler_pb2.CompiledWorkflowClosure(tasks=[compiled, compiled])
    admin = task_pb2.Task(closure=task_pb2.TaskClosure(compiled_task=compiled))
    for index, (message, count) in enumerate(
        [(MESSAGE, 1), (spec, 1), (compiled, 1), (admin.closure, 1), (admin, 1), (closure, 2)]
    ):
        found = list(templates_in(write(tmp_path, f"{index}.pb", message.SerializeToString())))
        assert [each.template for each in found] == [MESSAGE] * count, message


@pytest.mark.parametrize(
    "value",
    [
        TEMPLATE,
        {"template": TEMPLATE},
        [TEMPLATE],
        {"tasks": [{"template": TEMPLATE}]},
        {"closure": {"compiledTask": {"template": TEMPLATE}}},
    ],
)
def test_json_and_yaml_of_each_of_them_are_taken(tmp_path, value):
    for name, text in (("a.json", json.dumps(value)), ("a.yaml", yaml.safe_dump(value)), ("text", json.dumps(value))):
        [found] = templates_in(write(tmp_path, name, text))
        assert found.template == MESSAGE
    two = f"{yaml.safe_dump(value)}---\n{yaml.safe_dump(value)}"
    assert names(write(tmp_path, "two.yml", two)) == ["train", "train"]


def test_a_folder_and_standard_input_are_taken(tmp_path):
    write(tmp_path, "a.pb", MESSAGE.SerializeToString())
    (tmp_path / "below").mkdir()
    write(tmp_path / "below", "b.json", json.dumps(TEMPLATE))
    write(tmp_path / "below", "settings.yaml", "a: 1")  # something else
    write(tmp_path / "below", "c.txt", "not looked at")
    assert names(tmp_path) == ["train", "train"]
    assert [found.source for found in templates_in("-", io.BytesIO(MESSAGE.SerializeToString()))] == ["standard input"]
    package = (FIXTURES / "flytekit-1.16.31.tgz").read_bytes()
    assert len(list(templates_in("-", io.BytesIO(package)))) == 5


def package_of(*members):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as package:
        for name, data, kind in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.size = len(data) if kind == tarfile.REGTYPE else 0
            info.linkname = "/etc/passwd"
            package.addfile(info, io.BytesIO(data))
    return content.getvalue()


def test_names_and_links_in_a_package_reach_no_file(tmp_path):
    data = MESSAGE.SerializeToString()
    content = package_of(
        ("../../outside.pb", data, tarfile.REGTYPE),
        ("/absolute.pb", data, tarfile.REGTYPE),
        ("link.pb", b"", tarfile.SYMTYPE),
        ("hard.pb", b"", tarfile.LNKTYPE),
        ("device.pb", b"", tarfile.CHRTYPE),
    )
    assert names(write(tmp_path, "p.tgz", content)) == ["train", "train"]
    assert [path.name for path in tmp_path.iterdir()] == ["p.tgz"]


def test_a_bomb_is_bounded(tmp_path):
    header = tarfile.TarInfo("big.pb")
    header.size = 4 * 2**30
    bomb = gzip.compress(header.tobuf() + bytes(2**20))
    with pytest.raises(InputError, match="unpacks to more than 1024 MiB"):
        names(write(tmp_path, "bomb.tgz", bomb))
    large = package_of(("large.pb", bytes(65 * 2**20), tarfile.REGTYPE))
    with pytest.raises(InputError, match="larger than 64 MiB"):
        names(write(tmp_path, "large.tgz", large))
    aliases = "a: &a [x]\n" + "".join(
        f"{b}: &{b} [*{a},*{a},*{a},*{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    with pytest.raises(InputError, match="aliases are not allowed"):
        names(write(tmp_path, "bomb.yaml", aliases))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.pb", b"", "no task template is in it"),
        ("text.pb", b"hello", "no serialized protobuf message"),
        ("cut.pb", MESSAGE.SerializeToString()[:-3], "no serialized protobuf message: it ends within field"),
        ("other.pb", tasks_pb2.Resources(requests=[{"value": "1"}]).SerializeToString(), "no task template is in it"),
        ("a.json", b"{", "no JSON that can be read"),
        ("a.json", b'{"type": "pytorch", "type": "x"}', "the key 'type' is there twice"),
        ("a.json", b'{"a": 1}', "holds no task template"),
        ("a.json", b'{"type": "pytorch", "custom": {}, "taskTypeVersion": "x"}', "no task template"),
        ("a.json", b'{"x": "\xff"}', "not UTF-8"),
        ("a.json", b"[" * 100_000, "no JSON that can be read"),
        ("a.yaml", b"type: pytorch\ntype: x\ncustom: {}", "the key 'type' is there twice"),
        ("a.yaml", b"!!python/object/apply:os.system ['x']", "no YAML that can be read"),
        ("a.yaml", b"1: 2", "the key 1 is no text"),
        ("a.yaml", b"[" * 5000, "no YAML that can be read"),
        ("a.tgz", b"no package", "no package that can be read"),
        ("a.tgz", (FIXTURES / "flytekit-1.16.31.tgz").read_bytes()[:600], "no package that can be read"),
        ("a.tgz", gzip.compress(b"no tar"), "no package that can be read"),
    ],
)
def test_what_cannot_be_read_is_one_error_that_names_the_file(tmp_path, name, content, message):
    path = write(tmp_path, name, content)
    with pytest.raises(InputError, match=message) as caught:
        names(path)
    assert str(caught.value).startswith(str(path))


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"gone\.pb: No such file"):
        names(tmp_path / "gone.pb")
    with pytest.raises(InputError, match="holds no task template"):
        names(tmp_path)


@pytest.fixture(scope="module")
def real():
    """The bytes that real writers wrote: packages, and the messages in them."""
    found = [(FIXTURES / package).read_bytes() for package in PACKAGES]
    for package in PACKAGES:
        found += [each.template.SerializeToString() for each in templates_in(FIXTURES / package)]
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_mutated_file_is_read_or_refused(real, seed, tmp_path):
    """2,500 mutations each: bytes changed, cut out, doubled, and files cut off."""

    @settings(max_examples=2500, deadline=None, database=None)
    @given(
        st.sampled_from(real),
        st.lists(
            st.tuples(st.integers(0, 10**6), st.integers(0, 255), st.sampled_from("cdrt")), min_size=1, max_size=4
        ),
    )
    def mutate(content, changes):
        for place, byte, kind in changes:
            index = place % max(len(content), 1)
            if kind == "c":
                content = content[:index] + bytes([byte]) + content[index + 1 :]
            elif kind == "d":
                content = content[:index] + content[index + byte :]
            elif kind == "r":
                content = content[:index] + content[index : index + byte] + content[index:]
            else:
                content = content[:index]
        try:
            for found in templates_in("-", io.BytesIO(content)):
                check(found.template, flyte="1.16.8", operator="1.9.3")
                writer_of(found.template)
                DistributedPyTorchTrainingTask.from_template(found.template)
        except (InputError, ContractError):
            pass

    mutate()


@given(st.binary(max_size=60))
def test_the_fields_of_any_bytes_are_found_or_refused(content):
    try:
        fields = fields_of(content)
    except WireError:
        return
    assert all(number > 0 for number in fields)

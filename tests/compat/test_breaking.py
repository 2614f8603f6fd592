"""What a change of the schema breaks, and for whom: mutations of the released one."""

import pytest
from google.protobuf import descriptor_pb2

from flyte_torchrun.compat import InputError
from flyte_torchrun.compat.breaking import breaking, image_of
from flyte_torchrun.schema.messages import schema_of_release


def mutated(change):
    """The newest released schema with a change."""
    files = descriptor_pb2.FileDescriptorSet.FromString(schema_of_release("1.16.8").serialized)
    change({file.name: file for file in files.file})
    return files.SerializeToString()


def message(files, file, name):
    [found] = [each for each in files[f"flyteidl/plugins/{file}.proto"].message_type if each.name == name]
    return found


def field(files, file, name, of_message):
    [found] = [each for each in message(files, file, of_message).field if each.name == name]
    return found


def rename(files):
    found = field(files, "kubeflow/pytorch", "worker_replicas", "DistributedPyTorchTrainingTask")
    found.name, found.json_name = "workers", "workers"


def remove(files):
    elastic = message(files, "kubeflow/pytorch", "ElasticConfig")
    del elastic.field[4]


def reuse(files):
    field(files, "kubeflow/pytorch", "image", "DistributedPyTorchTrainingReplicaSpec").type = 5
    field(files, "kubeflow/pytorch", "image", "DistributedPyTorchTrainingReplicaSpec").name = "priority"


def rename_enum(files):
    files["flyteidl/plugins/kubeflow/common.proto"].enum_type[0].value[2].name = "CLEANPOD_POLICY_EVERYTHING"


def move(files):
    of_task = files["flyteidl/plugins/kubeflow/pytorch.proto"]
    moved = message(files, "kubeflow/pytorch", "ElasticConfig")
    files["flyteidl/plugins/kubeflow/common.proto"].message_type.add().CopyFrom(moved)
    of_task.message_type.remove(moved)


OLD = "flytekit 1.6.2b1, 1.7.0 to 1.7.1, 1.2.14 to 1.2.17"
V1_WRITERS = (OLD, "flytekit 1.8.0 to 1.16", "Flyte 2 SDK")
V1_WHEELS = ("flyteidl 1.2.10 to 1.12.0", "flyteidl 1.13.0 to 1.16.8")


@pytest.mark.parametrize(
    ("change", "rules", "readers", "writers", "wheels"),
    [
        (rename, {"FIELD_SAME_NAME", "FIELD_SAME_JSON_NAME"}, "1.7.0 to 1.16.8", V1_WRITERS, V1_WHEELS),
        (
            remove,
            {"FIELD_NO_DELETE"},
            "1.6.0 to 1.16.8",
            ("flytekit 1.6.0b1 to 1.6.3, 1.2.12 to 1.2.13", *V1_WRITERS),
            ("flyteidl 1.2.10 to 1.12.0", "flyteidl 1.3.19 to 1.5.0", "flyteidl 1.13.0 to 1.16.8"),
        ),
        (reuse, {"FIELD_SAME_NAME", "FIELD_SAME_TYPE"}, "1.7.0 to 1.16.8", V1_WRITERS, V1_WHEELS),
        (rename_enum, {"ENUM_VALUE_SAME_NAME"}, "1.7.0 to 1.16.8", V1_WRITERS, V1_WHEELS),
        (
            move,
            {"MESSAGE_NO_DELETE"},
            "1.6.0 to 1.16.8",
            ("flytekit 1.6.0b1 to 1.6.3, 1.2.12 to 1.2.13", *V1_WRITERS),
            ("flyteidl 1.2.10 to 1.12.0", "flyteidl 1.3.19 to 1.5.0", "flyteidl 1.13.0 to 1.16.8"),
        ),
    ],
)
def test_a_break_names_who_is_hit(change, rules, readers, writers, wheels):
    found = breaking(mutated(change), "1.16.8")
    assert rules <= {each.rule for each in found}
    for each in found:
        if each.rule in rules:
            assert (each.readers, each.writers, each.wheels) == (readers, writers, wheels), str(each)
            assert each.meaning


def test_the_released_schema_breaks_nothing_and_an_addition_neither():
    def add(files):
        new = message(files, "kubeflow/pytorch", "ElasticConfig").field.add()
        new.name, new.json_name, new.number, new.type, new.label = "rdzv_port", "rdzvPort", 6, 5, 1

    assert breaking(mutated(lambda files: None), "1.16.8") == []
    assert breaking(mutated(add), "1.16.8") == []


def test_a_folder_of_sources_is_an_image_too(tmp_path):
    for package in ("flyteidl/core/tasks", "flyteidl/plugins/common", "flyteidl/plugins/kubeflow/common"):
        file = tmp_path / f"{package}.proto"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f'syntax = "proto3"; package {package.rpartition("/")[0].replace("/", ".")};')
    (tmp_path / "flyteidl" / "service.proto").write_text('syntax = "proto3"; import "not/here.proto";')
    found = breaking(image_of(tmp_path), "1.16.8")
    assert "ENUM_NO_DELETE" in {each.rule for each in found}
    (tmp_path / "flyteidl/plugins/common.proto").write_text('syntax = "proto3"; import "not/here.proto";')
    with pytest.raises(InputError, match=r"buf: flyteidl/plugins/common.proto:1:20:imported file does not exist"):
        image_of(tmp_path)
    (tmp_path / "empty").mkdir()
    for path, words in (("empty", "no .proto file below flyteidl/plugins"), ("none", "none: No such file")):
        with pytest.raises(InputError, match=words):
            image_of(tmp_path / path)


def test_what_is_no_image_is_an_error():
    with pytest.raises(InputError, match="no FileDescriptorSet"):
        breaking(b"\xff\xff\xff", "1.16.8")
    with pytest.raises(InputError, match="no file of flyteidl's PyTorch tasks is in it"):
        breaking(descriptor_pb2.FileDescriptorSet().SerializeToString(), "1.16.8")

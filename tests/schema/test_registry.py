"""The registry's schemas are those of the released wheels."""

import importlib.metadata
import os
import subprocess
import sys

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool

from flyte_torchrun.schema import ReleaseError
from flyte_torchrun.schema.messages import known_schemas, schema_of, schema_of_release

# A wheel of each state, and both ends; all of them with FLYTE_TORCHRUN_ALL_WHEELS=1.
SAMPLED = ["flyteidl-0.17.32", "flyteidl-0.19.18", "flyteidl-1.2.11", "flyteidl-1.5.0", "flyteidl-1.12.0"]
SAMPLED += ["flyteidl-1.13.0", "flyteidl-1.16.8", "flyteidl2-2.0.0a11", "flyteidl2-2.0.53"]


def released(root, tmp_path, names):
    """What scripts/registry.py takes out of the wheels, by name of the release."""
    for name in names:
        distribution, _, number = name.rpartition("-")
        command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", f"{distribution}=={number}"]
        subprocess.run([*command, "--target", tmp_path / name], check=True, cwd=root)
    sys.path.insert(0, str(root / "scripts"))
    try:
        import registry
    finally:
        sys.path.pop(0)
    return {name: registry.descriptor_set(tmp_path / name, name.rpartition("-")[0]) for name in names}


def assert_equal_to_the_registry(found):
    for name, files in found.items():
        assert files.SerializeToString(deterministic=True) == schema_of_release(name).serialized, name


def test_sampled_wheels_have_the_registrys_schemas(root, tmp_path):
    assert_equal_to_the_registry(released(root, tmp_path, SAMPLED))


@pytest.mark.skipif("FLYTE_TORCHRUN_ALL_WHEELS" not in os.environ, reason="325 wheels: set FLYTE_TORCHRUN_ALL_WHEELS")
@pytest.mark.timeout(3600)
def test_all_wheels_have_the_registrys_schemas(root, tmp_path):
    names = [f"{name.rpartition('-')[0]}-{number}" for name, numbers in known_schemas().items() for number in numbers]
    assert_equal_to_the_registry(released(root, tmp_path, names))


def test_the_installed_flyteidl_has_the_schema_of_its_release():
    from flyteidl.plugins.kubeflow import pytorch_pb2

    schema = schema_of_release(importlib.metadata.version("flyteidl"))
    message = schema.payload(1)
    descriptor = pytorch_pb2.DistributedPyTorchTrainingTask.DESCRIPTOR
    assert [field.name for field in message.fields] == [field.name for field in descriptor.fields]


def test_every_schema_is_a_descriptor_set_of_its_own():
    for name in known_schemas():
        pool = descriptor_pool.DescriptorPool()
        for file in descriptor_pb2.FileDescriptorSet.FromString(schema_of(name).serialized).file:
            pool.Add(file)
        for message in schema_of(name).messages:
            assert pool.FindMessageTypeByName(message)


def test_a_release_has_one_schema_and_an_unknown_one_none():
    numbers = [(name.rpartition("-")[0], number) for name, known in known_schemas().items() for number in known]
    assert len(numbers) == len(set(numbers)) > 300
    assert schema_of_release("2.0.53") == schema_of_release("flyteidl2-2.0.53")
    for text in ("1.9.9", "x", "", "flyteidl-2.0.53"):
        with pytest.raises(ReleaseError, match=r"is not known; allowed: releases on PyPI: flyteidl 0\.17\.32 to"):
            schema_of_release(text)

"""The operators' lists with keys are those of their CustomResourceDefinitions."""

import pytest
import yaml

from conformance.programs import DEFINITIONS, is_go_here, module_folder
from flyte_torchrun.schema import operator_of


@pytest.mark.skipif(not is_go_here(), reason="NO GO HERE: the definitions come with the operator's module")
@pytest.mark.parametrize("release", DEFINITIONS)
def test_the_lists_with_keys_are_the_definitions(release):
    module, file = DEFINITIONS[release].argument
    definition = yaml.safe_load((module_folder(module) / file).read_text())
    [version] = definition["spec"]["versions"]
    found = {}

    def walk(node, path):
        if node.get("x-kubernetes-list-type") == "map":
            found[path] = tuple(node["x-kubernetes-list-map-keys"])
        assert node.get("x-kubernetes-list-type") in (None, "map", "atomic")
        for key, child in node.get("properties", {}).items():
            walk(child, f"{path}.{key}")
        if "items" in node:
            walk(node["items"], f"{path}[]")
        if isinstance(node.get("additionalProperties"), dict):
            walk(node["additionalProperties"], f"{path}{{}}")

    walk(version["schema"]["openAPIV3Schema"]["properties"]["spec"], "")
    prefix = ".pytorchReplicaSpecs{}.template.spec."
    assert found == {prefix + path: keys for path, keys in operator_of(release)[0].list_keys}

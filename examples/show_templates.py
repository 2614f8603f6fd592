"""Shows the task templates in a program: `python examples/show_templates.py PROGRAM`.

Each template is printed as YAML, as flytekit would register it, and where it carries a PyTorch payload, decoded again
into the typed helper.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import yaml
from flytekit import PythonFunctionTask
from flytekit.configuration import Image, ImageConfig, SerializationSettings
from flytekit.tools.translator import get_serializable
from google.protobuf.json_format import MessageToDict

from flyte_torchrun.contract import DistributedPyTorchTrainingTask


def main(program: str) -> None:
    image = Image(name="default", fqn="registry.example/training", tag="1")
    settings = SerializationSettings(
        project="demo", domain="development", version="1", image_config=ImageConfig(default_image=image, images=[image])
    )
    spec = spec_from_file_location(Path(program).stem, program)
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    for entity in vars(module).values():
        if not isinstance(entity, PythonFunctionTask):
            continue
        template = get_serializable({}, settings, entity).template.to_flyte_idl()
        print(f"--- {entity.name}")
        print(yaml.safe_dump(MessageToDict(template), sort_keys=False))
        if template.HasField("custom"):
            print(f"decoded: {DistributedPyTorchTrainingTask.from_template(template)}\n")


if __name__ == "__main__":
    main(sys.argv[1])

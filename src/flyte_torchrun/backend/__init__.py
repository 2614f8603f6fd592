"""What each release of Flyte and of the training-operator makes of a task template, without a cluster.

Needs protobuf and flyteidl; PyYAML for `Rendering.to_yaml`. The behaviours are data in `flyte_torchrun.schema`, and
held against the real Go code (`conformance/`).
"""

from flyte_torchrun.backend.operator import Pod
from flyte_torchrun.backend.platform import Overrides, PlatformDefaults
from flyte_torchrun.backend.reader import Note
from flyte_torchrun.backend.render import Refusal, Rendering, as_message, render, render_all

__all__ = ["Note", "Overrides", "PlatformDefaults", "Pod", "Refusal", "Rendering", "as_message", "render", "render_all"]

"""The command: `check` of one file from shell to prompt, and of a package with 5,000 tasks, over all releases."""

import contextlib
import cProfile
import io
import pstats
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from rows import figure, seconds

from flyte_torchrun.cli import main
from flyte_torchrun.compat import templates_in

PACKAGE = Path(__file__).parents[1] / "tests" / "fixtures" / "flytekit-1.16.31.tgz"
COMMAND = str(Path(sys.executable).with_name("flyte-torchrun"))
TASKS = 5000


def package(path, kinds):
    """A package whose tasks differ in name, image tag and arguments, and come in so many kinds of payload."""
    [template] = [each.template for each in templates_in(PACKAGE) if each.name == "tasks.everything"]
    with tarfile.open(path, "w:gz") as tar:
        for index in range(TASKS):
            template.id.name = f"tasks.t{index}"
            template.container.args[:] = ["pyflyte-execute", f"t{index}"]
            template.custom["workerReplicas"]["replicas"] = 1 + index % kinds
            content = template.SerializeToString()
            member = tarfile.TarInfo(f"{index}.pb")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def check(path):
    """The command's time, and its peak memory in MiB."""
    took = seconds(lambda: subprocess.run([COMMAND, "check", path], stdout=subprocess.DEVNULL, check=False))
    return took, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def protobuf_share(path):
    """The share of a check's time within protobuf."""
    profile = cProfile.Profile()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        profile.runcall(main, ["check", str(path)], standalone_mode=False)
    times = pstats.Stats(profile).stats
    of_protobuf = [name for name in times if "google/protobuf" in name[0] or "google._upb" in name[2]]
    return sum(times[name][2] for name in of_protobuf) / sum(entry[2] for entry in times.values())


if __name__ == "__main__":
    print("check over all releases of Flyte and of the operator")
    figure("one file, from shell to prompt", statistics.median(check(PACKAGE)[0] for _ in range(7)), "s", "<= 0.35")
    with tempfile.TemporaryDirectory() as folder:
        for kinds in (100, TASKS):
            path = Path(folder, f"{kinds}.tgz")
            package(path, kinds)
            took, peak = check(path)
            figure(
                f"a package of {TASKS} tasks, {kinds} different payloads", took, "s", "<= 10" if kinds < TASKS else ""
            )
            figure("    its peak memory", peak, "MiB", "<= 300")
        figure("    share of the time within protobuf", protobuf_share(Path(folder, "100.tgz")), "")

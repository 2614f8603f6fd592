"""Builds and asks the programs around the real backend: each release of Flyte's plugin, of the operator, and its CRD.

A release is a folder of `go/` with the go.mod and go.sum that it was released with; the sources beside them are shared.
The programs are kept in `.conformance/` and built again only when their source has changed. Needs Go; modules come by
name from where Go is configured to get them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
BUILT = HERE.parent / ".conformance"


@dataclasses.dataclass(frozen=True)
class Program:
    """One release's program.

    Attributes:
        release: the folder below `go/`, which is also the program's name.
        source: the folder with the shared source.
        tag: the build tag that picks what only this kind of release has.
        argument: the module and the file in it that the program gets as its argument.
    """

    release: str
    source: str
    tag: str = ""
    argument: tuple[str, str] | None = None

    def build(self) -> None:
        """Builds the program, unless it is there.

        Raises:
            RuntimeError: it cannot be built.
        """
        folder = BUILT / self.release
        wanted = self._digest()
        with _locked(folder):
            if (folder / "digest").exists() and (folder / "digest").read_text() == wanted:
                return
            for path in self._files():
                text = path.read_text()
                if self.release.startswith("flyteplugins"):  # before the parts of Flyte moved into one repository
                    text = text.replace('"github.com/flyteorg/flyte/', '"github.com/flyteorg/')
                (folder / path.name).write_text(text)
            _go(folder, "build", "-mod=mod", "-ldflags=-s -w", f"-tags={self.tag}", "-o", "program", ".")
            (folder / "digest").write_text(wanted)

    def ask(self, cases: Iterable[dict]) -> list[dict]:
        """What the program answers to each case, in order.

        Raises:
            RuntimeError: the program failed.
        """
        self.build()
        command = [str(BUILT / self.release / "program")]
        if self.argument:
            command.append(str(module_folder(self.argument[0]) / self.argument[1]))
        text = "".join(json.dumps(case) + "\n" for case in cases)
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{self.release}: exit code {done.returncode}: {done.stderr[-2000:]}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def _files(self) -> list[Path]:
        folders = [HERE / "go" / self.source, HERE / "go" / self.release]
        return [path for folder in folders for path in sorted(folder.iterdir())]

    def _digest(self) -> str:
        version = subprocess.run(["go", "version"], capture_output=True, check=True).stdout
        parts = [version, self.tag.encode(), *(path.read_bytes() for path in self._files())]
        return hashlib.sha256(b"\0".join(parts)).hexdigest()


READERS = {
    "flyteplugins-v1.0.56": Program("flyteplugins-v1.0.56", "reader"),
    "flyteplugins-v1.1.8": Program("flyteplugins-v1.1.8", "reader"),
    "flyteplugins-v1.1.33": Program("flyteplugins-v1.1.33", "reader"),
    "flyte-v1.16.8": Program("flyte-v1.16.8", "reader", "extended"),
}
OPERATORS = {
    "1.5.0": Program("training-operator-v1.5.0", "operator", "operator1.5"),
    "1.7.0": Program("training-operator-v1.7.0", "operator", "operator1.7"),
    "1.8.1": Program("training-operator-v1.8.1", "operator", "operator1.8"),
    "1.9.3": Program("training-operator-v1.9.3", "operator", "operator1.8"),
}
DEFINITIONS = {
    version: Program(
        "apiextensions-v0.31",
        "crd",
        argument=(
            f"github.com/kubeflow/training-operator@v{version}",
            "manifests/base/crds/kubeflow.org_pytorchjobs.yaml",
        ),
    )
    for version in OPERATORS
}


def is_go_here() -> bool:
    """Whether the programs can be built."""
    return shutil.which("go") is not None


def module_folder(module: str) -> Path:
    """Where Go keeps the module's files."""
    return Path(json.loads(_go(HERE, "mod", "download", "-json", module))["Dir"])


def _go(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    done = subprocess.run(["go", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"go {' '.join(arguments)} in {folder}: {done.stderr[-4000:]}")
    return done.stdout


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One build at a time in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    for program in (*READERS.values(), *OPERATORS.values(), DEFINITIONS["1.9.3"]):
        program.build()

"""The commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

try:
    import click
except ModuleNotFoundError:  # pragma: no cover - the command's own libraries are an extra
    raise SystemExit("flyte-torchrun: the command needs its extra: pip install 'flyte-torchrun[cli]'") from None

from flyte_torchrun.cli.errors import BadUse, told
from flyte_torchrun.compat import Report, Verdict, check, diff
from flyte_torchrun.compat.inputs import Found, templates_in

__all__ = ["main"]

_CONFIG, _FLYTE, _OPERATOR = "FLYTE_TORCHRUN_CONFIG", "FLYTE_TORCHRUN_FLYTE", "FLYTE_TORCHRUN_OPERATOR"
_FORMATS = ("text", "json", "sarif", "github")
_VERDICTS = [str(verdict) for verdict in Verdict if verdict is not Verdict.HONOURED]
_SHOWS_PROGRESS_EVERY = 100


class _Group(click.Group):
    """Says what is wrong in one line, also where a pipe is closed."""

    def invoke(self, ctx: click.Context) -> Any:
        """Runs a command."""
        try:
            with told():
                return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(1) from None


def _known_releases(records: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Completes with the releases that begin and end what readers or operators do."""

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
        from flyte_torchrun import schema

        known = dict.fromkeys(text for record in getattr(schema, records) for text in (record.first, record.last))
        return [text for text in known if text.startswith(incomplete)]

    return complete


def _with_platform(default_flyte: str, default_operator: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        flyte = click.option(
            "--flyte",
            default=default_flyte,
            show_default=True,
            envvar=_FLYTE,
            show_envvar=True,
            metavar="RELEASES",
            shell_complete=_known_releases("READERS"),
            help="A release (1.16.8), a series (1.10, 2) or a range ('>=1.6,<1.9') of Flyte.",
        )
        operator = click.option(
            "--operator",
            default=default_operator,
            show_default=True,
            envvar=_OPERATOR,
            show_envvar=True,
            metavar="RELEASES",
            shell_complete=_known_releases("OPERATORS"),
            help="The same of the training-operator.",
        )
        return flyte(operator(function))

    return decorate


_PATH = click.argument("path", metavar="FILE")


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="flyte-torchrun")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    envvar=_CONFIG,
    show_envvar=True,
    help="A YAML file with `flyte:` and `operator:`, the platform to ask about.",
)
@click.pass_context
def main(ctx: click.Context, config: str | None) -> None:
    """Distributed PyTorch on Flyte: what is in a task, who honours it, and what becomes of it.

    FILE is a serialized TaskTemplate, TaskSpec or compiled workflow (.pb), its JSON or YAML, a package of
    `pyflyte package` (.tgz), a folder of these, or - for standard input.
    """
    if config is not None:
        platform = _platform_of(config)
        ctx.default_map = dict.fromkeys(("check", "inspect", "render"), platform)


def _platform_of(path: str) -> dict[str, str]:
    import yaml

    try:
        values = yaml.safe_load(Path(path).read_text())
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise BadUse(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict) or values.keys() - {"flyte", "operator"}:
        raise BadUse(f"{path}: {values!r} is not allowed; allowed: the keys flyte and operator")
    return {key: str(value) for key, value in values.items()}


@main.command("check")
@_PATH
@_with_platform(">=1.0", ">=1.5")
@click.option("--format", "form", type=click.Choice(_FORMATS), default="text", show_default=True)
@click.option("--fail-on", type=click.Choice([*_VERDICTS, "never"]), default="changed", show_default=True)
def check_command(path: str, flyte: str, operator: str, form: str, fail_on: str) -> None:
    """Say which releases honour, change, drop or reject each task.

    Exit code: 0 nothing is found, 1 something at or above --fail-on is, 2 the input cannot be read.

    \b
    flyte-torchrun check flyte-package.tgz --flyte '>=1.10' --operator 1.8
    """
    from flyte_torchrun.cli import formats

    worst = Verdict.HONOURED
    checked: list[formats.Checked] = []
    console = _console()
    for found, report in _checked(path, flyte, operator):
        worst = max(worst, report.verdict)
        if form == "text":
            formats.table(found.source, found.name, report, console)
        else:
            checked.append((found.source, found.name, report))
    if form != "text":
        click.echo(formats.FORMATS[form](checked))
    if fail_on != "never" and worst >= Verdict[fail_on.upper()]:
        sys.exit(1)


def _checked(path: str, flyte: str, operator: str) -> Iterator[tuple[Found, Report]]:
    """Each task with its report; tasks that differ only in what no reader looks at are asked about once."""
    known: dict[Any, Report] = {}
    for found in _progress(_templates(path)):
        key = _what_matters(found.template)
        if key not in known:
            known[key] = check(found.template, flyte=flyte, operator=operator)
        yield found, known[key]


def _what_matters(template: Any) -> tuple[Any, ...]:
    """All of a template that its report can depend on."""
    container, parts = template.container, (template.custom, template.k8s_pod, template.extended_resources)
    return (
        template.type,
        template.task_type_version,
        template.WhichOneof("target"),
        template.HasField("custom"),
        *(part.SerializeToString(deterministic=True) for part in parts),
        container.resources.SerializeToString(deterministic=True),
        bool(container.image),
        tuple(pair.key for pair in container.env),
        tuple(sorted(template.config.items())),
    )


def _templates(path: str) -> Iterator[Found]:
    return templates_in(path, sys.stdin.buffer)


def _progress(found: Iterator[Found]) -> Iterator[Found]:
    """Counts on a terminal that does not get the output itself."""
    if sys.stdout.isatty() or not sys.stderr.isatty():
        yield from found
        return
    from rich.console import Console

    with Console(stderr=True).status("reading") as status:
        for number, each in enumerate(found, 1):
            if number % _SHOWS_PROGRESS_EVERY == 0:
                status.update(f"{number} tasks")
            yield each


def _console() -> Any:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 200, highlight=False, soft_wrap=True)


@main.command("inspect")
@_PATH
@_with_platform(">=1.0", ">=1.5")
def inspect_command(path: str, flyte: str, operator: str) -> None:
    """Show each task of a file: its payload as the typed helper, its version, its writer, and who honours it.

    \b
    flyte-torchrun inspect flyte-package.tgz
    """
    from flyte_torchrun.cli.formats import in_one_line
    from flyte_torchrun.compat.writers import claimed_writer, writer_of
    from flyte_torchrun.contract import ContractError, DistributedPyTorchTrainingTask

    for found, report in _checked(path, flyte, operator):
        template = found.template
        click.echo(f"{found.name} ({found.source}): type {template.type}, version {template.task_type_version}")
        if template.type not in ("pytorch", "python-task") or not template.HasField("custom"):
            continue
        try:
            task = DistributedPyTorchTrainingTask.from_template(template, allow_violations=True)
        except ContractError as error:
            click.echo(f"  unreadable: {error}")
            continue
        writer, certainty = writer_of(template)
        claim = f"; its metadata name {named}" if (named := claimed_writer(template)) else ""
        click.echo(f"  {task!r}\n  written by {writer} ({certainty}){claim}")
        click.echo(f"  {in_one_line(report)}")


@main.command("render")
@_PATH
@_with_platform("1.16.8", "1.9.3")
@click.option("--yaml", "as_yaml", is_flag=True, help="The PyTorchJob, as kubectl apply takes it.")
def render_command(path: str, flyte: str, operator: str, *, as_yaml: bool) -> None:
    """Show the pods that each task becomes on one platform, or who refuses it.

    \b
    flyte-torchrun render task.pb --flyte 1.10 --operator 1.7
    flyte-torchrun render task.pb --yaml | kubectl apply -f -
    """
    from flyte_torchrun.backend import render_all

    for found in _templates(path):
        for rendering in render_all(found.template, flyte=flyte, operator=operator):
            if as_yaml and (rendering.job is not None or rendering.pods):
                click.echo(f"---\n{rendering.to_yaml()}", nl=False)
            elif as_yaml:
                raise BadUse(f"{found.source}: {rendering.refusal}")
            else:
                click.echo(f"{found.name} ({found.source})\n{rendering.to_table()}")


@main.command("diff")
@_PATH
@click.option("--flyte", nargs=2, default=("1.16.8", "1.16.8"), metavar="BEFORE AFTER", help="Releases of Flyte.")
@click.option(
    "--operator", nargs=2, default=("1.9.3", "1.9.3"), metavar="BEFORE AFTER", help="The same of the operator."
)
def diff_command(path: str, flyte: tuple[str, str], operator: tuple[str, str]) -> None:
    """Show what changes for each task between two platforms, field by field.

    \b
    flyte-torchrun diff task.pb --flyte 1.8 1.16.8
    """
    for found in _templates(path):
        click.echo(f"{found.name} ({found.source})")
        changes = [str(change) for change in diff(found.template, flyte=flyte, operator=operator)]
        click.echo("\n".join(f"  {change}" for change in changes or ["nothing changes"]))


@main.command("convert")
@_PATH
@click.option("--target", required=True, metavar="RELEASES", help="The releases that have to read it, such as '>=1.6'.")
@click.option("--output", "-o", required=True, type=click.Path(dir_okay=False), help="Where to write it.")
@click.option("--lossy", is_flag=True, help="Write it, also where a field is lost, and say so.")
def convert_command(path: str, target: str, output: str, *, lossy: bool) -> None:
    """Write the tasks of a file so that all releases of a range read them, or say what would be lost.

    The output is what the input is: a package stays a package, a message a message.
    Exit code: 0 it is written, 1 it is not since something would be lost, 2 the input cannot be read.

    \b
    flyte-torchrun convert flyte-package.tgz --target '>=1.6' -o flyte-package-old.tgz
    """
    from flyte_torchrun.compat.convert import convert

    content, written = convert(path, target, sys.stdin.buffer)
    lost = [(found, finding) for found, findings in written for finding in findings]
    for found, finding in lost:
        click.echo(f"{found.name} ({found.source}): {finding}", err=True)
    if lost and not lossy:
        click.echo(f"{output} is not written, since this would be lost; --lossy writes it all the same", err=True)
        sys.exit(1)
    _write(Path(output), content)


def _write(path: Path, content: bytes) -> None:
    """The whole file or nothing."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise BadUse(f"{path}: cannot be written: {error.strerror or error}") from error


@main.group("schema")
def schema_group() -> None:
    """Released schemas: which release has which messages, and what differs."""


@schema_group.command("list")
def schema_list() -> None:
    """List the states of the schema, with the releases that have each.

    \b
    flyte-torchrun schema list
    """
    from flyte_torchrun.schema.messages import known_schemas, schema_of

    for name, releases in known_schemas().items():
        fields = sum(len(message.fields) for message in schema_of(name).messages.values())
        distribution = name.rpartition("-")[0]
        click.echo(f"{name}: {distribution} {releases[0]} to {releases[-1]}, {len(releases)} releases, {fields} fields")


@schema_group.command("show")
@click.argument("release")
def schema_show(release: str) -> None:
    """Show the messages of a release.

    \b
    flyte-torchrun schema show 1.16.8
    """
    from flyte_torchrun.schema.messages import schema_of_release

    for line in _lines_of(schema_of_release(release)):
        click.echo(line)


@schema_group.command("diff")
@click.argument("before")
@click.argument("after")
def schema_diff(before: str, after: str) -> None:
    """Show what differs between the messages of two releases.

    \b
    flyte-torchrun schema diff 1.5.0 1.13.0
    """
    import difflib

    from flyte_torchrun.schema.messages import schema_of_release

    old, new = (_lines_of(schema_of_release(release)) for release in (before, after))
    lines = list(difflib.unified_diff(old, new, before, after, n=0, lineterm=""))
    click.echo("\n".join(line for line in lines if not line.startswith("@@")) or "no difference")


def _lines_of(schema: Any) -> list[str]:
    lines = []
    for message in schema.messages.values():
        for field in message.fields:
            kind = field.type_name or field.kind
            repeated = "repeated " if field.is_repeated else ""
            deprecated = " [deprecated]" if field.is_deprecated else ""
            lines.append(f"{message.full_name}.{field.name}: {repeated}{kind}{deprecated}")
    for enum in schema.enums.values():
        lines += [f"{enum.full_name}.{name} = {number}" for name, number in enum.numbers.items()]
    return lines


@schema_group.command("breaking")
@click.argument("image", type=click.Path(exists=True))
@click.option("--against", default="1.16.8", show_default=True, metavar="RELEASE", help="The released schema.")
def schema_breaking(image: str, against: str) -> None:
    """Say what a changed schema breaks, and for whom: readers, writers, wheels.

    IMAGE is a folder of .proto files, or a descriptor set as `buf build -o image.binpb` or
    `protoc --include_imports -o image.binpb` makes one.
    Exit code: 0 nothing, 1 something, 2 it cannot be read.

    \b
    flyte-torchrun schema breaking image.binpb --against 1.16.8
    """
    from flyte_torchrun.compat.breaking import breaking, image_of

    found = breaking(image_of(Path(image)), against)
    click.echo("\n".join(map(str, found)) or f"nothing that {against} has is broken")
    sys.exit(bool(found))

"""The command as a shell sees it: output, exit codes, errors in one line, files whole or not at all."""

import io
import json
import os
import pty
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from flyte_torchrun.cli import main

FIXTURES = Path(__file__).parents[1] / "fixtures"
PACKAGE = str(FIXTURES / "flytekit-1.16.31.tgz")
COMMAND = str(Path(sys.executable).with_name("flyte-torchrun"))
TASK = {
    "id": {"name": "train"},
    "type": "pytorch",
    "taskTypeVersion": 1,
    "custom": {"workerReplicas": {"replicas": 2}},
    "container": {"image": "x"},
}


def run(*arguments, **settings):
    return CliRunner().invoke(main, [str(each) for each in arguments], **settings)


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "train.json"
    path.write_text(json.dumps(TASK))
    return path


def all_commands(group=main, path=()):
    for name, command in group.commands.items():
        yield [*path, name], command
        if hasattr(command, "commands"):
            yield from all_commands(command, (*path, name))


def test_each_command_has_help_with_an_example():
    for path, command in all_commands():
        done = run(*path, "--help")
        assert done.exit_code == 0
        if not hasattr(command, "commands"):
            assert f"\n  flyte-torchrun {' '.join(path)}" in done.output


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--flyte", ">=1.10.6,<2", "--operator", "1.9"), 0),
        (("--flyte", "1.10.0", "--operator", "1.9"), 1),
        (("--flyte", "1.10.0", "--operator", "1.9", "--fail-on", "never"), 0),
        (("--flyte", "2.0.7", "--operator", "1.9"), 1),
        (("--flyte", "2.0.7", "--operator", "1.9", "--fail-on", "rejected"), 0),
        (("--flyte", "9"), 2),
        (("--flyte", ">=1.6.x"), 2),
        (("--operator", "0.1"), 2),
        (("--fail-on", "sometimes"), 2),
        (("--format", "xml"), 2),
    ],
)
def test_the_exit_code_tells_what_is_found(task, arguments, code):
    done = run("check", task, *arguments)
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output


def test_advice_counts_where_it_is_asked_for(tmp_path):
    path = tmp_path / "task.json"
    replica = {"replicas": 2, "resources": {"limits": [{"name": "GPU", "value": "1"}]}}
    path.write_text(json.dumps({**TASK, "custom": {"workerReplicas": replica}}))
    platform = ("--flyte", "1.14.1", "--operator", "1.9")
    assert run("check", path, *platform).exit_code == 0
    assert run("check", path, *platform, "--fail-on", "advice").exit_code == 1


def test_json_has_all_that_the_table_shows():
    done = run("check", PACKAGE, "--format", "json", "--operator", "1.9")
    tasks = {each["task"]: each for each in json.loads(done.output)["tasks"]}
    assert list(tasks) == [f"tasks.{name}" for name in ("one_node", "plain", "no_torch", "elastic", "everything")]
    elastic = tasks["tasks.elastic"]
    assert (elastic["verdict"], elastic["readers"]["R10"], elastic["readers"]["R9b"]) == (
        "rejected",
        "dropped",
        "honoured",
    )
    [dropped] = [each for each in elastic["findings"] if each["readers"] == ["R10"]]
    assert dropped == {
        "path": "task",
        "verdict": "dropped",
        "readers": ["R10"],
        "operators": [],
        "releases": "Flyte 2.0.7 to 2.0.23",
        "reason": "the release has no PyTorch plugin: the task runs as one plain pod",
        "mend": "use Flyte 2.0.24 or newer: these releases have no such plugin",
    }


def test_sarif_has_a_result_for_each_finding_and_a_rule_for_each_result():
    sarif = json.loads(run("check", PACKAGE, "--format", "sarif").output)
    [log] = sarif["runs"]
    rules = {rule["id"] for rule in log["tool"]["driver"]["rules"]}
    tasks = json.loads(run("check", PACKAGE, "--format", "json").output)["tasks"]
    assert len(log["results"]) == sum(len(each["findings"]) for each in tasks) > 10
    for result in log["results"]:
        assert result["ruleId"] in rules
        assert result["level"] in ("note", "warning", "error")
        [location] = result["locations"]
        assert location["physicalLocation"]["artifactLocation"]["uri"].startswith(PACKAGE)


def test_annotations_are_one_line_each_and_escaped(tmp_path):
    path = tmp_path / "a,b:c%.json"
    path.write_text(json.dumps(TASK))
    lines = run("check", path, "--flyte", "2.0.7", "--format", "github").output.splitlines()
    [line] = lines
    assert line.startswith(f"::warning file={tmp_path}/a%2Cb%3Ac%25.json,title=train::task: dropped by Flyte 2.0.7")


def test_nothing_found_is_nothing_to_annotate(task):
    assert run("check", task, "--flyte", "1.16.8", "--operator", "1.9", "--format", "github").output == "\n"


def test_the_platform_comes_from_the_line_then_the_environment_then_the_file(task, tmp_path):
    config = tmp_path / "platform.yaml"
    config.write_text("flyte: 2.0.7\noperator: 1.9")

    def reader(*before, env=None, after=()):
        done = run(*before, "check", task, "--format", "json", "--fail-on", "never", *after, env=env or {})
        return list(json.loads(done.output)["tasks"][0]["readers"])

    assert reader("--config", config) == ["R10"]
    assert reader(env={"FLYTE_TORCHRUN_CONFIG": str(config)}) == ["R10"]
    assert reader("--config", config, env={"FLYTE_TORCHRUN_FLYTE": "1.16.8"}) == ["R9b"]
    assert reader("--config", config, env={"FLYTE_TORCHRUN_FLYTE": "1.16.8"}, after=("--flyte", "1.0.0")) == ["R0"]
    assert run("--config", config, "inspect", task).output.endswith("dropped by Flyte 2.0.7 to 2.0.23\n")


@pytest.mark.parametrize("text", ["a: [", "flyte: 1.16\nother: 2", "- 1", "\x00", "flyte: 99"])
def test_a_bad_config_is_one_line(task, tmp_path, text):
    config = tmp_path / "platform.yaml"
    config.write_text(text)
    done = run("--config", config, "check", task)
    assert done.exit_code == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert run("--config", tmp_path / "none.yaml", "check", task).exit_code == 2


@pytest.mark.parametrize("command", ["check", "inspect", "render", "diff", "convert"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.pb", b"\xff\xff"),
        ("a.json", b'{"type": '),
        ("a.yaml", b"a: &x [*x]"),
        ("a.tgz", b"\x1f\x8bno"),
        ("none", None),
    ],
)
def test_what_cannot_be_read_is_one_line_that_names_the_file(tmp_path, command, name, content):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    options = ("--target", "1.16.8", "-o", tmp_path / "out.pb") if command == "convert" else ()
    done = run(command, path, *options)
    assert done.exit_code == 2, done.output
    [line] = done.stderr.strip().splitlines()
    assert line.startswith("Error: ")
    assert str(path) in line
    assert not (tmp_path / "out.pb").exists()


def test_standard_input_is_read():
    content = Path(PACKAGE).read_bytes()
    done = subprocess.run([COMMAND, "inspect", "-"], input=content, capture_output=True, check=True)
    assert done.stdout.count(b"standard input:") == 5
    done = subprocess.run([COMMAND, "check", "-"], input=json.dumps(TASK).encode(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (1, b"")
    assert done.stdout.startswith(b"train (standard input): rejected")


def test_inspect_shows_the_helper_the_writer_and_who_honours_it(task):
    assert run("inspect", task).output.splitlines() == [
        f"train ({task}): type pytorch, version 1",
        "  DistributedPyTorchTrainingTask(worker_replicas=ReplicaSpec(replicas=2))",
        "  written by no released SDK: flytekit writes `resources` for every replica of PyTorch (likely)",
        "  honoured by Flyte 1.10.6 to 1.16.8, 2.0.24 to 2.0.43; dropped by Flyte 2.0.7 to 2.0.23; "
        "rejected by Flyte 1.0.0 to 1.10.6-b0",
    ]


def test_inspect_says_which_payload_cannot_be_read(tmp_path):
    path = tmp_path / "task.json"
    path.write_text(json.dumps({**TASK, "custom": {"workerReplicas": {"replicas": "two"}}}))
    done = run("inspect", path)
    assert done.exit_code == 0
    assert "unreadable: worker_replicas.replicas: 'two' is not allowed" in done.output


def test_render_writes_what_kubectl_takes(task):
    job = yaml.safe_load(run("render", task, "--yaml").output)
    assert (job["kind"], job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"]) == ("PyTorchJob", 2)
    done = run("render", task, "--yaml", "--flyte", "1.5.0")
    assert done.exit_code == 2
    assert "number of worker should be more then 0" in done.stderr
    assert "execution-n0-0-worker-1" in run("render", task).output


def test_diff_says_what_changes_and_that_nothing_does(task):
    assert "nothing changes" in run("diff", task).output
    assert "refusal" in run("diff", task, "--flyte", "1.5.0", "1.16.8").output


def test_a_file_is_written_whole_or_not_at_all(task, tmp_path):
    output = tmp_path / "new.json"
    value = {
        **TASK,
        "custom": {**TASK["custom"], "runPolicy": {"backoffLimit": 2}},
    }  # which Flyte before 1.7 has no place for
    task.write_text(json.dumps(value))
    assert run("convert", task, "--target", ">=1.6", "-o", output).exit_code == 1
    assert not output.exists()
    assert run("convert", task, "--target", ">=1.6", "-o", output, "--lossy").exit_code == 0
    assert json.loads(output.read_text()) == value
    assert output.stat().st_mode & 0o777 == task.stat().st_mode & 0o777
    kept = output.read_bytes()
    assert run("convert", task, "--target", "9", "-o", output).exit_code == 2
    assert output.read_bytes() == kept
    done = run("convert", task, "--target", "1.16.8", "-o", tmp_path / "no" / "new.json")
    assert (done.exit_code, "cannot be written" in done.stderr) == (2, True)
    (tmp_path / "folder").mkdir()
    assert run("convert", task, "--target", "1.16.8", "-o", tmp_path / "folder").exit_code == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "new.json", "train.json"]


def test_a_closed_pipe_is_no_error():
    line = f"set -o pipefail; {COMMAND} check {PACKAGE} --format json | head -c 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith("{")


def on_terminal(*command, stdout=None):
    """Runs with standard error on a terminal, and standard output too unless it is given."""
    main_end, other = pty.openpty()
    process = subprocess.Popen(command, stdout=stdout or other, stderr=other, stdin=subprocess.DEVNULL)
    os.close(other)
    shown = b""
    while True:
        try:
            part = os.read(main_end, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    os.close(main_end)
    process.wait()
    return shown


def test_colours_are_for_terminals_only(task):
    assert "\x1b[" not in run("check", task).output
    done = subprocess.run([COMMAND, "check", task], capture_output=True, check=False)
    assert b"\x1b[" not in done.stdout
    assert b"\x1b[" in on_terminal(COMMAND, "check", str(task))


def test_many_tasks_are_counted_on_a_terminal(tmp_path):
    with tarfile.open(tmp_path / "many.tgz", "w:gz") as package:
        for index in range(450):
            content = json.dumps({**TASK, "id": {"name": f"train{index}"}}).encode()
            member = tarfile.TarInfo(f"{index}.json")
            member.size = len(content)
            package.addfile(member, io.BytesIO(content))
    with (tmp_path / "out").open("wb") as out:
        shown = on_terminal(COMMAND, "check", str(tmp_path / "many.tgz"), stdout=out)
    assert b"tasks" in shown
    assert (tmp_path / "out").read_text().count("): rejected") == 450


def test_the_shell_completes_commands_and_releases():
    def complete(words, index):
        env = {**os.environ, "_FLYTE_TORCHRUN_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(index)}
        return subprocess.run([COMMAND], env=env, capture_output=True, text=True, check=True).stdout.split()

    assert complete("flyte-torchrun co", 1) == ["plain,convert"]
    assert "plain,1.16.8" in complete("flyte-torchrun check x --flyte 1.16", 4)


def test_schema_lists_shows_and_compares():
    assert len(run("schema", "list").output.splitlines()) == 7
    assert "RunPolicy.backoff_limit: int32" in run("schema", "show", "1.16.8").output
    assert run("schema", "diff", "1.16.7", "1.16.8").output == "no difference\n"
    for arguments in (("show", "0.1"), ("diff", "1.16.8", "x")):
        done = run("schema", *arguments)
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)


def test_schema_breaking_has_exit_codes(tmp_path):
    from flyte_torchrun.schema.messages import schema_of_release

    image = tmp_path / "image.binpb"
    image.write_bytes(schema_of_release("1.16.8").serialized)
    assert run("schema", "breaking", image).output == "nothing that 1.16.8 has is broken\n"
    image.write_bytes(schema_of_release("1.12.0").serialized)
    done = run("schema", "breaking", image, "--against", "1.16.8")
    assert done.exit_code == 1
    assert done.output.startswith('FILE_NO_DELETE: Previously present file "flyteidl/plugins/common.proto" was deleted')
    assert run("schema", "breaking", image, "--against", "7").exit_code == 2
    image.write_bytes(b"\xff")
    assert run("schema", "breaking", image).exit_code == 2


def test_neither_flytekit_nor_torch_nor_grpc_is_imported(task):
    program = """
import sys
from flyte_torchrun.cli import main
try:
    main(["check", sys.argv[1]], standalone_mode=False)
except SystemExit:
    pass
print(sorted(sys.modules.keys() & {"flyte", "flytekit", "grpc", "torch"}))
"""
    done = subprocess.run([sys.executable, "-c", program, str(task)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"

"""Local runs through the real SDK: every run has its ranks."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import flyte
import flyte.errors
import pytest
import torch
from flyte.io import Dir, File

HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def training():
    sys.path.insert(0, str(HERE))
    import training as module

    flyte.init()
    yield module
    sys.path.remove(str(HERE))


def result(run):
    outputs = tuple(run.outputs())
    return outputs[0] if len(outputs) == 1 else outputs


@pytest.mark.parametrize("task", ["asynchronous", "synchronous"])
def test_positional_and_keyword_arguments_reach_all_ranks(training, task):
    task = getattr(training, task)
    assert result(flyte.run(task, 3)) == "w 6.0 of 2"
    assert result(flyte.run(task, 3, "v")) == "v 6.0 of 2"
    assert result(flyte.run(task, x=3, word="u")) == "u 6.0 of 2"
    assert result(flyte.with_runcontext(mode="local").run(task, 4)) == "w 8.0 of 2"


@pytest.mark.parametrize("task", ["spawned", "forked"])
def test_each_start_method_has_the_context(training, task):
    assert result(flyte.run(getattr(training, task), 3)) == "6.0 local"


def test_all_nodes_run_here(training):
    assert result(flyte.run(training.over_two_nodes, 3)) == "rank 0: 12.0"


def test_values_of_every_kind_come_and_go(training):
    settings, model, tensor = result(
        flyte.run(training.kinds, training.Settings(0.5, ["a"]), training.Model(layers=1), torch.zeros(3))
    )
    assert (settings, model) == (training.Settings(1.0, ["a", "b"]), training.Model(layers=2))
    assert torch.equal(tensor, torch.ones(3))


def test_files_and_folders_come_and_go(training, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("text")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a")
    file, folder = result(
        flyte.run(training.files, File(path=str(tmp_path / "in.txt")), Dir(path=str(tmp_path / "in")))
    )
    assert Path(file.path).read_text() == "text ['a.txt']"
    assert (Path(folder.path) / "out.txt").read_text() == "text ['a.txt']"


def test_the_context_is_that_of_the_task(training, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_SECRET", "hidden")
    run = flyte.with_runcontext(mode="local", custom_context={"team": "a"}, raw_data_path=str(tmp_path / "raw")).run(
        training.context, 1
    )
    seen = result(run)
    assert seen["custom"] == "{'team': 'a'}"
    assert seen["raw"].startswith(str(tmp_path / "raw"))
    assert seen["secret"] == "hidden"
    assert seen["run"]
    assert seen["action"]
    assert seen["group"] == "night"


def test_rank_zeros_report_and_the_timeline_are_in_the_tasks_report(training):
    folder = Path(result(flyte.run(training.reporting, 5)))
    [report] = folder.rglob("report.html")
    text = report.read_text()
    assert "seen 5" in text
    assert ">rank 0</li>" in text
    assert "rank 1</li>" not in text
    assert ">Launch</li>" in text
    assert "timeline of the launch" in text


def test_a_ranks_own_exception_is_the_runs(training):
    with pytest.raises(flyte.errors.RuntimeUserError, match=r"^7 is too much$") as caught:
        flyte.run(training.failing, 7)
    assert caught.value.code == "ValueError"


def test_a_restart_is_the_same_for_all_ranks(training):
    assert result(flyte.run(training.restarted, 1)) == "attempt 1"


def test_a_failed_task_is_tried_again_unless_its_error_says_no(training, tmp_path):
    assert result(flyte.run(training.third_time, str(tmp_path))) == 2
    with pytest.raises(flyte.errors.RuntimeUserError, match="never 3"):
        flyte.run(training.not_again, 3)


def test_a_running_event_loop_goes_on_meanwhile(training):
    async def both():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        ticking = asyncio.create_task(tick())
        run = await flyte.run.aio(training.asynchronous, 3)
        ticking.cancel()
        return result(run), ticks

    value, ticks = asyncio.run(both())
    assert value == "w 6.0 of 2"
    assert ticks >= 1


def test_a_script_runs_its_own_task(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, flyte\n"
        "from flyte_torchrun.flyte import Elastic\n"
        "env = flyte.TaskEnvironment(name='e', plugin_config=Elastic(nnodes=1, nproc_per_node=2, max_restarts=0))\n"
        "@env.task\n"
        "def train(x: int) -> str:\n"
        "    return f'{x} {os.environ[\"WORLD_SIZE\"]}'\n"
        "if __name__ == '__main__':\n"
        "    flyte.init()\n"
        "    print(flyte.run(train, 4).outputs())\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert re.search(r"4 2", done.stdout)


def test_importing_loads_no_torch():
    code = "import sys, flyte_torchrun.flyte; print('torch' in sys.modules, 'flytekit' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]

"""What ranks print: shown with the rank's name, kept in files, never in the way."""

import contextlib
import io
import os
import re
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flyte_torchrun.launch import LaunchPlan, RankError, launch
from flyte_torchrun.launch.output import ProcessOutput


def plan(start_method="forkserver", ranks=2, **settings):
    return LaunchPlan(nproc_per_node=ranks, start_method=start_method, shutdown_grace=2.0, **settings)


def test_lines_of_many_ranks_stay_whole(capfd):
    def speak():
        for number in range(500):
            print(f"{os.environ['RANK']} says {number} " + "x" * (number % 97))

    launch(plan(ranks=4), speak)
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == sorted(
        f"[rank {rank}] {rank} says {number} " + "x" * (number % 97) for rank in range(4) for number in range(500)
    )
    for rank in range(4):
        own = [line for line in lines if line.startswith(f"[rank {rank}]")]
        assert [int(line.split()[4]) for line in own] == list(range(500))


def test_what_native_code_and_child_processes_print_is_prefixed_too(capfd):
    def speak():
        os.write(1, b"from below\n")
        os.write(2, b"an error \xff from below\n")
        os.system("echo from a child; echo and its error >&2")
        print("without an end", end="")

    launch(plan(ranks=1), speak)
    output, errors = capfd.readouterr()
    assert output == "[rank 0] from below\n[rank 0] from a child\n[rank 0] without an end\n"
    assert errors.splitlines() == ["[rank 0] an error � from below", "[rank 0] and its error"]


@pytest.mark.parametrize("start_method", ["forkserver", "fork", "spawn"])
def test_output_goes_to_the_stream_that_the_program_has_now(start_method):
    stream = io.StringIO()  # without a file descriptor, as in a notebook
    with contextlib.redirect_stdout(stream):
        launch(plan(start_method, ranks=1), lambda: print("hello"))
    assert stream.getvalue() == "[rank 0] hello\n"


def test_the_last_lines_of_a_killed_rank_are_shown(capfd):
    def die():
        print("the last words")
        os.kill(os.getpid(), 9)

    with pytest.raises(RankError, match="SIGKILL"):
        launch(plan(ranks=1), die)
    assert capfd.readouterr().out == "[rank 0] the last words\n"


def test_log_ranks_chooses_what_is_shown_and_log_dir_keeps_all_of_every_attempt(capfd, tmp_path):
    def speak():
        attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
        print(f"attempt {attempt} of {rank}")
        print("a warning", file=sys.stderr)
        torch.distributed.init_process_group("gloo")
        torch.distributed.barrier()
        if attempt == "0" and rank == "1":
            raise ValueError("once")
        torch.distributed.barrier()

    launch(plan(ranks=3, log_ranks=(1,), log_dir=str(tmp_path / "logs"), max_restarts=1), speak)
    output = capfd.readouterr().out
    assert output == "[rank 1] attempt 0 of 1\n[rank 1] attempt 1 of 1\n"
    kept = {str(path.relative_to(tmp_path / "logs")): path.read_text() for path in tmp_path.rglob("*.log")}
    assert {name: text for name, text in kept.items() if name.endswith("stdout.log")} == {
        f"attempt_{attempt}/rank_{rank}/stdout.log": f"attempt {attempt} of {rank}\n"
        for attempt in range(2)
        for rank in range(3)
    }
    errors = {name: text for name, text in kept.items() if name.endswith("stderr.log")}
    assert len(errors) == 6
    assert all(text.startswith("a warning\n") for text in errors.values())


FLOOD = """
import os, resource, sys
from flyte_torchrun.launch import LaunchPlan, launch
def flood():
    line = "x" * 99 + "\\n"
    for _ in range(10_000):
        sys.stdout.write(line * 100)
launch(LaunchPlan(nproc_per_node=1), print)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
launch(LaunchPlan(nproc_per_node=1), flood)
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
print(f"grown by {grown} MiB", file=sys.stderr)
"""


def test_a_hundred_megabytes_come_through_in_bounded_memory(program, tmp_path):
    with (tmp_path / "out").open("wb") as out:
        process = program(FLOOD, stdout=out)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert (tmp_path / "out").stat().st_size == 1_000_000 * (100 + len("[rank 0] ")) + len("[rank 0] \n")
    assert float(re.search(r"grown by (\S+) MiB", errors).group(1)) < 32


def test_a_reader_that_goes_away_ends_no_training(program):
    text = """
import sys
from flyte_torchrun.launch import LaunchPlan, launch
def speak():
    for number in range(100_000):
        print(number)
    return number
print("done", launch(LaunchPlan(nproc_per_node=2), speak).value, file=sys.stderr)
sys.stdout = None
"""
    process = program(text)
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    assert "done 99999" in process.communicate(timeout=120)[1]


class Shown:
    """A ProcessOutput that is written to piece by piece, and what it shows."""

    def __init__(self, folder, prefix):
        self.output = ProcessOutput(folder / "rank", prefix)
        self.stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")

    def feed(self, pieces):
        with contextlib.redirect_stdout(self.stream):
            descriptor = os.open(self.output.pipes[0], os.O_WRONLY)
            for piece in pieces:
                os.write(descriptor, piece)
                self.output.take()
            os.close(descriptor)
            self.output.close()
        self.stream.flush()
        return self.stream.buffer.getvalue()


texts = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b" ", b"\xff"]), max_size=30).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(texts, st.data())
def test_however_a_text_is_cut_it_is_shown_the_same(tmp_path_factory, text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True) if a < b]
    shown = Shown(tmp_path_factory.mktemp("cut"), "> ").feed(pieces)
    assert shown == b"".join(b"> " + line for line in re.findall(rb"[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+$", text)) + (
        b"\n" if text and text[-1:] != b"\n" else b""
    )


def test_a_line_without_end_is_shown_in_pieces(tmp_path):
    shown = Shown(tmp_path, "> ").feed([b"x" * 50_000] * 4)
    assert shown.replace(b"\n", b"").replace(b"> ", b"") == b"x" * 200_000
    assert max(map(len, shown.split(b"\n"))) < 150_000


def test_without_a_prefix_everything_is_passed_on_as_it_is(tmp_path):
    assert Shown(tmp_path, "").feed([b"a\nb", b"\r", b"c"]) == b"a\nb\rc"

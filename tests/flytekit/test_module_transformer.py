"""Reading modules: what the program knows can be read, what the file brings is never run."""

import os
import subprocess
import sys

import pytest
import torch
from flytekit.core.type_engine import TypeEngine

from flyte_torchrun.flytekit import Elastic  # noqa: F401  (registers the tasks, as a program does)
from flyte_torchrun.flytekit.module_transformer import install_module_transformer, load_module


class Network(torch.nn.Module):
    """A module of the program's own, with the layers whose state is not only tensors."""

    def __init__(self, made_by="the constructor"):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(2, 3),
            torch.nn.LSTM(3, 3),
            torch.nn.BatchNorm1d(3),
            torch.nn.TransformerEncoderLayer(8, 2, activation="gelu"),
            torch.nn.TransformerEncoderLayer(8, 2, activation="relu"),
        )
        self.labels = {1: ["a"], 2: ("b", torch.float16, torch.Size([2]))}
        self.made_by = made_by


class RunsACommand(torch.nn.Module):
    def __reduce__(self):
        return os.system, (f"touch {os.environ['EVIL_MARK']}",)


class AsksForItsConstructor(torch.nn.Module):
    def __init__(self, path=None):
        super().__init__()
        if path:
            open(path, "w").close()

    def __reduce__(self):
        return AsksForItsConstructor, (os.environ["EVIL_MARK"],)


@pytest.fixture
def mark(tmp_path, monkeypatch):
    monkeypatch.setenv("EVIL_MARK", str(tmp_path / "mark"))
    return tmp_path / "mark"


def saved(module, tmp_path):
    path = str(tmp_path / "module.pt")
    torch.save(module, path)
    return path


def test_a_module_comes_back_whole(tmp_path):
    module = Network(made_by="somebody")
    loaded = load_module(saved(module, tmp_path), "cpu")
    assert type(loaded) is Network
    assert loaded.labels == module.labels
    assert loaded.made_by == "somebody"
    assert str(loaded) == str(module)
    for name, tensor in module.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def test_a_function_that_the_file_names_is_not_called(tmp_path, mark):
    path = saved(RunsACommand(), tmp_path)
    with pytest.raises(ValueError, match=r"names posix\.system, which is not allowed"):
        load_module(path, "cpu")
    assert not mark.exists()


def test_a_constructor_is_not_called_with_the_files_arguments(tmp_path, mark):
    assert type(load_module(saved(AsksForItsConstructor(), tmp_path), "cpu")) is AsksForItsConstructor
    assert not mark.exists()


def test_a_class_that_carries_code_is_refused(tmp_path):
    traced = torch.fx.symbolic_trace(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"torch\.fx"):
        load_module(saved(traced, tmp_path), "cpu")


def test_a_class_of_a_module_that_is_not_loaded_is_not_imported(tmp_path):
    (tmp_path / "stranger.py").write_text("import torch\nclass Net(torch.nn.Module):\n    pass\n")
    script = "import sys, torch, stranger; torch.save(stranger.Net(), sys.argv[1])"
    path = tmp_path / "module.pt"
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, path],
        check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    with pytest.raises(ValueError, match=r"names stranger\.Net, which is not allowed"):
        load_module(str(path), "cpu")
    assert "stranger" not in sys.modules


@pytest.mark.parametrize("content", [b"", b"not a zip file", b"PK\x03\x04truncated"])
def test_a_file_that_torch_did_not_write_is_named(tmp_path, content):
    path = tmp_path / "module.pt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"module\.pt"):
        load_module(str(path), "cpu")


def test_what_is_no_module_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected a torch\.nn\.Module"):
        load_module(saved({"weight": torch.ones(2)}, tmp_path), "cpu")


def test_installing_twice_changes_nothing():
    install_module_transformer()
    first = TypeEngine.get_transformer(torch.nn.Module)
    install_module_transformer()
    assert TypeEngine.get_transformer(torch.nn.Module) is first
    assert first.runs_no_code_from_the_file
    assert TypeEngine.get_transformer(torch.nn.Linear) is first

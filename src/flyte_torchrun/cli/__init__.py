"""The command `flyte-torchrun`: what is in a file, who honours it, what becomes of it, what an upgrade changes."""

from flyte_torchrun.cli.main import main

__all__ = ["main"]

"""The README's examples do what they say."""

import re
import subprocess
import sys


def blocks(root):
    """Each Python block of the README, with what its comments say that it prints."""
    found = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    return [(code, re.findall(r"print\(.*\)  # (.*)", code)) for code in found]


def test_the_examples_run_and_print_what_the_comments_say(root, tmp_path):
    examples = blocks(root)
    assert [len(printed) for _, printed in examples] == [1, 0, 4, 3]
    for code, printed in examples:
        (tmp_path / "example.py").write_text(code)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "example.py"], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        assert [line for line in done.stdout.splitlines() if not line.startswith("[rank ")] == printed


def test_the_commands_that_the_documents_name_exist(root):
    for document in ("README.md", "CONTRIBUTING.md"):
        for command in re.findall(r"scripts/[a-z]+\b(?!\.)", (root / document).read_text()):
            assert (root / command).stat().st_mode & 0o111, command

"""samekey completion: a script that the shell takes, and answers to what it asks."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell, name):
    result = shell("completion", name)

    assert result.exit_code == 0
    assert "_SAMEKEY_COMPLETE" in result.stdout
    printed = json.loads(shell("completion", name, "--json").stdout)
    assert (printed["v"], printed["shell"]) == (1, name)
    assert printed["script"].strip() == result.stdout.strip()


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_a_shell_that_is_here_takes_its_script(shell, name, tmp_path):
    found = shutil.which(name)
    if found is None:
        return  # the script of each shell is read above; this one is not installed here
    path = tmp_path / "script"
    path.write_text(shell("completion", name).stdout)

    assert subprocess.run([found, "-n", str(path)], capture_output=True, timeout=60).returncode == 0


def test_commands_and_options_are_completed(shell):
    def completed(words, at):
        asked = {"_SAMEKEY_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        return shell.process(env={**shell.environment, **asked}).stdout

    assert "plain,resolve" in completed("samekey res", 1)
    assert "plain,--waiting" in completed("samekey ls --wa", 2)
    assert "plain,in_doubt" in completed("samekey ls --state in", 3)


@pytest.mark.parametrize("wrong", [[], ["powershell"]])
def test_bad_input(shell, wrong):
    assert shell("completion", *wrong).exit_code == 2

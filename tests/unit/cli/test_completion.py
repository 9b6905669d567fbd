"""Checks: the scripts of ``cometmq completion`` complete commands, options and choices."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.command_line import run

CASES = {
    "cometmq to": "topic",
    "cometmq topic cr": "create",
    "cometmq topic create orders --que": "--queues",
    "cometmq cat store --form": "--format",
    "cometmq cat store --format ": "text json raw",
    "cometmq cat store -f j": "json",
    "cometmq completion ": "bash zsh fish",
    "cometmq put topic cr": "",
    "cometmq --vers": "--version",
    "cometmq nosuch --hel": "--help",
}
"""A line up to the key press, and the candidates."""


def script_for(shell: str, tmp_path: Path) -> Path:
    printed = run("completion", shell)
    assert (printed.code, printed.err) == (0, "")
    script = tmp_path / f"cometmq.{shell}"
    script.write_text(printed.out, encoding="utf-8")
    return script


def words_of(line: str) -> str:
    return " ".join(f"'{word}'" for word in line.split(" "))


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes(tmp_path: Path) -> None:
    calls = "\n".join(
        f'COMP_WORDS=({words_of(line)}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _cometmq; echo "${{COMPREPLY[*]}}"'
        for line in CASES
    )
    program = f"set -u; source {script_for('bash', tmp_path)}; complete -p cometmq\n{calls}"
    ended = subprocess.run(["bash", "--norc", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stderr == ""
    assert ended.stdout.splitlines() == ["complete -o default -F _cometmq cometmq", *CASES.values()]


def test_scripts_of_zsh_and_fish(tmp_path: Path) -> None:
    """zsh runs bash's script; fish has one of its own."""
    bash = script_for("bash", tmp_path).read_text(encoding="utf-8").splitlines()
    zsh = script_for("zsh", tmp_path).read_text(encoding="utf-8").splitlines()
    assert zsh[0] == "autoload -U +X bashcompinit && bashcompinit"
    assert zsh[2:] == bash[1:]
    fish = script_for("fish", tmp_path).read_text(encoding="utf-8").splitlines()
    here = r"complete -c cometmq -n '__cometmq_found \' cat\''"
    help_text = "text: a line per message; json: JSON lines; raw: bodies."
    assert f"{here} -l format -s f -x -a 'text json raw' -d '{help_text}'" in fish
    assert f"{here} -l follow -s F -d 'Wait for new messages until Ctrl-C.'" in fish


def test_unknown_shell_is_a_usage_error() -> None:
    assert run("completion", "tcsh").code == 2

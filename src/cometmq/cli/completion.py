"""``cometmq completion``: scripts that complete commands, options and choices in shells, made from the parsers.

A script has all words in it, so that no key press starts Python. Create it again after an upgrade.
"""

from __future__ import annotations

import enum
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer
import typer.main

__all__ = ["completion"]


class _Shell(enum.Enum):
    """The shells that have a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[_Shell, typer.Argument(metavar="bash|zsh|fish", help="Shell that runs the script.")],
) -> None:
    """Print a script that completes commands, options and choices with the Tab key.

    File names are completed elsewhere. Load the script at the start of the shell, or keep it in the shell's folder of
    completions and create it again after an upgrade.

    \b
    Examples:
      eval "$(cometmq completion bash)"      # in ~/.bashrc
      eval "$(cometmq completion zsh)"       # in ~/.zshrc, after compinit
      cometmq completion fish > ~/.config/fish/completions/cometmq.fish
    """
    from cometmq.cli import app

    commands = list(_commands_below((), typer.main.get_command(app)))
    typer.echo(_fish(commands) if shell is _Shell.FISH else _bash(commands, for_zsh=shell is _Shell.ZSH), nl=False)


@dataclass(frozen=True, slots=True)
class _Option:
    """An option: its spellings, whether a value follows, and the values that it has if they are known."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Command:
    """A command or a group of them: its words, as on the command line, and its options."""

    path: tuple[str, ...]
    help: str
    subcommands: tuple[str, ...]
    options: tuple[_Option, ...]
    choices: tuple[str, ...]
    """Of the first argument."""

    @property
    def key(self) -> str:
        """The words as the scripts compare them: each behind a space."""
        return "".join(f" {word}" for word in self.path)


def _commands_below(path: tuple[str, ...], parser: Any) -> Iterator[_Command]:
    """Yield a parser and all parsers below it, but for hidden ones."""
    below = {name: command for name, command in getattr(parser, "commands", {}).items() if not command.hidden}
    parameters = [one for one in parser.params if not getattr(one, "hidden", False)]
    yield _Command(
        path,
        parser.get_short_help_str(60),
        tuple(below),
        (*(_option(one) for one in parameters if one.param_type_name == "option"), _HELP),
        next((_choices(one) for one in parameters if one.param_type_name == "argument"), ()),
    )
    for name, command in below.items():
        yield from _commands_below((*path, name), command)


_HELP = _Option(("--help",), "Show this message and exit.", False, ())


def _option(parameter: Any) -> _Option:
    is_flag = parameter.is_flag or parameter.count
    names = (*parameter.opts, *parameter.secondary_opts)
    return _Option(names, parameter.help or "", not is_flag, () if is_flag else _choices(parameter))


def _choices(parameter: Any) -> tuple[str, ...]:
    """Return the values that a parameter is one of. typer keeps its annotation; older versions, its choices."""
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    for one in (kind, *typing.get_args(kind)):
        if isinstance(one, type) and issubclass(one, enum.Enum):
            return tuple(str(member.value) for member in one)
    return tuple(map(str, getattr(getattr(parameter, "type", None), "choices", ())))


_BASH = """\
# Completion of cometmq for {shell}, made by: cometmq completion {shell}
_cometmq() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" found="" word words=""
    for ((word = 1; word < COMP_CWORD; word++)); do
        case "$found ${{COMP_WORDS[word]}}" in
{paths}
                found="$found ${{COMP_WORDS[word]}}" ;;
        esac
    done
    COMPREPLY=()
    case "$found $before" in
{values}
        *)
            case "$found" in
{words}
            esac ;;
    esac
    # shellcheck disable=SC2207
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _cometmq cometmq
"""


def _bash(commands: list[_Command], *, for_zsh: bool) -> str:
    """Return the script for bash; zsh runs it by its own emulation of ``complete``."""
    paths = "|\\\n".join(f'            "{command.key}"' for command in commands if command.path)
    values = [
        f'        {"|".join(_quoted(command.key, n) for n in option.names)}) words="{" ".join(option.choices)}" ;;'
        for command in commands
        for option in command.options
        if option.takes_value
    ]
    words = [
        f'                "{command.key}") case "$current" in\n'
        f'                    -*) words="{" ".join(name for option in command.options for name in option.names)}" ;;\n'
        f'                    *) words="{" ".join(command.subcommands or command.choices)}" ;; esac ;;'
        for command in commands
    ]
    script = _BASH.format(
        shell="zsh" if for_zsh else "bash", paths=f"{paths})", values="\n".join(values), words="\n".join(words)
    )
    return f"autoload -U +X bashcompinit && bashcompinit\n{script}" if for_zsh else script


def _quoted(key: str, option: str) -> str:
    return f'"{key} {option}"'


_FISH = """\
# Completion of cometmq for fish, made by: cometmq completion fish
function __cometmq_found
    set -l found ""
    for word in (commandline -opc)[2..-1]
        if contains -- "$found $word" {paths}
            set found "$found $word"
        end
    end
    test "$found" = "$argv[1]"
end
"""


def _fish(commands: list[_Command]) -> str:
    lines = [_FISH.format(paths=" ".join(_fish_text(command.key) for command in commands if command.path))]
    helps = {command.key: command.help for command in commands}
    for command in commands:
        here = f"complete -c cometmq -n {_fish_text(f'__cometmq_found {_fish_text(command.key)}')}"
        lines.extend(
            f"{here} -f -a {name} -d {_fish_text(helps[f'{command.key} {name}'])}\n" for name in command.subcommands
        )
        if command.choices:
            lines.append(f"{here} -f -a {_fish_text(' '.join(command.choices))}\n")
        for option in command.options:
            spelled = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            value = f" -x -a {_fish_text(' '.join(option.choices))}" if option.choices else " -r" * option.takes_value
            lines.append(f"{here} {spelled}{value} -d {_fish_text(option.help)}\n")
    return "".join(lines)


def _fish_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"

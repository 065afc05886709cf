"""`ctxmix completion`: scripts for bash, zsh and fish, read off the parser."""

from __future__ import annotations

import argparse
from argparse import Namespace
from dataclasses import dataclass

from ctxmix_hf.bundled import BUNDLED
from ctxmix_hf.catalogue import list_methods
from ctxmix_hf.cli.console import Console
from ctxmix_hf.cli.parser import build_parser


@dataclass(frozen=True)
class Flag:
    """An option with what can follow it: words, "file" or nothing known."""

    name: str
    help: str
    values: tuple[str, ...] | None  # None: takes no value
    file: bool = False


@dataclass(frozen=True)
class CommandEntry:
    name: str
    help: str
    flags: tuple[Flag, ...]
    words: tuple[str, ...]  # of the first positional argument


def run(args: Namespace, console: Console) -> None:
    console.say({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](_entries()))


def _entries() -> list[CommandEntry]:
    parser = build_parser()
    (commands,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    helps = {action.dest: action.help or "" for action in commands._choices_actions}
    methods = tuple(info.name for info in list_methods())
    made = []
    for name, sub in commands.choices.items():
        flags = tuple(_flag(a, methods) for a in sub._actions if a.option_strings)
        words = next(
            (tuple(a.choices) for a in sub._actions if not a.option_strings and a.choices), ()
        )
        made.append(CommandEntry(name, helps[name], flags, methods if name == "methods" else words))
    return made


def _flag(action: argparse.Action, methods: tuple[str, ...]) -> Flag:
    name = action.option_strings[-1]
    if action.nargs == 0:
        return Flag(name, action.help or "", None)
    values = tuple(map(str, action.choices or ()))
    if name in ("--method", "--methods"):
        values = methods
    if name in ("--model", "--other-model"):
        values = tuple(BUNDLED)
    return Flag(
        name,
        action.help or "",
        values,
        file=name in ("--file", "--out", "--dataset", "--data", "--resume"),
    )


def _bash(entries: list[CommandEntry]) -> str:
    lines = [
        "_ctxmix() {",
        '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}"',
        "  COMPREPLY=()",
    ]
    commands = " ".join(entry.name for entry in entries)
    lines += ['  if [ "$COMP_CWORD" -eq 1 ]; then']
    lines += [
        f'    COMPREPLY=($(compgen -W "{commands} --help --version" -- "$cur")); return',
        "  fi",
    ]
    lines += ['  case "${COMP_WORDS[1]} $prev" in']
    for entry in entries:
        for flag in entry.flags:
            if flag.values:
                lines.append(
                    f'    "{entry.name} {flag.name}") COMPREPLY=($(compgen -W '
                    f'"{" ".join(flag.values)}" -- "$cur")); return;;'
                )
            elif flag.file:
                lines.append(
                    f'    "{entry.name} {flag.name}") COMPREPLY=($(compgen -f -- "$cur")); return;;'
                )
    lines += ["  esac", '  case "${COMP_WORDS[1]}" in']
    for entry in entries:
        words = " ".join([*entry.words, *(flag.name for flag in entry.flags)])
        lines.append(f'    {entry.name}) COMPREPLY=($(compgen -W "{words}" -- "$cur"));;')
    return "\n".join([*lines, "  esac", "}", "complete -o default -F _ctxmix ctxmix"])


def _zsh(entries: list[CommandEntry]) -> str:
    return "\n".join(
        ["#compdef ctxmix", "autoload -U +X bashcompinit && bashcompinit", _bash(entries)]
    )


def _fish(entries: list[CommandEntry]) -> str:
    lines = [
        "complete -c ctxmix -n __fish_use_subcommand -l help -d 'all commands'",
        "complete -c ctxmix -n __fish_use_subcommand -l version",
    ]
    for entry in entries:
        lines.append(
            f"complete -c ctxmix -f -n __fish_use_subcommand -a {entry.name} -d {_quoted(entry.help)}"
        )
        seen = f"-n '__fish_seen_subcommand_from {entry.name}'"
        if entry.words:
            lines.append(f"complete -c ctxmix {seen} -a {_quoted(' '.join(entry.words))}")
        for flag in entry.flags:
            value = (
                ""
                if flag.values is None
                else f" -x -a {_quoted(' '.join(flag.values))}"
                if flag.values
                else " -r"
            )
            lines.append(
                f"complete -c ctxmix {seen} -l {flag.name.removeprefix('--')}{value} -d "
                f"{_quoted(flag.help.replace('%%', '%'))}"
            )
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

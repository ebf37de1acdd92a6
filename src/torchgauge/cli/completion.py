"""`torchgauge completion SHELL`: completion scripts for bash, zsh and fish, written from the parser of the commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

SUMMARY = "print a completion script for bash, zsh or fish"
DESCRIPTION = """\
Print a script that completes commands, options and their values. To install it,
write it to
  bash   ~/.local/share/bash-completion/completions/torchgauge
  zsh    _torchgauge in a folder of $fpath
  fish   ~/.config/fish/completions/torchgauge.fish
"""
EXAMPLES = (
    "torchgauge completion bash > torchgauge.bash",
    "torchgauge completion zsh > _torchgauge",
    "torchgauge completion fish > ~/.config/fish/completions/torchgauge.fish",
)
# Metavars of options that take a file; other values are not completed.
_FILE_VALUES = ("FILE", "PATH", "B")
_REGISTRIES = ("timm:", "torchvision:", "hf:")


@dataclass(frozen=True, slots=True)
class Option:
    """An option or, without names, a positional. `takes`: "nothing", "file", "target", "text" or its choices."""

    names: tuple[str, ...]
    help: str
    takes: str | tuple[str, ...]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="the shell to write for")


def run(args: argparse.Namespace) -> int:
    sys.stdout.write(completion_script(args.shell))
    return 0


def completion_script(shell: str) -> str:
    from torchgauge.cli.main import COMMANDS, build_parser, command_parsers

    commands: Commands = {}
    for name, parser in command_parsers(build_parser()).items():
        commands[name] = []
        for action in parser._actions:
            metavar = action.metavar if isinstance(action.metavar, str) else ""
            takes: str | tuple[str, ...]
            if action.option_strings and action.nargs == 0:
                takes = "nothing"
            elif action.choices:
                takes = tuple(map(str, action.choices))
            elif metavar == "TARGET":
                takes = "target"
            else:
                takes = "file" if metavar in _FILE_VALUES else "text"
            text = (action.help or "").replace("\n", " ")
            commands[name].append(Option(tuple(action.option_strings), text, takes))
    return SCRIPTS[shell](commands, {name: command.SUMMARY for name, command in COMMANDS.items()})


Commands = dict[str, list[Option]]


def _bash(commands: Commands, summaries: dict[str, str]) -> str:
    """Words for the cursor, by the command and the word before it. For bash 3.2 too, the version of macOS."""
    values: dict[str | tuple[str, ...], list[str]] = {}
    for command, known in commands.items():
        for option in known:
            if option.takes != "nothing":
                # A positional follows the command, which is then the word before it.
                values.setdefault(option.takes, []).extend(f"{command}:{name}" for name in option.names or ("=",))
    cases = "\n".join(f"    {'|'.join(places)}) {_bash_words(takes)} ;;" for takes, places in values.items())
    spelled = {
        command: " ".join(name for option in known for name in option.names) for command, known in commands.items()
    }
    options = "\n".join(f"    {command}) words='{names}' ;;" for command, names in spelled.items())
    # A flag may be followed by anything.
    taking = {
        command: " ".join(name for option in known if option.takes != "nothing" for name in option.names)
        for command, known in commands.items()
    }
    flags = "\n".join(
        f"""    {command}) [[ ' {names} ' == *" $prev "* ]] || prev== ;;""" for command, names in taking.items()
    )
    return f"""\
# bash completion for torchgauge; written by `torchgauge completion bash`
_torchgauge() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} command= words= word
  COMPREPLY=()
  # Bash takes "timm:resnet50" for three words.
  if [[ $cur == : || $prev == : ]]; then return; fi
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case $word in
    {"|".join(commands)}) command=$word; break ;;
    -*) ;;
    *) break ;;
    esac
  done
  local place=${{command:-analyze}}
  if [[ $cur == -* ]]; then
    case $place in
{options}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
    return
  fi
  if [[ $prev == -* ]]; then
    case $place in
{flags}
    esac
  else
    prev==
  fi
  case $place:$prev in
{cases}
  esac
  if [[ -z $command && $COMP_CWORD -eq 1 ]]; then
    COMPREPLY+=($(compgen -W "{" ".join(commands)}" -- "$cur"))
  fi
  if [[ ${{#COMPREPLY[@]}} -eq 1 && ${{COMPREPLY[0]}} == *: ]]; then
    compopt -o nospace +o filenames 2>/dev/null
  fi
}}
complete -o filenames -F _torchgauge torchgauge
"""


def _bash_words(takes: str | tuple[str, ...]) -> str:
    if isinstance(takes, tuple):
        return f"""COMPREPLY=($(compgen -W "{" ".join(takes)}" -- "$cur"))"""
    files = """local IFS=$'\\n'; COMPREPLY=($(compgen -f -- "$cur"))"""
    if takes == "target":
        return f"""{files}; IFS=$' \\t\\n'; COMPREPLY+=($(compgen -W "{" ".join(_REGISTRIES)}" -- "$cur"))"""
    return files if takes == "file" else ""


def _zsh(commands: Commands, summaries: dict[str, str]) -> str:
    functions = []
    for command, known in commands.items():
        specs = "".join(f" \\\n        {_zsh_spec(option)}" for option in known)
        functions.append(f"    {command})\n      _arguments{specs}\n      ;;")
    listed = "\n".join(f"    {_quoted(f'{name}:{_zsh_text(text)}')}" for name, text in summaries.items())
    names = "|".join(commands)
    return f"""\
#compdef torchgauge
# zsh completion for torchgauge; written by `torchgauge completion zsh`

_torchgauge_target() {{
  _alternative 'files:file:_files' 'registries:registry:compadd -S "" {" ".join(_REGISTRIES)}'
}}

_torchgauge() {{
  local -a commands
  commands=(
{listed}
  )
  local command=analyze
  if (( CURRENT == 2 )); then
    _describe -t commands command commands
    [[ $words[2] == -* ]] || {{ _torchgauge_target; return }}
  elif [[ $words[2] == ({names}) ]]; then
    command=$words[2]
    shift words
    (( CURRENT-- ))
  fi
  case $command in
{chr(10).join(functions)}
  esac
}}

if [[ $funcstack[1] == _torchgauge ]]; then _torchgauge "$@"; else compdef _torchgauge torchgauge; fi
"""


def _zsh_spec(option: Option) -> str:
    message = _zsh_text(option.help)
    action = {"nothing": "", "file": ":file:_files", "target": ":target:_torchgauge_target", "text": ":value: "}
    value = f":value:({' '.join(option.takes)})" if isinstance(option.takes, tuple) else action[option.takes]
    if not option.names:
        return _quoted("*" + (value if value.startswith(":") else ":"))
    return " ".join(_quoted(f"*{name}[{message}]{value}") for name in option.names)


def _zsh_text(text: str) -> str:
    """Colons and brackets end a description in zsh."""
    return "".join(f"\\{char}" if char in ":[]\\" else char for char in text)


def _fish(commands: Commands, summaries: dict[str, str]) -> str:
    names = " ".join(commands)
    lines = [
        "# fish completion for torchgauge; written by `torchgauge completion fish`",
        f"complete -c torchgauge -n 'not __fish_seen_subcommand_from {names}' -a '{' '.join(_REGISTRIES)}'",
    ]
    for command, text in summaries.items():
        before = f"'not __fish_seen_subcommand_from {names}'"
        lines.append(f"complete -c torchgauge -n {before} -a {command} -d {_quoted(text)}")
    takes = {"nothing": "", "file": "-r -F", "target": f"-r -F -a '{' '.join(_REGISTRIES)}'", "text": "-x"}
    for command, known in commands.items():
        seen = f"__fish_seen_subcommand_from {command}"
        if command == "analyze":
            others = " ".join(name for name in commands if name != "analyze")
            seen = f"not __fish_seen_subcommand_from {others}"
        for option in sorted(known, key=lambda option: not option.names):  # positionals last
            chosen = f"-x -a '{' '.join(option.takes)}'" if isinstance(option.takes, tuple) else ""
            if option.names:
                names_of = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
                value = chosen or takes[str(option.takes)]
                parts = [*names_of, *([value] if value else []), f"-d {_quoted(option.help)}"]
                lines.append(f"complete -c torchgauge -n '{seen}' {' '.join(parts)}")
            elif chosen:
                lines.append(f"complete -c torchgauge -n '{seen}' {chosen}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """The text in single quotes, which all three shells read alike."""
    escaped = text.replace("'", "'\\''")
    return f"'{escaped}'"


SCRIPTS: dict[str, Callable[[Commands, dict[str, str]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}

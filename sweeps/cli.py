"""The command ``rlhf-sweep``. Exit codes: 0 done, 1 nothing to show for it, 2 bad input, 130 interrupted."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from rlhf_core.errors import ConfigError, RlhfError, nearest, shown

MODULES = (
    "run",
    "resume",
    "control",
    "train",
    "results",
    "report",
    "inspect",
    "replay",
    "export",
    "import_",
    "prepare",
    "plan",
    "doctor",
    "schema",
)


class _Parser(argparse.ArgumentParser):
    """Answers a wrong command line in one line, with near misses."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        wrong, near = shown(value), nearest(str(value), known)
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"no command {wrong}{near}; `rlhf-sweep --help` lists them")
        option = "/".join(action.option_strings)
        self.error(f"{option}: there is no {wrong}{near}; there are {', '.join(known)}")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"rlhf-sweep: {message}\n")


class _Version(argparse.Action):
    """Looks the version up when it is asked for, which takes a moment."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        import importlib.metadata

        try:
            version = importlib.metadata.version("rlhf-sweeps")
        except importlib.metadata.PackageNotFoundError:
            version = "(not installed)"
        print(f"rlhf-sweep {version}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """The parser with every subcommand."""
    import importlib

    parser = _Parser(
        prog="rlhf-sweep",
        description="Hyperparameter sweeps for multi-role PPO-RLHF on Ray Tune.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in MODULES:
        importlib.import_module(f"sweeps.commands.{module}").register(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line; returns the exit code."""
    args = build_parser().parse_args(argv)
    # As with `python -m`: reward functions of the user's own lie where the command is typed.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return int(args.run(args))
    except ConfigError as error:
        for line in error.problems:
            print(line, file=sys.stderr)
        return 2
    except RlhfError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:
        # `rlhf-sweep status DIR | head` closed the pipe; nobody is left to tell.
        sys.stderr.close()
        return 0
    except OSError as error:
        return _system_error(error, args)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _system_error(error: OSError, args: argparse.Namespace) -> int:
    """One line; exit code 2 where it is about a file or folder that the command line names."""
    reason = error.strerror or str(error)
    if not isinstance(error.filename, str | bytes):
        print(f"rlhf-sweep: {reason}", file=sys.stderr)
        return 1
    place = Path(os.fsdecode(error.filename))
    given = (value if isinstance(value, list) else [value] for value in vars(args).values())
    named = [Path(v) for values in given for v in values if v and isinstance(v, str | Path)]
    if not any(place.is_relative_to(other) for other in named):
        print(f"rlhf-sweep: {reason} ({place})", file=sys.stderr)
        return 1
    print(f"rlhf-sweep: {place} cannot be used: {reason}; name another", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

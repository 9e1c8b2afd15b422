"""The command ``rlhf-sweep``. Exit codes: 0 done, 1 nothing to show for it, 2 bad input, 130 interrupted."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rlhf_core.errors import ConfigError, RlhfError, nearest

MODULES = (
    "run",
    "train",
    "results",
    "report",
    "inspect",
    "export",
    "import_",
    "prepare",
    "plan",
    "doctor",
    "schema",
)


class _Parser(argparse.ArgumentParser):
    """Answers a wrong command line in one line, with near misses."""

    def error(self, message: str) -> NoReturn:
        if "invalid choice" in message and "choose from" in message:
            wrong = message.split("invalid choice: ")[1].split(" (")[0].strip("'\"")
            known = [c for c in _commands(self) if c]
            message = f"no command {wrong!r}{nearest(wrong, known)}; `rlhf-sweep --help` lists them"
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


def _commands(parser: argparse.ArgumentParser) -> list[str]:
    return [
        name
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name in action.choices
    ]


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
        place = f" ({error.filename})" if error.filename else ""
        print(f"rlhf-sweep: {error.strerror or error}{place}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())

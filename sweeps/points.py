"""What a sweep tries first: points by name, from a former run or a CSV file, as ``{dotted key: value}``."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import ConfigError, nearest, shown
from rlhf_core.paths import user_path
from search_spaces import Choice, Constant, Float, Space
from sweeps.config import Constraint, SearchConfig

Point = dict[str, Any]

# Defaults of the libraries for the options that a space can hold. Batch sizes are not among them: they are numbers
# of sequences there, and depend on the machine; minibatches follow from them.
KNOWN: dict[str, Point] = {
    # OpenRLHF 0.11.2, openrlhf/cli/train_ppo_ray.py: actor.adam.lr, critic.adam.lr, actor.eps_clip,
    # critic.value_clip, algo.kl.init_coef, algo.advantage.gamma and .lambd, train.max_epochs,
    # rollout.batch_size / train.batch_size = 1024 / 128, rollout.temperature, vllm sync after every step.
    "openrlhf": {
        "optim.policy.lr": 1e-6,
        "optim.critic.lr": 9e-6,
        "optim.policy.beta2": 0.95,
        "optim.critic.beta2": 0.95,
        "ppo.clip_range_low": 0.2,
        "ppo.clip_range_high": 0.2,
        "ppo.value_clip_range": 0.5,
        "ppo.kl.coef": 0.01,
        "ppo.kl.estimator": "k1",
        "ppo.kl.controller": "fixed",
        "ppo.gamma": 1.0,
        "ppo.lam": 1.0,
        "ppo.epochs": 1,
        "ppo.minibatches": 8,
        "rollout.samples_per_prompt": 1,
        "rollout.temperature": 1.0,
        "rollout.top_p": 1.0,
        "reward.clip": 10.0,
        "sync.mode": "sync",
        "sync.interval": 1,
    },
    # verl 0.9.1, verl/trainer/config/_generated_ppo_trainer.yaml: actor.optim.lr, critic.optim.lr, clip_ratio_low
    # and _high, clip_ratio_c, cliprange_value, kl_ctrl, gamma, lam, ppo_epochs,
    # train_batch_size / ppo_mini_batch_size = 1024 / 256, rollout.temperature.
    "verl": {
        "optim.policy.lr": 1e-6,
        "optim.critic.lr": 1e-5,
        "optim.policy.weight_decay": 0.01,
        "optim.critic.weight_decay": 0.01,
        "ppo.clip_range_low": 0.2,
        "ppo.clip_range_high": 0.2,
        "ppo.dual_clip": 3.0,
        "ppo.value_clip_range": 0.5,
        "ppo.kl.coef": 1e-3,
        "ppo.kl.estimator": "k1",
        "ppo.kl.controller": "fixed",
        "ppo.gamma": 1.0,
        "ppo.lam": 1.0,
        "ppo.epochs": 1,
        "ppo.minibatches": 4,
        "ppo.entropy_coef": 0.0,
        "rollout.samples_per_prompt": 1,
        "rollout.temperature": 1.0,
        "rollout.top_p": 1.0,
        "sync.mode": "sync",
        "sync.interval": 1,
    },
    # TRL 1.12.0, trl/experimental/ppo/ppo_config.py: learning_rate (one optimiser for policy and value),
    # cliprange, cliprange_value, kl_coef, kl_estimator, gamma, lam, num_ppo_epochs, num_mini_batches, temperature.
    "trl": {
        "optim.policy.lr": 3e-6,
        "optim.critic.lr": 3e-6,
        "ppo.clip_range_low": 0.2,
        "ppo.clip_range_high": 0.2,
        "ppo.value_clip_range": 0.2,
        "ppo.kl.coef": 0.05,
        "ppo.kl.estimator": "k1",
        "ppo.kl.controller": "fixed",
        "ppo.gamma": 1.0,
        "ppo.lam": 0.95,
        "ppo.epochs": 4,
        "ppo.minibatches": 1,
        "rollout.samples_per_prompt": 1,
        "rollout.temperature": 0.7,
        "rollout.top_p": 1.0,
        "sync.mode": "sync",
        "sync.interval": 1,
    },
}
# Columns of leaderboard.csv that are no parameters; those of parameters begin with the prefix.
_BOARD = {
    "rank",
    "trial",
    "outcome",
    "value",
    "stderr",
    "kl",
    "iterations",
    "gpu_seconds",
    "why_not",
}
_PREFIX = "params."


def resolve_points(search: SearchConfig, space: Space) -> tuple[tuple[Point, ...], list[str]]:
    """The points of a search in full, and a note for each value that cannot be used.

    A point that the user wrote down must lie in the space. Of what comes from elsewhere, made for another space, a
    value outside this one is left out, and sampled.

    Raises:
        ConfigError: With one line for each point that cannot be read or lies outside.
    """
    found: list[Point] = []
    notes: list[str] = []
    problems: list[str] = []
    for number, entry in enumerate(search.points):
        where = f"search.points[{number}]"
        if not isinstance(entry, str):
            problems += outside(entry, space, where)
            found.append(dict(entry))
            continue
        try:
            read = list(_read(entry, where, space, search))
        except ConfigError as error:
            problems += error.problems
            continue
        for name, point in read:
            fitting, said = _fitted(point, space, f"{where}: {name}")
            notes += said
            found += [fitting] if fitting else []
    if problems:
        raise ConfigError(problems)
    return tuple(found), notes


def outside(point: Mapping[str, Any], space: Space, where: str) -> list[str]:
    """Why a point that was written down is none of the space, in a line for each value."""
    strange = [key for key in point if key not in space]
    return [f"{where}: {key!r} is not searched{nearest(key, space)}" for key in strange] + [
        f"{where}: {key} = {value!r} lies outside {space[key].domain}"
        for key, value in point.items()
        if key in space and not space[key].domain.contains(value)
    ]


def _fitted(point: Point, space: Space, name: str) -> tuple[Point, list[str]]:
    """What the space has of a point, and which values lie outside."""
    known = {key: value for key, value in point.items() if key in space}
    fitting = {key: value for key, value in known.items() if space[key].domain.contains(value)}
    if not known:
        return {}, [f"{name} has none of the searched parameters, and is passed over"]
    notes = [
        f"{name}: {key} = {value!r} lies outside {space[key].domain}, and is sampled"
        for key, value in known.items()
        if key not in fitting
    ]
    return fitting, notes


def _read(
    entry: str, where: str, space: Space, search: SearchConfig
) -> Iterator[tuple[str, Point]]:
    """Points behind a name or a path, each with what it is called."""
    if entry in KNOWN:
        yield entry, KNOWN[entry]
        return
    path = user_path(entry, where)
    if path.is_dir():
        yield from _best_of_run(path, where, search.points_per_run)
    elif path.is_file():
        yield from _rows(path, where, space)
    else:
        raise ConfigError(
            f"{where}: {shown(entry)} is none of {', '.join(KNOWN)}, no run directory and no file"
            f"{nearest(entry, KNOWN)}"
        )


def _best_of_run(directory: Path, where: str, count: int) -> list[tuple[str, Point]]:
    """The best completed trials of a former run that kept its constraints, best first."""
    try:
        info = json.loads((directory / "sweep.json").read_text(encoding="utf-8"))
        sign = -1.0 if info["objective"]["direction"] == "maximize" else 1.0
        rules = [Constraint.parse(text) for text in info.get("constraints", ())]
        last = {line["trial"]: line for line in _lines(directory / "trials.jsonl")}
        ranked = sorted(
            (sign * float(line["value"]), trial)
            for trial, line in last.items()
            if line["outcome"] == "completed" and line["value"] is not None
        )
        kept = (trial for _, trial in ranked if _keeps(directory / "trials" / trial, rules))
        best = [trial for trial, _ in zip(kept, range(count), strict=False)]
        points = [_params(directory / "trials" / trial) for trial in best]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{where}: {directory} cannot be read as a run directory: {type(error).__name__} {error}"
        ) from None
    if not points:
        raise ConfigError(f"{where}: no trial of {directory} completed and kept its constraints")
    return [(f"{trial} of {directory}", point) for trial, point in zip(best, points, strict=True)]


def _params(trial: Path) -> Point:
    return dict(json.loads((trial / "params.json").read_text(encoding="utf-8")))


def _keeps(trial: Path, rules: list[Constraint]) -> bool:
    """Whether the last values of a trial keep the rules, by which the former run chose as well."""
    finals: dict[str, Any] = {}
    for line in _lines(trial / "metrics.jsonl") if rules else ():
        finals.update(line)
    values = [finals.get(rule.metric) for rule in rules]
    return all(
        isinstance(value, int | float) and math.isfinite(value) and rule.violation(value) <= 0
        for rule, value in zip(rules, values, strict=True)
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a log; a torn last one of a run that was killed is left out."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def _rows(path: Path, where: str, space: Space) -> Iterator[tuple[str, Point]]:
    """The rows of a CSV file whose header has dotted keys; an empty cell leaves its parameter open."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            header = list(reader.fieldnames or ())
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{where}: {path} cannot be read as CSV: {error}") from None
    keys = {name: name.strip().removeprefix(_PREFIX) for name in header}
    if not rows or not any(key in space for key in keys.values()):
        raise ConfigError(
            f"{where}: {path} needs a header with searched keys and a row below it, but has {shown(header)}"
        )
    strange = [k for name, k in keys.items() if k not in space and name not in _BOARD]
    near = [f"{key!r}{tail}" for key in strange if (tail := nearest(key, space))]
    if near:
        raise ConfigError(f"{where}: {path} has a column {near[0]}")
    for number, row in enumerate(rows, 2):
        point = {
            keys[name]: _value(text, space, keys[name], f"{where}: {path}, line {number}")
            for name, text in row.items()
            if name is not None and keys[name] in space and text not in (None, "")
        }
        yield f"{path}, line {number}", point


def _value(text: str, space: Space, key: str, where: str) -> Any:
    """A cell as a value of its parameter's domain."""
    domain, text = space[key].domain, text.strip()
    listed = (
        domain.values
        if isinstance(domain, Choice)
        else (domain.value,)
        if isinstance(domain, Constant)
        else ()
    )
    for value in listed:
        if text == str(value) or text.lower() == json.dumps(value):
            return value
    try:
        number = float(text)
    except ValueError:
        raise ConfigError(f"{where}: {key} = {text!r} is no value of {domain}") from None
    same = [v for v in listed if isinstance(v, int | float) and float(v) == number]
    if same:
        return same[0]
    return int(number) if number.is_integer() and not isinstance(domain, Float) else number

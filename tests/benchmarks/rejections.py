"""How much of each preset of a space its rules refuse: what a sweep proposes, passes over, and hands out.

    python tests/benchmarks/rejections.py [--quick] [--sampler NAME]

For each preset a study proposes until it has handed out 200 configurations of a trial `tiny` on a rehearsed node
of 16 CPUs and 4 GPUs. Each of them is checked again: by the space, by its rules, as a configuration, and where a
rule says that it must fit, against the node. No trial runs; all are told as completed.
"""

from __future__ import annotations

import argparse
import json
import random
from functools import partial
from importlib.metadata import version
from typing import Any

from search_spaces import presets
from sweeps import Sweep
from sweeps.config import SAMPLERS
from sweeps.outcomes import Outcome
from sweeps.plan import unfit
from sweeps.tuning.study import Study

COUNT, QUICK = 200, 20
CLUSTER = {"rehearse": {"nodes": 1, "cpus": 16, "gpus": 4, "memory_gb": 256}}


def propose(name: str, sampler: str, count: int) -> dict[str, Any]:
    """What comes of a preset: configurations handed out, proposals passed over, and broken rules."""
    search = {"sampler": sampler, "trials": count}
    sweep = Sweep.from_dict({"base": "tiny", "space": name, "search": search, "cluster": CLUSTER})
    loaded, plan = sweep.loaded, sweep.plan()
    refuse = partial(unfit, loaded, plan)
    study = Study(None, name, loaded.config.search, loaded.space, loaded.checker(refuse))
    broken = 0
    for _ in range(count):
        asked = study.ask()
        assert asked is not None
        number, params = asked
        lines = [*loaded.space.check(params), *loaded.broken(params)]
        lines += loaded.program.check(loaded.base, params)
        lacks = loaded.must_fit and refuse(params) is not None
        broken += bool(lines or lacks)
        study.tell(number, Outcome.COMPLETED, random.Random(number).random(), {})
    share = study.rejected / (study.rejected + count)
    return {"rules": len(loaded.space.rules), "handed_out": count, "broken": broken,
            "passed_over": study.rejected, "share": round(share, 3)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sampler", choices=sorted({*SAMPLERS} - {"grid", "cmaes"}), default="tpe")
    args = parser.parse_args()
    count = QUICK if args.quick else COUNT
    found = {name: propose(name, args.sampler, count) for name in presets.names()}
    ok = not any(one["broken"] for one in found.values())
    told = {"name": "rejections", "ok": ok, "sampler": args.sampler, "presets": found}
    print(json.dumps({**told, "optuna": version("optuna")}))


if __name__ == "__main__":
    main()

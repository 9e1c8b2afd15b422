"""Training engines on real processes: a few cases each, run side by side; what they did lies in a file of rank 0.

``python engine_ranks.py FOLDER ZOO RANK``; the cases stand in FOLDER/cases.json.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tiny_models import Zoo
from tiny_rollouts import CONTEXT, experience, prompts, role, settings, trial_config

from rlhf_core.errors import RlhfError
from rlhf_core.ranks import Seat
from rlhf_core.store import LocalStore
from rlhf_core.types import Chunk

ODD = [[0, 5, 2], [1, 3, 4, 6, 7]]
HOST = "127.0.0.1"


def run_case(case: dict[str, Any], rank: int, zoo: Zoo, folder: Path, meet: dist.Store) -> Any:
    """Some updates of one role, then everything that leaves it.

    A case of one rank runs in both processes, each by itself: DeepSpeed numbers weights in a process in turn, and
    ranks that meet must have counted alike.
    """
    config = trial_config(zoo, **case["options"])
    trained, name = role(case["role"], config), case["role"]
    if case["ranks"] > 1:
        _seat(trained, name, case, rank, meet)
    found: dict[str, Any] = {"metrics": []}
    kept = folder if rank == 0 or case["ranks"] > 1 else folder / "other"
    store = LocalStore(kept / "checkpoints" / case["name"])
    if "resumed" in case:
        before = folder / "checkpoints" / case["resumed"]
        entry = json.loads(meet.get(f"entry/{case['resumed']}"))
        trained.load(CONTEXT, LocalStore(before).uri, entry)
    if case.get("breaks"):
        return _broken(trained, zoo)
    found["start"] = {key: tensor.clone() for key, tensor in trained.engine.state().items()}
    batch = experience(zoo)
    for _ in range(case["updates"]):
        how = settings(ODD, micro_batch_size=2, eps=1e-3, **case["how"])
        found["metrics"].append(trained.update(CONTEXT, batch, how))
    found["end"] = {key: tensor.clone() for key, tensor in trained.engine.state().items()}
    entry = trained.save(CONTEXT, store.uri, 1)
    if rank == 0:
        meet.set(f"entry/{case['name']}", json.dumps(entry))
    found |= _outputs(trained, name, config, kept / case["name"])
    trained.close()
    return found


def _broken(trained: Any, zoo: Zoo) -> str:
    """What an update raises here when one row, so one rank, has a loss that is not finite."""
    batch = experience(zoo)
    batch.returns_BT[3] = float("inf")
    try:
        trained.update(CONTEXT, batch, settings())
    except RlhfError as error:
        return type(error).__name__
    finally:
        trained.close()
    return "nothing"


def _seat(trained: Any, name: str, case: dict[str, Any], rank: int, meet: dist.Store) -> None:
    key = f"port/{case['name']}"
    if rank == 0:
        meet.set(key, str(trained.listen(CONTEXT, name, HOST, 60.0)[1]))
    port = int(meet.get(key))
    # One that waits for an error of the other waits as long as that.
    patience = 16.0 if case.get("breaks") else 60.0
    trained.join(CONTEXT, Seat(name, rank, case["ranks"], (HOST, port), HOST, timeout_s=patience))


def _outputs(trained: Any, name: str, config: Any, folder: Path) -> dict[str, Any]:
    """Values, deliveries, responses and the folder of a role, and how much was whole at a time meanwhile."""
    if name == "critic":
        return {"values": trained.values(CONTEXT, _rollout(config))}
    seen = _watch(trained)
    header, buckets = trained.publish(CONTEXT)
    pieces = [piece.clone() for bucket in buckets for piece in bucket.pieces]
    trained.export(CONTEXT, str(folder))
    # Sampling wants all of them at a time.
    at_once = max(seen, default=0)
    sampled = trained.generate(CONTEXT, Chunk(0, prompts(config), 3))
    return {
        "header": asdict(header),
        "bytes": torch.cat(pieces) if pieces else torch.empty(0),
        "logprobs": sampled.logprobs_BT,
        "whole_at_once": at_once,
        "elements": sum(p.numel() for p in _parameters(trained)),
        "left_whole": _whole(trained),
    }


def _rollout(config: Any) -> Any:
    from tiny_rollouts import rollout

    plain = {"optim": type(config.optim)()}
    return rollout(config.model_copy(update=plain))[0]


def _parameters(trained: Any) -> list[Any]:
    return list(trained.model.parameters())


def _whole(trained: Any) -> int:
    """Elements of sharded parameters that are whole on this rank now."""
    return sum(
        p.numel()
        for p in _parameters(trained)
        if hasattr(p, "ds_status") and p.ds_status.name == "AVAILABLE" and not p.ds_persist
    )


def _watch(trained: Any) -> list[int]:
    """Elements that are whole each time some were gathered one after another."""
    seen: list[int] = []
    gather = trained.engine.whole

    class Seen:
        def __init__(self, parameters: Any) -> None:
            self.inner = gather(parameters)

        def __enter__(self) -> None:
            self.inner.__enter__()
            seen.append(_whole(trained))

        def __exit__(self, *error: Any) -> None:
            self.inner.__exit__(*error)

    trained.engine.whole = Seen
    return seen


def main(folder: Path, zoo: Zoo, rank: int) -> None:
    torch.set_num_threads(1)
    meet = dist.FileStore(str(folder / "meet"), 2)
    found = {}
    for case in json.loads((folder / "cases.json").read_text()):
        begin = time.perf_counter()
        found[case["name"]] = run_case(case, rank, zoo, folder, meet)
        print(case["name"], f"{time.perf_counter() - begin:.1f} s", flush=True)
        # The next one begins when both are here.
        meet.set(f"done/{case['name']}/{rank}", "")
        meet.wait([f"done/{case['name']}/{other}" for other in range(2)])
    with (folder / f"found{rank}.pkl").open("wb") as stream:
        pickle.dump(found, stream)


if __name__ == "__main__":
    main(Path(sys.argv[1]), pickle.loads(bytes.fromhex(sys.argv[2])), int(sys.argv[3]))

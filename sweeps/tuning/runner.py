"""Builds the Tuner of a sweep and runs it to its end, its interruption or its death."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ray import tune
from ray.tune import CheckpointConfig, FailureConfig, RunConfig, TuneConfig

from rlhf_core.runtime.placement import NodeType
from sweeps.driver import SweepDriver
from sweeps.signals import closing, handlers_kept
from sweeps.steering import steer
from sweeps.tuning import cluster
from sweeps.tuning.plugins import (
    DRIVERS,
    ClusterLost,
    NothingRecorded,
    SweepCallback,
    SweepScheduler,
    SweepSearcher,
)
from sweeps.tuning.trainable import ProgramTrainable

logger = logging.getLogger(__name__)
# Ray counts what the last trial had as free a moment after its end.
FREE_TIMEOUT_S = 5.0


def run(driver: SweepDriver, checkpoints: str, view: Any = None) -> None:
    """Runs all trials of the driver on the connected cluster.

    Returns when the sweep is over or was interrupted (``driver.interrupted``), or Tune itself failed
    (``driver.crash``). Every trial has then ended, or is recorded as interrupted or paused.
    """
    key = str(driver.directory.path)
    DRIVERS[key] = driver
    loaded = driver.loaded
    _environment(driver.max_concurrent)
    types = cluster.node_types(loaded.config.cluster)
    driver.leftovers.before = cluster.view(types).used
    warm = loaded.config.cluster.warm and loaded.program.warm
    fixed = {"program": loaded.config.program, "checkpoints": checkpoints, "warm": warm}
    fixed |= {"base": dict(loaded.base)}
    with handlers_kept():
        try:
            steer(driver)
            driver.called_back = True
            # A command may come when Tune has been told that there is nothing more.
            while driver.called_back and driver.has_work:
                driver.called_back = False
                _fit(driver, key, fixed, view)
            _wait_free(driver, types)
        except (KeyboardInterrupt, ClusterLost, NothingRecorded):
            driver.interrupted = True
        except Exception as error:
            # Whatever it was, the sweep ends in order; Tune's own files may have met a full disk first.
            if not driver.broke(error):
                logger.exception("Ray Tune ended the sweep")
            driver.crash = error
        finally:
            with closing():
                del DRIVERS[key]
                _settle(driver)


def _fit(driver: SweepDriver, key: str, fixed: Mapping[str, Any], view: Any) -> None:
    with tempfile.TemporaryDirectory(prefix="rlhf-sweep-") as scratch:
        tune.Tuner(
            ProgramTrainable,
            tune_config=TuneConfig(
                search_alg=SweepSearcher(key, fixed),
                scheduler=SweepScheduler(key),
                # The searcher says when it is over: users may add trials, and some run in several stays.
                num_samples=-1,
                reuse_actors=fixed["warm"],
                trial_name_creator=_name,
                trial_dirname_creator=_name,
            ),
            run_config=RunConfig(
                name="tune",
                storage_path=scratch,
                callbacks=[SweepCallback(key, view)],
                failure_config=FailureConfig(max_failures=driver.loaded.config.budget.retries),
                checkpoint_config=CheckpointConfig(checkpoint_at_end=False),
                verbose=0,
            ),
        ).fit()


def _wait_free(driver: SweepDriver, types: Sequence[NodeType]) -> None:
    """Returns when the last trials' resources are free, as far as they become so."""
    deadline = time.monotonic() + FREE_TIMEOUT_S
    while not driver.free_again(view := cluster.view(types)):
        if time.monotonic() > deadline:
            driver.left_over(view)
            return
        time.sleep(0.1)


def _settle(driver: SweepDriver) -> None:
    """Tune tells nobody about trials that it ends by itself (interruption, its own death)."""
    try:
        if driver.live or driver.again or not driver.exhausted:
            driver.interrupt()
        elif driver.broken is None:
            driver.directory.event("ended")
    except OSError as error:
        # A full disk must not hide how the sweep ended.
        driver.broke(error)


def _name(trial: Any) -> str:
    return str(trial.config["trial"])


def _environment(max_concurrent: int) -> None:
    # Beside those that may run there can be as many whose nodes are not there yet.
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(2 * max_concurrent)
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    # Imports and relative paths in user code work as where the sweep was started.
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"
    os.environ.setdefault("TUNE_FORCE_TRIAL_CLEANUP_S", "60")
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S", "1000000")
    for name in ("ray.tune", "ray.air"):
        logging.getLogger(name).setLevel(logging.ERROR)

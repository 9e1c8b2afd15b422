"""Roles x resource template -> ``PlacementPlan``, and whether nodes can hold it. Pure; no Ray, no torch.

``plan`` has the words, ``layouts`` makes plans from a configuration, ``fit`` finds nodes for bundles,
``refusal`` says why there are none, ``store`` sizes the object store.
"""

from rlhf_core.runtime.placement.fit import (
    Node,
    NodeType,
    assign,
    scarce,
    stranded_gpus,
    trials_at_once,
    with_node_types,
)
from rlhf_core.runtime.placement.layouts import plan_placement, plan_service, plan_trial
from rlhf_core.runtime.placement.plan import (
    AFFINITY_LABELS,
    GB,
    Bundle,
    PlacementPlan,
    Share,
    WorkerPlace,
    bundle_resources,
    group_request,
    in_words,
)
from rlhf_core.runtime.placement.refusal import Shortfall, find_shortfall, shortfall

__all__ = [
    "AFFINITY_LABELS",
    "GB",
    "Bundle",
    "Node",
    "NodeType",
    "PlacementPlan",
    "Share",
    "Shortfall",
    "WorkerPlace",
    "assign",
    "bundle_resources",
    "find_shortfall",
    "group_request",
    "in_words",
    "plan_placement",
    "plan_service",
    "plan_trial",
    "scarce",
    "shortfall",
    "stranded_gpus",
    "trials_at_once",
    "with_node_types",
]

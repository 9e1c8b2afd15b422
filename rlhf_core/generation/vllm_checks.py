"""What the installed vLLM can serve, asked before anything is launched. Imports neither torch nor vLLM.

vLLM changes the process it is imported into, so it is asked in one of its own.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys

from rlhf_core.config.trial import TrialConfig
from rlhf_core.errors import nearest
from rlhf_core.models.policy import policy_source
from rlhf_core.models.size import architectures_of, head_of

INSTALL = "install it with pip install 'rlhf-sweeps[vllm]'"
MISSING = f"rollout.engine: 'vllm' is not installed; {INSTALL}, or use 'native'"
# Seconds in which vLLM is imported, on a machine with other things to do.
LONGEST = 300
_ASK = """
import json
from vllm import ModelRegistry
from vllm.platforms import current_platform
heads = None
if current_platform.is_cpu():
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
    heads = CPUAttentionBackend.get_supported_head_sizes()
print(json.dumps([sorted(ModelRegistry.get_supported_archs()), heads]))
"""


def is_installed() -> bool:
    """Whether there is a vLLM here; it may not be whole."""
    return importlib.util.find_spec("vllm") is not None


def vllm_missing(config: TrialConfig) -> list[str]:
    """A line where vLLM is to sample and is not here."""
    return [MISSING] if config.rollout.engine == "vllm" and not is_installed() else []


def unserved(config: TrialConfig) -> list[str]:
    """Why the installed vLLM cannot sample from the policy, one line each, as far as its files tell."""
    source = policy_source(config) if config.rollout.engine == "vllm" else None
    if source is None:
        return []
    told = _served()
    if isinstance(told, str):
        return [f"rollout.engine: 'vllm' cannot be imported ({told}); {INSTALL}, or use 'native'"]
    known, heads = told
    kinds, head = architectures_of(source), head_of(source)
    problems = [
        f"rollout.engine: 'vllm' has no model {kind!r}{nearest(kind, known)}; use 'native'"
        for kind in kinds
        if kind not in known
    ]
    if heads is not None and head is not None and head not in heads:
        problems.append(
            f"rollout.engine: on a CPU 'vllm' takes attention heads of {', '.join(map(str, heads))} numbers, but "
            f"those of {source!r} have {head}; use 'native'"
        )
    return problems


@functools.cache
def _served() -> tuple[frozenset[str], tuple[int, ...] | None] | str:
    """Architectures, and on a CPU the sizes of attention heads; or why vLLM cannot be asked."""
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK],
            env=os.environ | quiet,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"its import takes more than {LONGEST} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    known, heads = json.loads(done.stdout.splitlines()[-1])
    return frozenset(known), None if heads is None else tuple(heads)

"""How much memory each worker of a trial needs, from its configuration and the shapes of its models. No torch.

An estimate of the peak: what stays (weights, gradients, optimiser) is counted exactly, what comes and goes
(activations of each role's largest pass, cache of its largest batch) from the tensors that this project's passes
keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_core.config.generation import rests_between_batches
from rlhf_core.config.trial import TrialConfig
from rlhf_core.generation.blocks import held_cache
from rlhf_core.models.gguf import cached_gguf, is_gguf
from rlhf_core.models.size import ITEM_BYTES, ModelShape, shape_of
from rlhf_core.runtime.placement import GB, PlacementPlan, WorkerPlace, plan_trial
from rlhf_core.tasks.builtin import BUILTIN, RECIPES, cached_builtin
from rlhf_core.tasks.folder import TaskFolder

# A process with torch and transformers in it, before it reads a model; what a CUDA context takes of its GPU.
PROCESS_BYTES = 450 * 10**6
# What vLLM adds to it.
VLLM_BYTES = 400 * 10**6
CONTEXT_BYTES = 600 * 10**6
# Below these many float32 parameters batches are decoded with a copy of the weights, above the first one on CPUs
# alone: generation/folded.py, generation/packed.py.
FOLD_BELOW, PACK_BELOW = 30_000_000, 1 << 30
# What other models' own passes keep, over what the passes of this project do.
PLAIN_PASS = 1.5
# Tensors over rows x vocabulary while a token is drawn.
DRAWN = 4


@dataclass(frozen=True)
class Engine:
    """Who trains, as far as memory depends on it.

    Attributes:
        sharded: ZeRO stage of DeepSpeed: 1 shards the optimiser, 2 gradients, 3 weights; 0: nothing.
        offload: What lies in the host's memory instead of a GPU's: none, optimizer or all.
        recompute: Layers are computed again in the backward pass.
        rank: Rank of the adapters; 0: all weights are trained.
        masters: Whether float32 copies of the weights are kept beside them.
    """

    sharded: int = 0
    offload: str = "none"
    recompute: bool = False
    rank: int = 0
    masters: bool = False

    @classmethod
    def of(cls, config: TrialConfig) -> Engine:
        """That of a configuration."""
        optim = config.optim
        deepspeed = optim.engine == "deepspeed"
        stage = optim.zero_stage if deepspeed else 0
        return cls(
            sharded=stage,
            offload=optim.offload if deepspeed else "none",
            recompute=optim.gradient_checkpointing,
            rank=config.model.lora.rank,
            # DeepSpeed steps on flat float32 copies whatever the weights are.
            masters=config.model.dtype != "float32" or stage > 0,
        )


@dataclass(frozen=True)
class RoleMemory:
    """Bytes of one worker of a role.

    Attributes:
        weights, gradients, optimiser: What stays.
        activations: What the largest pass takes beyond that.
        cache: What the largest batch that is sampled takes beyond that.
        offloaded: Part of what stays that lies in the host's memory where the rest is on a GPU.
        shared: Part of the weights that roles of one process have in common.
        held: A cache that stays, beside ``cache``.
        process: What the role's libraries add to a process.
    """

    weights: int = 0
    gradients: int = 0
    optimiser: int = 0
    activations: int = 0
    cache: int = 0
    offloaded: int = 0
    shared: int = 0
    held: int = 0
    process: int = 0

    @property
    def standing(self) -> int:
        return self.weights + self.gradients + self.optimiser + self.held

    @property
    def passing(self) -> int:
        return max(self.activations, self.cache)


@dataclass(frozen=True)
class WorkerMemory:
    """A worker's roles, and what it has.

    Attributes:
        name: Role group, or ``trial`` for the process of layout fused.
        roles: ``{role: its memory}``.
        on_gpu: Whether models lie on a GPU.
        host_limit, gpu_limit: Bytes it is given; None: not known, or not counted.
    """

    name: str
    roles: Mapping[str, RoleMemory]
    on_gpu: bool
    host_limit: float | None
    gpu_limit: float | None

    @property
    def passing(self) -> int:
        """Bytes of what comes and goes. A GPU's allocator has one role's for the next.

        The C library gives back the end of its heap alone: what a pass frees lies between what others hold, and
        the next role's pass seldom finds a place in it that is large enough.
        """
        passing = [part.passing for part in self.roles.values()]
        return max(passing, default=0) if self.on_gpu else sum(passing)

    @property
    def models(self) -> int:
        """Bytes of all that the roles hold at the peak."""
        parts = self.roles.values()
        common = [part.shared for part in parts]
        again = sum(common) - max(common, default=0)
        return sum(part.standing for part in parts) - again + self.passing

    @property
    def gpu(self) -> int:
        """Bytes of GPU memory."""
        if not self.on_gpu:
            return 0
        return CONTEXT_BYTES + self.models - sum(p.offloaded for p in self.roles.values())

    @property
    def host(self) -> int:
        """Bytes of the process. Weights on their way to a GPU pass through it, one role after the other."""
        process = PROCESS_BYTES + sum(part.process for part in self.roles.values())
        if not self.on_gpu:
            return process + self.models
        loading = max((part.weights for part in self.roles.values()), default=0)
        return process + max(loading, sum(p.offloaded for p in self.roles.values()))


@dataclass(frozen=True)
class Shapes:
    """Shapes of what a trial reads; ``rewards`` are all sequence classifiers that score."""

    policy: ModelShape
    reference: ModelShape
    reward: ModelShape | None
    rewards: tuple[ModelShape, ...]

    @classmethod
    def of(cls, config: TrialConfig) -> Shapes | None:
        """Those of the configuration's models, or None where one is not on this machine yet; builds nothing."""
        task, reward = _task(config), config.reward
        task_rewards = (task.reward_model, task.heldout_model) if task is not None else (None, None)
        own = reward.model or reward.function or reward.url
        held = reward.heldout_model or reward.heldout_function or reward.heldout_url
        proxy = reward.model if own else task_rewards[0]
        heldout = reward.heldout_model if held else task_rewards[1]
        policy = config.model.policy or (task and task.policy)
        extra = [part.model for part in reward.extra.values()]
        scoring = [_shape(source) for source in (proxy, heldout, *extra) if source is not None]
        first = _shape(policy)
        second = _shape(config.model.reference) if config.model.reference else first
        unbuilt = config.data.task is not None and task is None
        if unbuilt or first is None or second is None or None in scoring:
            return None
        known = tuple(shape for shape in scoring if shape is not None)
        return cls(first, second, known[0] if proxy is not None else None, known)


def _task(config: TrialConfig) -> TaskFolder | None:
    """The task's folder, or None where there is none yet."""
    task = config.data.task
    if task is None:
        return None
    if not task.startswith(BUILTIN):
        return TaskFolder.load(task)
    name = task.removeprefix(BUILTIN)
    folder = cached_builtin(name) if name in RECIPES else None
    return TaskFolder.load(folder) if folder is not None else None


def _shape(source: object) -> ModelShape | None:
    if source is None:
        return None
    if is_gguf(str(source)):
        folder = cached_gguf(str(source))
        return shape_of(str(folder)) if folder is not None else None
    return shape_of(str(source))


def memory_of(config: TrialConfig, shapes: Shapes) -> tuple[WorkerMemory, ...]:
    """What the workers of a trial need, one entry for those that are alike."""
    plan = plan_trial(config)
    found: dict[tuple[object, ...], WorkerMemory] = {}
    for worker in plan.workers:
        share = plan.share(worker)
        found.setdefault(
            (worker.name, share.gpus, share.memory_gb), _worker(config, shapes, plan, worker)
        )
    return tuple(found.values())


def _worker(
    config: TrialConfig, shapes: Shapes, plan: PlacementPlan, worker: WorkerPlace
) -> WorkerMemory:
    share, each = plan.share(worker), config.resources.gpu_memory_gb
    on_gpu = share.gpus > 0 and config.model.device != "cpu"
    engine = Engine.of(config)
    roles = {role: role_memory(role, config, shapes, engine, on_gpu) for role in worker.roles}
    return WorkerMemory(
        worker.name,
        roles,
        on_gpu,
        share.memory_gb * GB or None,
        each * GB * min(1.0, share.gpus) if on_gpu and each is not None else None,
    )


def role_memory(
    role: str, config: TrialConfig, shapes: Shapes, engine: Engine, on_gpu: bool
) -> RoleMemory:
    """What one worker of ``role`` holds."""
    item = ITEM_BYTES[config.model.dtype]
    if role == "reward":
        weights = item * sum(shape.parameters for shape in shapes.rewards)
        passes = [_forward(shape, config, head=False) for shape in shapes.rewards]
        return RoleMemory(weights, activations=max(passes, default=0))
    if role == "reference":
        shape = shapes.reference
        common = item * shape.parameters if engine.rank and shape == shapes.policy else 0
        forward = _forward(shape, config, head=True)
        return RoleMemory(item * shape.parameters, activations=forward, shared=common)
    if role == "rollout":
        weights = item * shapes.policy.parameters
        if config.rollout.engine == "vllm":
            # Its own copy, and the one in the host's memory that weights are delivered to.
            held = held_cache(config, shapes.policy, weights)
            return RoleMemory(2 * weights, offloaded=weights, held=held, process=VLLM_BYTES)
        cache, copy = _decoding(shapes.policy, config), _copy(shapes.policy, config, on_gpu)
        shared = weights if engine.rank else 0
        if rests_between_batches(config):
            return RoleMemory(weights, cache=cache + copy, shared=shared)
        return RoleMemory(weights, cache=cache, held=copy, shared=shared)
    return _trained(role, config, shapes, engine, on_gpu)


def _trained(
    role: str, config: TrialConfig, shapes: Shapes, engine: Engine, on_gpu: bool
) -> RoleMemory:
    """The learner, or the critic: the trunk of the reward model where it reads the policy's tokens."""
    policy, reward = shapes.policy, shapes.reward
    shape, count, from_policy = policy, policy.parameters, True
    if role == "critic":
        alike = reward is not None and reward.vocabulary == policy.vocabulary
        if reward is not None and alike and config.model.critic_init == "reward":
            shape, from_policy = reward, False
        count = shape.trunk
    ranks = getattr(config.resources.roles, role).workers
    ranks = ranks if config.resources.layout != "fused" else 1
    item, moved = ITEM_BYTES[config.model.dtype], count
    adapters = 4 * _adapters(shape, engine.rank)
    if engine.rank:
        moved = adapters // 4
    weights = item * count + adapters
    # The torch engine sums gradients in float32, whatever the weights are.
    gradients = moved * (item if engine.sharded and not engine.rank else 4)
    optimiser = 8 * moved + (4 * moved if engine.masters else 0)
    weights //= ranks if engine.sharded == 3 else 1
    held = gradients // (ranks if engine.sharded >= 2 else 1)
    optimiser //= ranks if engine.sharded else 1
    offloaded = {"none": 0, "optimizer": optimiser, "all": optimiser + weights}[engine.offload]
    evaluation = _decoding(shape, config) + _copy(shape, config, on_gpu)
    return RoleMemory(
        weights,
        held,
        optimiser,
        activations=_update(shape, config, role, ranks, engine, gradients),
        cache=evaluation if role == "learner" else 0,
        offloaded=offloaded,
        shared=item * count if engine.rank and from_policy else 0,
    )


def _adapters(shape: ModelShape, rank: int) -> int:
    """Parameters of adapters on every linear layer but the head."""
    width = shape.width
    pairs = [(width, shape.query), (width, shape.key), (width, shape.key), (shape.query, width)]
    pairs += [(width, shape.inner), (width, shape.inner), (shape.inner, width)]
    return rank * shape.layers * sum(into + out for into, out in pairs)


def _rows(config: TrialConfig, most: int) -> int:
    """Rows of the largest pass over at most ``most`` rows."""
    optim, length = config.optim, _length(config)
    if optim.micro_batch_tokens is not None:
        return max(1, min(most, optim.micro_batch_tokens // length))
    return min(most, optim.micro_batch_size)


def _length(config: TrialConfig) -> int:
    return config.data.max_prompt_tokens + config.rollout.max_new_tokens


def _chunk(config: TrialConfig) -> int:
    """Rows that are sampled or scored at a time."""
    rollout = config.rollout
    trained = min(rollout.chunk_size, rollout.prompts_per_iteration) * rollout.samples_per_prompt
    return max(trained, min(rollout.chunk_size, config.eval.prompts))


def _layer(shape: ModelShape) -> float:
    """Numbers that a token leaves in a layer for its backward pass.

    The hidden state before attention and before the feed-forward block, both normed; queries, keys and values;
    what attention gives, and the same joined; four tensors inside the block.
    """
    kept = 4 * shape.width + 3 * shape.query + 2 * shape.key + 4 * shape.inner
    return kept if shape.lean else PLAIN_PASS * kept


def _logits(shape: ModelShape, config: TrialConfig, rows: int) -> int:
    """Logits of response tokens and what the log-probabilities are made of, in float32."""
    item = ITEM_BYTES[config.model.dtype]
    copies = 2 if item == 4 and config.rollout.temperature == 1.0 else 3
    tokens = rows * config.rollout.max_new_tokens
    return tokens * shape.vocabulary * (item + 4 * copies)


def _forward(shape: ModelShape, config: TrialConfig, head: bool) -> int:
    """A pass without gradients: one layer at a time, then the logits."""
    rows, item = _rows(config, _chunk(config)), ITEM_BYTES[config.model.dtype]
    layer = rows * _length(config) * _layer(shape) * item
    return int(max(layer, _logits(shape, config, rows) if head else 0))


def _update(
    shape: ModelShape, config: TrialConfig, role: str, ranks: int, engine: Engine, gradients: int
) -> int:
    """What an update takes beyond what stays.

    With one pass a step its activations are there while gradients are not, and go as those come.
    """
    step = -(-config.episodes_per_iteration // config.ppo.minibatches // ranks)
    rows, item = _rows(config, step), ITEM_BYTES[config.model.dtype]
    layers = shape.layers * _layer(shape)
    if engine.recompute:
        layers = shape.layers * shape.width + _layer(shape)
    kept = int(rows * _length(config) * layers * item)
    kept += _logits(shape, config, rows) if role == "learner" else 0
    # The gradient of the embedding is made as a whole before it is added.
    embedding = 0 if engine.rank else item * shape.vocabulary * shape.width
    return max(kept - (gradients if rows == step else 0), embedding)


def _decoding(shape: ModelShape, config: TrialConfig) -> int:
    """Keys and values of the largest chunk, and its logits."""
    rows, item = _chunk(config), ITEM_BYTES[config.model.dtype]
    cache = rows * _length(config) * shape.layers * 2 * shape.key * item
    return cache + rows * shape.vocabulary * 4 * DRAWN


def _copy(shape: ModelShape, config: TrialConfig, on_gpu: bool) -> int:
    """The weights in the form that is decoded with; the head has its own where the model ties it."""
    item, below = ITEM_BYTES[config.model.dtype], FOLD_BELOW if on_gpu else PACK_BELOW
    copied = shape.lean and item == 4 and shape.parameters < below
    return item * shape.parameters if copied else 0


def memory_problems(config: TrialConfig) -> list[str]:
    """Workers that need more than they are given, one line each; none where a model is not known yet."""
    shapes = Shapes.of(config)
    if shapes is None:
        return []
    found = []
    for worker in memory_of(config, shapes):
        name = "fused" if worker.name == "trial" else worker.name
        for need, limit, key, what in (
            (worker.host, worker.host_limit, f"resources.roles.{name}.memory_gb", "memory"),
            (worker.gpu, worker.gpu_limit, "resources.gpu_memory_gb", "GPU memory"),
        ):
            if limit is not None and need > limit:
                found.append(
                    f"{key}: a worker of {name} needs about {need / GB:.1f} GB of {what} "
                    f"({in_parts(worker)}), but is given {limit / GB:.1f}; give it more, or lower "
                    "optim.micro_batch_size, rollout.chunk_size or the length of responses"
                )
    return found


def in_parts(worker: WorkerMemory) -> str:
    """``weights 0.54, gradients 0.54, ...`` in GB, each part over all roles; empty parts are left out."""
    roles = worker.roles.values()
    common = [part.shared for part in roles]
    sums = {
        "weights": sum(part.weights for part in roles) - sum(common) + max(common, default=0),
        "gradients": sum(part.gradients for part in roles),
        "optimiser": sum(part.optimiser for part in roles),
        "cache": sum(part.held for part in roles),
        "passes": worker.passing,
        "process": 0 if worker.on_gpu else PROCESS_BYTES + sum(p.process for p in roles),
    }
    return ", ".join(f"{name} {size / GB:.2f}" for name, size in sums.items() if size >= 5e6)

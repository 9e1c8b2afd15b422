"""vLLM behind the interface of ``generation.engine``: in this very process, with weights delivered in place.

Weights are delivered to the owner's model; vLLM has its own copy in the layout its kernels want, and takes the
owner's over, adapters merged, tensor by tensor. So what arrives is proven before vLLM sees any of it, and
checkpoints and replacements need nothing from vLLM.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_core.config.generation import rests_between_batches
from rlhf_core.config.trial import TrialConfig
from rlhf_core.errors import ConfigError, RlhfError
from rlhf_core.generation.sampler import Sampling
from rlhf_core.generation.vllm_checks import INSTALL, MISSING, is_installed
from rlhf_core.generation.vllm_requests import drawn, engine_options, request_options
from rlhf_core.models.load import positions
from rlhf_core.models.lora import plain_weights
from rlhf_core.models.size import shape_of


class VllmEngine:
    """Samples with vLLM.

    Args:
        config: The trial.
        source: Folder or hub id that ``model`` was read from.
        model: The policy in the host's memory; its weights are those of ``source``.
        device: Where vLLM computes.

    Raises:
        ConfigError: If vLLM is not installed, or cannot serve the model.
    """

    def __init__(
        self, config: TrialConfig, source: str, model: nn.Module, device: torch.device
    ) -> None:
        self.model, self.device = model, device
        self.temperature = config.rollout.temperature
        self.sleeps = device.type == "cuda" and rests_between_batches(config)
        self.asleep = False
        vllm = import_vllm()
        _check_build(device)
        options = engine_options(
            config,
            shape_of(source),
            positions(model),
            on_gpu=device.type == "cuda",
            sleeps=self.sleeps,
        )
        with _process_as_it_was(), _in_one_line(source):
            self.llm = vllm.LLM(model=source, **options)
        self.params = vllm.SamplingParams
        self._names: set[str] = set()
        self._taken: set[str] = set()
        self.llm.apply_model(self._adapt)

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As ``generation.sampler.sample``, with a seed of its own for each row; tensors are the CPU's."""
        self._wake()
        asked = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        params = [self.params(**one) for one in request_options(sampling, seed, len(prompts))]
        answers = self.llm.generate(asked, params, use_tqdm=False)
        return drawn([_row(answer.outputs[0]) for answer in answers], sampling.pad_id)

    def refresh(self) -> None:
        """Takes the model's weights over; while asleep, as soon as it wakes.

        Raises:
            RlhfError: If there is no weight for one of vLLM's parameters.
        """
        if not self.asleep:
            self._take()

    def rest(self) -> None:
        """Frees weights and cache on a GPU that others compute on meanwhile; vLLM has no such thing on a CPU."""
        if self.sleeps and not self.asleep:
            # Level 2 keeps no copy: the owner's model is one.
            self.llm.sleep(level=2)
            self.asleep = True

    def close(self) -> None:
        """Ends the engine and its process group."""
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()

    def _wake(self) -> None:
        """What a batch needs is there, with the weights of now."""
        if self.asleep:
            # Blocks that torch keeps for later are memory that vLLM cannot have.
            torch.cuda.empty_cache()
            self.llm.wake_up(tags=["weights"])
            self._take()
            self.llm.wake_up(tags=["kv_cache"])
            self.asleep = False

    def _take(self) -> None:
        self._taken = set()
        with torch.no_grad():
            self.llm.collective_rpc(
                "reload_weights", kwargs={"weights_iterator": plain_weights(self.model)}
            )
            if self.device.type == "cpu":
                self.llm.apply_model(_lay_out_again)
        missing = sorted(self._names - self._taken)
        if missing:
            raise RlhfError(
                f"rollout: vLLM did not take {', '.join(missing[:3])} from the delivered weights; use "
                "rollout.engine 'native' with this model"
            )

    def _adapt(self, model: Any) -> None:
        """Has vLLM's model tell which parameters it took, and give logits at the trial's temperature."""
        self._names = {name for name, _ in model.named_parameters()}
        load, logits, temperature = model.load_weights, model.compute_logits, self.temperature

        def told(weights: Iterable[tuple[str, Tensor]]) -> set[str]:
            self._taken = set(load(weights))
            return self._taken

        def scaled(*args: Any, **named: Any) -> Tensor | None:
            found = logits(*args, **named)
            return None if found is None else found.float() / temperature

        model.load_weights = told
        if temperature != 1:
            model.compute_logits = scaled


def _lay_out_again(model: Any) -> None:
    """On a CPU vLLM multiplies with copies of weights; a reload leaves the one of a head that is the embedding."""
    for module in model.modules():
        if hasattr(module, "cpu_linear") and module.weight.numel():
            module.quant_method.process_weights_after_loading(module)


def _row(answer: Any) -> tuple[list[int], list[float]]:
    """Tokens and their log-probabilities; an answer may tell those of other tokens, too."""
    told = zip(answer.token_ids, answer.logprobs, strict=True)
    return list(answer.token_ids), [places[token].logprob for token, places in told]


def import_vllm() -> Any:
    """The package, told to stay in this process and to keep to itself.

    Raises:
        ConfigError: If it is not installed, or not whole.
    """
    # Its own process would be one that nobody here watches, and weights would be copied into it.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if not is_installed():
        raise ConfigError(MISSING)
    try:
        import vllm
    except ImportError as error:
        raise ConfigError(
            f"rollout.engine: 'vllm' cannot be imported ({_first_line(error)}); {INSTALL}, or use 'native'"
        ) from error
    return vllm


def _check_build(device: torch.device) -> None:
    """Refuses a vLLM that would compute elsewhere: where it does depends on how it was built."""
    from vllm.platforms import current_platform

    built = current_platform.device_type
    if built != device.type:
        raise ConfigError(
            f"rollout.engine: the vLLM that is installed computes on {built!r}, but the rollouts have "
            f"{device.type!r}; install the one for it, give the rollouts another device, or use 'native'"
        )


@contextlib.contextmanager
def _process_as_it_was() -> Iterator[None]:
    """Undoes what vLLM does to the process at its start: other roles may live here."""
    threads, set_threads = torch.get_num_threads(), torch.set_num_threads
    preloaded = os.environ.get("LD_PRELOAD")
    try:
        yield
    finally:
        # What its own workers would be started with.
        os.environ.pop("LD_PRELOAD", None)
        if preloaded is not None:
            os.environ["LD_PRELOAD"] = preloaded
        torch.set_num_threads = set_threads
        torch.set_num_threads(threads)
        gc.unfreeze()


@contextlib.contextmanager
def _in_one_line(source: str) -> Iterator[None]:
    """What vLLM refuses when it starts, as an error of the configuration."""
    try:
        yield
    except (ValueError, NotImplementedError, RuntimeError) as error:
        raise ConfigError(
            f"rollout.engine: 'vllm' cannot serve {source!r}: {_first_line(error)}; use 'native'"
        ) from error


def _first_line(error: Exception) -> str:
    """The first line of its message that says something; pydantic's begin with a count."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "validation error" not in line]
    return (told or lines or [type(error).__name__])[0]

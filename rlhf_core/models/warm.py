"""What a process keeps from one trial for the next: models, reset to what was read, and what never changes.

A model that was trained is reset from a copy of its first weights in a mapped file, one for all processes of the
node that read the same model. Whatever a configuration changes is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlhf_core.errors import WarmError
from rlhf_core.node_files import claim, sweep

# Stands for the role where several use one model.
SHARED = "shared"
# Roles whose models nobody changes.
FROZEN = ("reference", "reward", SHARED)
_open: ContextVar[tuple[Shelf, str] | None] = ContextVar("shelf", default=None)
# Shared models of a process that keeps nothing; they go with their last user.
_without_shelf: WeakValueDictionary[Hashable, nn.Module] = WeakValueDictionary()
M = TypeVar("M", bound=nn.Module)
T = TypeVar("T")


@dataclass
class _Model:
    key: Hashable
    owner: str
    model: nn.Module
    first: Path | None
    proven: bool = False


class Shelf:
    """Models and values of this process.

    Args:
        folder: Where first weights lie, of this node and of one run; see ``claim``.
    """

    def __init__(self, folder: Path) -> None:
        # Those of killed processes.
        sweep(folder.parent)
        self.folder, self._lock = folder, claim(folder)
        self._lent: list[_Model] = []
        self._idle: list[_Model] = []
        self._values: dict[Hashable, Any] = {}
        self.checks = False

    @contextlib.contextmanager
    def open(self, owner: str) -> Iterator[None]:
        """Inside, what is loaded comes from the shelf where it is there, for the role ``owner``."""
        token = _open.set((self, owner))
        try:
            yield
        finally:
            _open.reset(token)

    def collect(self, checks: bool = False) -> None:
        """The trial that used the models is over; the next one may have them.

        Args:
            checks: Compares each model with one that is read again, the first time it is reset.
        """
        self._idle, self._lent, self.checks = [*self._idle, *self._lent], [], checks

    def drop_idle(self) -> None:
        """Frees what nobody took."""
        self._idle.clear()

    def take(
        self, owner: str, key: Hashable, device: torch.device, read: Callable[[torch.device], M]
    ) -> M:
        """The model ``key``, as ``read`` returns it.

        Raises:
            WarmError: If it is compared, and is another.
        """
        found = next((m for m in self._idle if (m.owner, m.key) == (owner, key)), None)
        if found is None or (owner not in FROZEN and found.first is None):
            # What this role had before makes room first.
            self._idle = [m for m in self._idle if m.owner != owner]
            with _closed():
                model = read(device)
            first = None if owner in FROZEN else self._write(key, model)
            self._lent.append(_Model(key, owner, model, first))
            return model
        self._idle.remove(found)
        self._lent.append(found)
        if found.first is not None:
            reset(found.model, found.first)
        if self.checks and not found.proven:
            with _closed():
                prove(owner, found.model, read(torch.device("cpu")))
            found.proven = True
        return found.model  # type: ignore[return-value]

    def share(self, key: Hashable, device: torch.device, read: Callable[[torch.device], M]) -> M:
        """The model ``key`` for all roles that ask; none of them may change it."""
        lent = next((m for m in self._lent if (m.owner, m.key) == (SHARED, key)), None)
        return self.take(SHARED, key, device, read) if lent is None else lent.model  # type: ignore[return-value]

    def value(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` returned the first time."""
        if key not in self._values:
            self._values[key] = make()
        kept: T = self._values[key]
        return kept

    def close(self) -> None:
        """Gives everything up; the last of a folder removes it."""
        self._lent, self._idle, self._values = [], [], {}
        os.close(self._lock)
        sweep(self.folder.parent)

    def _write(self, key: Hashable, model: nn.Module) -> Path | None:
        """First weights as a file, written by whichever process is first; None where there is no room."""
        path = self.folder / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}.safetensors"
        if path.exists():
            return path
        tensors = {
            name: t.detach().cpu().contiguous().clone() for name, t in _tensors(model).items()
        }
        if 2 * sum(t.nbytes for t in tensors.values()) > shutil.disk_usage(self.folder).free:
            return None
        part = path.with_name(f"{uuid.uuid4().hex}.part")
        save_file(tensors, part)
        part.replace(path)
        return path


def from_shelf(key: Hashable, device: torch.device, read: Callable[[torch.device], M]) -> M:
    """The model ``key``: read, or taken from the shelf that is open."""
    found = _open.get()
    if found is None:
        return read(device)
    shelf, owner = found
    return shelf.take(owner, (key, str(device)), device, read)


def shared(key: Hashable, device: torch.device, read: Callable[[torch.device], M]) -> M:
    """The model ``key``, one for all roles of the process that ask; none of them may change it."""
    found, key = _open.get(), (key, str(device))
    if found is not None:
        return found[0].share(key, device, read)
    model = _without_shelf.get(key)
    if model is None:
        model = _without_shelf[key] = read(device)
    return model  # type: ignore[return-value]


def kept(key: Hashable, make: Callable[[], T]) -> T:
    """A value that never changes: made, or taken from the shelf that is open."""
    found = _open.get()
    return make() if found is None else found[0].value(key, make)


def stamp(source: str) -> Hashable:
    """Equal for equal sources: of a folder its files with sizes and times, otherwise the name."""
    path = Path(source)
    if not path.exists():
        return source
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    stats = [(str(file), file.stat()) for file in files]
    return source, tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


@torch.no_grad()
def reset(model: nn.Module, first: Path) -> None:
    """Brings parameters and buffers back to what they were at first, in place."""
    weights = load_file(first)
    for name, tensor in _tensors(model).items():
        tensor.copy_(weights[name])
    for parameter in model.parameters():
        parameter.grad = None


def prove(owner: str, model: nn.Module, read: nn.Module) -> None:
    """Compares every bit of ``model`` with that of one that was just read.

    Raises:
        WarmError: With the first difference.
    """
    warm, cold = _tensors(model), _tensors(read)
    for name in sorted({*warm, *cold}):
        if name not in warm or name not in cold or not _same(warm[name], cold[name]):
            raise WarmError(
                f"{owner}: {name} of the model that was kept must equal that of the model read again, but "
                "does not; this trial starts cold, and cluster.warm false leaves the comparison out"
            )
    if model.training != read.training:
        raise WarmError(f"{owner}: the model that was kept is in another mode than one read again")


@contextlib.contextmanager
def _closed() -> Iterator[None]:
    """A model that is made of others is kept as a whole."""
    token = _open.set(None)
    try:
        yield
    finally:
        _open.reset(token)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _same(one: Tensor, other: Tensor) -> bool:
    one, other = one.detach().cpu().contiguous(), other.detach().cpu().contiguous()
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    # By bytes: a NaN equals itself, and -0 is not 0.
    return torch.equal(one.view(-1).view(torch.uint8), other.view(-1).view(torch.uint8))

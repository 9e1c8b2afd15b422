"""What a model is, by content: equal digests are equal weights and tokens. Neither torch nor transformers."""

from __future__ import annotations

import functools
from pathlib import Path

import xxhash

from rlhf_core.errors import ConfigError

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".gguf", ".onnx")
BLOCK = 1 << 24


def digest(source: str, key: str, *, weights: bool = True) -> str:
    """Digest of a model folder's files, or the revision of a hub id.

    Args:
        source: A folder or a hub id.
        key: Configuration key; starts the line of an error.
        weights: False leaves out the weights, for what only uses the tokenizer.

    Raises:
        ConfigError: A file cannot be read, or the revision of a hub id is not known.
    """
    folder = Path(source).expanduser()
    if not folder.is_dir():
        return f"{source}@{_revision(source, key)}"
    whole = xxhash.xxh3_128()
    try:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            if weights or path.suffix not in WEIGHTS:
                whole.update(f"{path.relative_to(folder)}\0{file_digest(path)}\0".encode())
    except OSError as error:
        raise ConfigError(f"{key}: {source!r} cannot be read: {error.strerror}") from None
    return whole.hexdigest()


def file_digest(path: Path) -> str:
    """Digest of a file's bytes.

    Raises:
        OSError: It cannot be read.
    """
    found = path.stat()
    return _file(str(path), found.st_size, found.st_mtime_ns)


@functools.lru_cache(4096)
def _file(path: str, size: int, changed: int) -> str:
    """Digest of a file; read again only when its size or time of change differ."""
    content = xxhash.xxh3_128()
    with Path(path).open("rb") as stream:
        while block := stream.read(BLOCK):
            content.update(block)
    return content.hexdigest()


def _revision(source: str, key: str) -> str:
    """The commit that the local cache has of a hub id's main branch, or else the hub's."""
    from huggingface_hub import HfApi, try_to_load_from_cache

    found = try_to_load_from_cache(source, "config.json")
    if isinstance(found, str):
        # .../snapshots/COMMIT/config.json
        return Path(found).parent.name
    try:
        return str(HfApi().model_info(source).sha)
    # Whatever the network does, there is no revision then.
    except Exception as error:
        raise ConfigError(
            f"{key}: the revision of {source!r} must be known to share it, but neither the local cache nor "
            f"the hub names one ({type(error).__name__}); download it, or use placement 'trial'"
        ) from error

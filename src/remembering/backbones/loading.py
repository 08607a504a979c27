"""Find a checkpoint and load its model; a checkpoint is untrusted input.

Only configuration and safetensors files are read. Model classes are those of `FAMILIES`; neither
code of the checkpoint nor pickles are ever executed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from remembering.backbones.families import CONFIG_KEYS, FAMILIES, REJECTED, Family
from remembering.errors import (
    DownloadError,
    InvalidFileError,
    InvalidInputError,
    RememberingError,
    reason,
)
from remembering.runtime import hub
from remembering.runtime.reading import read_json, require_regular

BUNDLED = "bundled"
MAX_SIDE = 4096  # of the position embeddings, in pixels
MAX_THETA = 1e9  # of rotary position embeddings; DINOv3 has 100
_BUNDLED_FOLDER = Path(__file__).parent / "bundled"
_CONFIG, _PREPROCESSOR = "config.json", "preprocessor_config.json"
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_REVISION = re.compile(r"\w[\w.-]*(/[\w.-]+)*", re.ASCII)
_DTYPES = ("float32", "float16", "bfloat16", None)


@dataclass(frozen=True)
class Checkpoint:
    """The files of a checkpoint: in a local folder, or on the model hub at one commit."""

    name: str
    folder: Path | None
    revision: str | None

    @classmethod
    def find(cls, name: str | Path, revision: str | None = None) -> Checkpoint:
        """Locate a checkpoint; see `Backbone.load`.

        A checkpoint in the hub's cache is used as it is, without a request to the hub.
        """
        if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
            raise InvalidInputError(f"'{revision}' is not a branch, tag or commit")
        try:
            path = _BUNDLED_FOLDER if str(name) == BUNDLED else Path(name).expanduser()
            found = path.is_dir()
        except (RuntimeError, OSError) as error:  # an unknown user; a name that is too long
            raise InvalidFileError(
                f"there is no backbone folder {str(name)[:80]!r} ({reason(error)[:80]})"
            ) from error
        if found:
            if revision is not None:
                raise InvalidInputError(
                    f"revision '{revision}' applies to the model hub, but {name} is a local folder"
                )
            if not (path / _CONFIG).exists():
                raise InvalidFileError(
                    f"{path} has no {_CONFIG}; pass a folder in hub layout ({_CONFIG}, {_WEIGHTS}, "
                    f"{_PREPROCESSOR})"
                )
            return cls(str(name), path, None)
        repository = str(name)
        if path.is_absolute() or repository.startswith((".", "~")) or repository.count("/") > 1:
            raise InvalidFileError(f"there is no backbone folder {path}")
        checkpoint = cls(repository, None, revision)
        config = checkpoint._cached(_CONFIG)
        if config is None:
            if not hub.reachable():
                raise DownloadError(
                    f"backbone '{name}' is neither a local folder nor in the hub's cache, and the "
                    "hub cannot be reached; go online once, or give a local folder in hub layout "
                    "as the backbone (--backbone)"
                )
            config = checkpoint.file(_CONFIG)
        # The cache keeps the files of a commit in snapshots/<commit>.
        if config is not None and config.parent.parent.name == "snapshots":
            revision = config.parent.name
        return cls(repository, None, revision)

    def file(self, filename: str) -> Path | None:
        """Return the path of a file, downloaded if necessary; None if it does not exist.

        Raises:
            DownloadError: If the hub cannot be reached, or refuses the download.
        """
        found = self._cached(filename)
        if found is not None or self.folder is not None:
            return found
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            if try_to_load_from_cache(self.name, filename, revision=self.revision) is not None:
                return None  # known not to exist
            return Path(hf_hub_download(self.name, filename, revision=self.revision))
        except LocalEntryNotFoundError as error:
            raise DownloadError(
                f"{filename} of backbone '{self.name}' is not in the hub's cache, and the hub "
                "cannot be reached; go online once, or pass a local folder"
            ) from error
        except EntryNotFoundError:
            return None
        except Exception as error:  # the hub's client has many exceptions
            raise DownloadError(
                f"backbone '{self.name}' cannot be downloaded: {reason(error)[:300]}"
            ) from error

    def preprocessor_config(self) -> Path | None:
        """Return the path of preprocessor_config.json; None if the checkpoint has none."""
        return self.file(_PREPROCESSOR)

    def config(self) -> dict[str, Any]:
        """Read config.json."""
        path = self.file(_CONFIG)
        config = read_json(path) if path else None
        if not isinstance(config, dict):
            raise InvalidFileError(f"{_CONFIG} of checkpoint '{self.name}' is not a JSON object")
        return config

    def weights(self) -> dict[str, Tensor]:
        """Read all tensors from one safetensors file, or from the files that an index lists."""
        tensors: dict[str, Tensor] = {}
        for path in self._weight_files():
            require_regular(path)
            tensors |= load_file(path)
        return tensors

    def _weight_files(self) -> list[Path]:
        single = self._cached(_WEIGHTS)
        index = single or self._cached(_INDEX)  # what is in the cache needs no request
        single = single or (self.file(_WEIGHTS) if index is None else None)
        if single is not None:
            return [single]
        index = index or self.file(_INDEX)
        if index is None:
            raise InvalidFileError(
                f"checkpoint '{self.name}' has no {_WEIGHTS}; weights in other formats are not "
                "loaded, convert them with save_pretrained of transformers"
            )
        shards = read_json(index)
        names = shards.get("weight_map") if isinstance(shards, dict) else None
        if not isinstance(names, dict) or not all(map(_is_shard, names.values())):
            raise InvalidFileError(
                f"{index} does not map weights to safetensors files in the same folder"
            )
        paths = {name: self.file(name) for name in sorted(set(names.values()))}
        missing = [name for name, path in paths.items() if path is None]
        if missing:
            raise InvalidFileError(f"checkpoint '{self.name}' has no file {missing[0]}")
        return [path for path in paths.values() if path is not None]

    def _cached(self, filename: str) -> Path | None:
        """Return a file of a local folder or of the hub's cache; None if it is not there."""
        if self.folder is not None:
            path = self.folder / filename
            return path if path.exists() else None
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            cached = try_to_load_from_cache(self.name, filename, revision=self.revision)
        except HFValidationError as error:
            raise InvalidInputError(
                f"'{self.name}' is neither a local folder nor a name on the model hub"
            ) from error
        return Path(cached) if isinstance(cached, str) else None


def load_model(checkpoint: Checkpoint) -> tuple[Any, Family, nn.Linear | None]:
    """Load the model of a checkpoint.

    Returns:
        The base model of transformers, its family, and its image classifier if it has one that
        reads the CLS token.

    Raises:
        InvalidFileError: If the checkpoint is damaged, or its model type is not supported.
    """
    spec = checkpoint.config()
    kind = spec.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        why = f" ({REJECTED[kind]})" if isinstance(kind, str) and kind in REJECTED else ""
        raise InvalidFileError(
            f"checkpoint '{checkpoint.name}' has the model type {kind!r}, which is not supported"
            f"{why}; supported are {', '.join(FAMILIES)}"
        )
    family = FAMILIES[kind]
    architectures = spec.get("architectures")
    named = architectures[:1] if isinstance(architectures, list) else []
    classifier_class = next((name for name in family.classifiers if name in named), None)
    try:
        vision = spec.get("vision_config", spec) if family.vision_config else spec
        model, info = _build(
            checkpoint.weights(),
            {key: value for key, value in vision.items() if key in CONFIG_KEYS},
            family.config_class,
            classifier_class or family.model_class,
        )
    except (RememberingError, MemoryError):
        raise
    except Exception as error:  # transformers, torch and safetensors each have their own
        raise InvalidFileError(
            f"checkpoint '{checkpoint.name}' cannot be loaded: {reason(error)[:300]}"
        ) from error
    missing = [key for key in info["missing_keys"] if "pooler" not in key]
    if missing:
        raise InvalidFileError(
            f"checkpoint '{checkpoint.name}' lacks {len(missing)} weights, such as "
            f"{sorted(missing)[0]}; it is damaged or of another architecture"
        )
    if classifier_class is None:
        return model, family, None
    classifier = getattr(model, "classifier", None) or model.cls_classifier
    return model.base_model, family, classifier if isinstance(classifier, nn.Linear) else None


def _build(
    weights: dict[str, Tensor], spec: dict[str, Any], config_class: str, model_class: str
) -> tuple[Any, dict[str, Any]]:
    import transformers

    if spec.get("dtype", spec.get("torch_dtype")) not in _DTYPES:
        raise ValueError("its weights have a type that is not supported")
    for key, tensor in weights.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"weight {key} has values that are NaN or infinite")
    config = getattr(transformers, config_class).from_dict(spec)
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    if heads < 1 or config.hidden_size % heads:
        raise ValueError(f"hidden size {config.hidden_size} is not a multiple of {heads} heads")
    if not 1 <= layers <= len(weights):
        raise ValueError(f"its configuration has {layers} layers, its files {len(weights)} weights")
    if hasattr(config, "rope_theta"):
        if config.hidden_size // heads % 4:
            raise ValueError("rotary position embeddings need heads of a multiple of 4 dimensions")
        if not 1 <= config.rope_theta <= MAX_THETA:
            raise ValueError(f"rope_theta {config.rope_theta} is not from 1 to {MAX_THETA:g}")
    for key in ("image_size", "patch_size"):
        value = getattr(config, key)
        side = value if isinstance(value, int) else value[0]
        if not 1 <= side <= MAX_SIDE or value not in (side, [side, side], (side, side)):
            raise ValueError(f"{key} {value} is not one number from 1 to {MAX_SIDE}")
        setattr(config, key, side)
    with _quiet(transformers.logging):
        # The weights are passed in, so that transformers opens no file of the checkpoint.
        loaded: tuple[Any, dict[str, Any]] = getattr(transformers, model_class).from_pretrained(
            None,
            config=config,
            state_dict=weights,
            output_loading_info=True,
            trust_remote_code=False,
        )
    return loaded


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Suppress the messages and progress bars of transformers."""
    verbosity, progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if progress:
            logging.enable_progress_bar()


def _is_shard(name: object) -> bool:
    return isinstance(name, str) and Path(name).name == name and name.endswith(".safetensors")

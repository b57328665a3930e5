"""Saving and loading with the names that the Hugging Face hub's own mixin uses.

    model.save_pretrained("folder")                     # config.json, model.safetensors, README.md
    model = CapsNet.from_pretrained("folder")           # or a run folder, or "owner/name" on the hub
    model.push_to_hub("owner/name")

Folders need nothing but this package; the hub needs the extra `hub` (`pip install 'torchcaps[hub]'`).
"""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from torchcaps import __version__
from torchcaps.core.errors import UserError
from torchcaps.core.files import read_json, write_bytes, write_json, write_tensors
from torchcaps.models.config import model_config, model_from_config
from torchcaps.routing import routing_name

T = TypeVar("T", bound="Pretrained")
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"

_CARD = """---
library_name: torchcaps
pipeline_tag: image-classification
tags:
- capsule-networks
- pytorch
---

# {title}

{kind}, {parameters:,} parameters, for images of {image}, {classes} classes.
{facts}
```python
from {module} import {type}

model = {type}.from_pretrained("{repo}").eval()
output = model(images)  # [b, {shape}] in [0, 1]: lengths, capsules, reconstruction, trace
```

{note}`config.json` has every option of the model. Written by torchcaps {version}.
"""
_LENGTHS = (
    "The length of a class capsule says how sure the network is that the class is present; it is not a probability.\n"
)


class Pretrained:
    """A mixin for models that have a `config` and a state dict."""

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: Mapping[str, object] | None = None,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Write the folder; `model_card_kwargs` are facts for its card, such as `data` and `accuracy`.

        A card that is already there stays. With `push_to_hub`, what `push_to_hub` returns.
        """
        folder = Path(save_directory)
        config = model_config(self)  # pyright: ignore[reportArgumentType]
        write_tensors(folder / WEIGHTS, self.state_dict())  # pyright: ignore[reportAttributeAccessIssue]
        write_json(folder / CONFIG, {**config, "torchcaps_version": __version__})
        if not (folder / CARD).exists():
            write_bytes(folder / CARD, self._card(config, repo_id or folder.name, model_card_kwargs or {}).encode())
        if push_to_hub:
            return self.push_to_hub(repo_id or folder.name, model_card_kwargs=model_card_kwargs, **push_to_hub_kwargs)
        return None

    @classmethod
    def from_pretrained(
        cls: type[T],
        pretrained_model_name_or_path: str | Path,
        *,
        revision: str | None = None,
        cache_dir: str | Path | None = None,
        token: str | bool | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        **given: Any,
    ) -> T:
        """The model in a folder, also a run folder, or in a repository of the hub, in evaluation mode.

        `given` replaces fields of its configuration: `backbone=module` for a model that was made with such a module.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            options = {"revision": revision, "cache_dir": cache_dir, "token": token}
            options |= {"force_download": force_download, "local_files_only": local_files_only}
            folder = _download(str(pretrained_model_name_or_path), options)
        config = read_json(folder / CONFIG)
        config = dict(config.get("model", config))
        config.pop("torchcaps_version", None)
        model = model_from_config(config, **given)
        if not isinstance(model, cls):
            raise UserError(f"{folder} holds a {type(model).__name__}, not a {cls.__name__}")
        try:
            model.load_state_dict(load_file(folder / WEIGHTS))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise UserError(f"{folder / WEIGHTS} cannot be read: {str(error).splitlines()[0]}") from None
        return model.eval()

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str = "Push model with torchcaps",
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
        model_card_kwargs: Mapping[str, object] | None = None,
    ) -> str:
        """Upload what `save_pretrained` writes and return the address of the commit."""
        api = _hub(f"to push to {repo_id}").HfApi(token=token)
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder, repo_id=repo_id, model_card_kwargs=model_card_kwargs)
            try:
                repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
                if branch is not None:
                    api.create_branch(repo_id=repo_id, branch=branch, exist_ok=True)
                commit = api.upload_folder(
                    repo_id=repo_id,
                    folder_path=folder,
                    commit_message=commit_message,
                    revision=branch,
                    create_pr=create_pr,
                )
            except (OSError, ValueError) as error:
                raise UserError(f"{repo_id} could not be pushed: {str(error).splitlines()[0]}") from None
        return commit.commit_url

    def _card(self, config: Mapping[str, Any], repo: str, facts: Mapping[str, object]) -> str:
        c, h, w = config["image"]
        rows = "".join(f"| {name.replace('_', ' ')} | {_text(value)} |\n" for name, value in facts.items())
        return _CARD.format(
            title=repo.rpartition("/")[2],
            kind=f"{type(self).__name__} with {routing_name(self.config.routing)} routing"  # pyright: ignore[reportAttributeAccessIssue]
            if "routing" in config
            else type(self).__name__,
            parameters=sum(parameter.numel() for parameter in self.parameters()),  # pyright: ignore[reportAttributeAccessIssue]
            image=f"{w}x{h} pixels, {c} channel{'s' if c > 1 else ''}",
            classes=config["classes"],
            facts=f"\n| | |\n|---|---|\n{rows}" if rows else "",
            module=type(self).__module__,
            type=type(self).__name__,
            repo=repo,
            shape=f"{c}, {h}, {w}",
            note=_LENGTHS if "routing" in config else "",
            version=__version__,
        )


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _hub(purpose: str) -> Any:
    try:
        import huggingface_hub  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(f"{purpose}: pip install 'torchcaps[hub]'") from None
    return huggingface_hub


def _download(repo_id: str, options: Mapping[str, Any]) -> Path:
    hub = _hub(f"{repo_id} is not a folder; to look for it on the hub")
    try:
        return Path(hub.snapshot_download(repo_id, allow_patterns=[CONFIG, WEIGHTS], **options))
    except (OSError, ValueError) as error:
        raise UserError(f"{repo_id} could not be fetched from the hub: {str(error).splitlines()[0]}") from None

"""Saving and loading with the names that the Hugging Face hub's own mixin uses.

    model.save_pretrained("folder")                     # config.json, model.safetensors, README.md
    model = CapsNet.from_pretrained("folder")           # or a run folder, or "owner/name" on the hub
    model.push_to_hub("owner/name")

Folders need nothing but this package; the hub needs the extra `hub` (`pip install 'torchcaps[hub]'`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from torchcaps import __version__
from torchcaps.core.errors import UserError
from torchcaps.core.files import read_record, read_tensors, write_bytes, write_json, write_tensors
from torchcaps.models.config import model_config, model_from_config
from torchcaps.models.pretrained import PRETRAINED
from torchcaps.routing import routing_name

T = TypeVar("T", bound="Pretrained")
DATA_LICENCES = {
    "fashion-mnist": "Fashion-MNIST: MIT",
    "cifar10": "CIFAR-10: its authors state none",
    "norb-style": "norb-style: rendered by the package, MIT",
    "svhn": "SVHN: for non-commercial use only",
    "mnist": "MNIST: CC BY-SA 3.0",
}
"""By what the names of data sets contain."""
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
RESULT, HASH = "result.json", "weights_sha256"

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
        config: Any = None,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: Mapping[str, object] | None = None,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Write the folder; `model_card_kwargs` are facts for its card, such as `data` and `accuracy`.

        A card that is already there stays. With `push_to_hub`, what `push_to_hub` returns. The configuration is the
        model's own: `config` is there because the hub's mixin passes it.
        """
        if config is not None:
            raise UserError("the configuration of a model is its own: leave config out")
        folder, facts = Path(save_directory), dict(model_card_kwargs or {})
        repo = repo_id or str(facts.pop("repo_id", folder.name))
        written = {**model_config(self), "torchcaps_version": __version__}  # pyright: ignore[reportArgumentType]
        written[HASH] = write_tensors(folder / WEIGHTS, self.state_dict())  # pyright: ignore[reportAttributeAccessIssue]
        write_json(folder / CONFIG, written)
        if not (folder / CARD).exists():
            write_bytes(folder / CARD, self.model_card(repo, facts).encode())
        if push_to_hub:
            return self.push_to_hub(repo, model_card_kwargs=facts, **push_to_hub_kwargs)
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

        folder = Path(pretrained_model_name_or_path)
        if not folder.is_dir():
            options = {"revision": revision, "cache_dir": cache_dir, "token": token}
            options |= {"force_download": force_download, "local_files_only": local_files_only}
            folder = _download(str(pretrained_model_name_or_path), options)
        whole = read_record(folder / CONFIG, also={"model": dict, HASH: str})
        config = dict(whole.get("model") or whole)
        config.pop("torchcaps_version", None)
        # A run has the hash in its result; what an earlier version saved has none.
        sha256 = config.pop(HASH, None)
        if "model" in whole and (folder / RESULT).exists():
            sha256 = read_record(folder / RESULT, also={HASH: str}).get(HASH)
        model = model_from_config(config, **given)
        if not isinstance(model, cls):
            raise UserError(f"{folder} holds a {type(model).__name__}, not a {cls.__name__}")
        try:
            model.load_state_dict(read_tensors(folder / WEIGHTS, sha256))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise UserError(f"{folder / WEIGHTS} cannot be read: {str(error).splitlines()[0]}") from None
        return model.eval()

    def push_to_hub(
        self,
        repo_id: str,
        *,
        commit_message: str = "Push model with torchcaps",
        model_card_kwargs: Mapping[str, object] | None = None,
        **options: Any,
    ) -> str:
        """Upload what `save_pretrained` writes, through the hub's own mixin; returns the address of the commit.

        `options` are those of `huggingface_hub.ModelHubMixin.push_to_hub`: `private`, `token`, `branch`, `create_pr`,
        `allow_patterns`, `ignore_patterns`, `delete_patterns`.
        """
        mixin = _hub(f"to push to {repo_id}").ModelHubMixin
        facts = {**(model_card_kwargs or {}), "repo_id": repo_id}
        try:
            commit = mixin.push_to_hub(self, repo_id, commit_message=commit_message, model_card_kwargs=facts, **options)
        except (OSError, ValueError) as error:
            raise UserError(f"{repo_id} could not be pushed: {str(error).splitlines()[0]}") from None
        return str(getattr(commit, "commit_url", commit))

    def model_card(self, repo: str, facts: Mapping[str, object]) -> str:
        """The card in Markdown, with a header for the hub; `facts` become a table."""
        config = model_config(self)  # pyright: ignore[reportArgumentType]
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


def card_facts(name: str) -> dict[str, Any]:
    """What is known about the weights in the package: scores, limits, how they were trained, licence."""
    card = PRETRAINED[name]
    facts: dict[str, Any] = {}
    for data, score in card["scores"].items():
        facts[f"accuracy on {data}"] = f"{score['accuracy']:.2%} ({score['metric']}, {score['images']:,} images)"
    lost = {what: row["lost"] for what, row in card.get("corruptions", {}).get("corruptions", {}).items()}
    if lost:
        facts["points lost under corruption"] = [f"{what} {100 * value:.1f}" for what, value in lost.items()]
    earlier = card.get("began_with", ())
    seconds = card["seconds"] + sum(part["seconds"] for part in earlier)
    facts["training"] = f"{seconds:,.0f} s on {card['machine']['processor']}, {card['machine']['threads']} threads"
    facts["recipe"] = ", then ".join(f"`{part['command']}`" for part in (*earlier, card) if "command" in part)
    facts["seeds"] = f"one training, seed {card['recipe']['seed']}"
    worst = f"; it loses most with the corruption {max(lost, key=lost.__getitem__)}" if lost else ""
    facts["limits"] = f"for images like those it was trained on{worst}"
    licence = next((text for word, text in DATA_LICENCES.items() if word in card["recipe"]["data"]), None)
    facts["licence"] = f"the weights: MIT; the data, {licence}" if licence else "the weights: MIT"
    facts["sha256 of the weights in the package"] = f"`{card['sha256'][:16]}...`"
    return facts


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

"""A model's configuration, to JSON and back.

A run folder names the kind of its model (`capsnet`, `cnn`, `matrix`, or the name that somebody registered) and every
field of its configuration. What JSON cannot hold, a routing or a backbone of somebody's own, is named by its import
path; whoever loads the run has that module on their path, or hands the object over.
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from torchcaps.core.errors import UserError
from torchcaps.routing import ROUTINGS, Routing

OLD_NAMES = {"digits": "objects"}
"""Fields that earlier versions called otherwise."""


@dataclass(frozen=True)
class Kind:
    """A class of configurations, and what builds the network of one; `module` is what has to be imported for both."""

    config: type
    build: Callable[[Any], nn.Module]
    module: str


KINDS: dict[str, Kind] = {}

Model = Any
"""An `nn.Module` with a `config`, a `loss(output, batch)`, and a `forward` that returns a `ModelOutput`."""


def model_config(model: nn.Module) -> dict[str, Any]:
    """What a run folder keeps of a model. A module without a configuration is known by its class alone."""
    name = known_kind(model)
    if name is None:
        return {"kind": "module", "class": import_path(type(model))}
    config, kind = getattr(model, "config"), KINDS[name]  # noqa: B009 - not every module has one
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(kind.config)}
    outside = {} if kind.module.startswith("torchcaps.") else {"import": kind.module}
    return {"kind": name, **outside, **{key: _plain(value) for key, value in values.items()}}


def known_kind(model: nn.Module) -> str | None:
    """The name of its kind, if the network can be built again from its configuration."""
    config = type(getattr(model, "config", None))
    return next((name for name, kind in KINDS.items() if kind.config is config), None)


def model_from_config(config: Mapping[str, Any], **given: Any) -> nn.Module:
    """The network that `model_config` describes; `given` takes the place of fields that JSON could not hold."""
    fields = {OLD_NAMES.get(name, name): value for name, value in config.items()}
    name, module = str(fields.pop("kind", None)), fields.pop("import", None)
    if name == "module":
        raise UserError(
            f"this run was made with the network {fields.get('class')}: hand one over, load_run(run, model=...)"
        )
    if name not in KINDS and module:
        _import(module, f"this run was made with the model '{name}'")
    if name not in KINDS:
        where = f", which {module} registers" if module else f"; there are {', '.join(KINDS)}"
        raise UserError(f"this run needs the model '{name}'{where}")
    try:
        read = {key: _rich(key, value) for key, value in fields.items() if key not in given}
        return KINDS[name].build(KINDS[name].config(**read, **given))
    except (KeyError, TypeError) as error:
        raise UserError(f"the model's configuration is not one of this version: {error}") from None


def import_path(kind: Any) -> str:
    """Where a class or a function is defined, such as `package.module:Name`."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _plain(value: Any) -> Any:
    """For JSON: classes by their import path, a routing made by hand with its options."""
    if isinstance(value, type):
        known = next((name for name, routing in ROUTINGS.items() if routing is value), None)
        return known or {"class": import_path(value)}
    if isinstance(value, Routing):
        return {"class": import_path(type(value)), "options": value.options}
    if isinstance(value, nn.Module):
        return {"module": import_path(type(value))}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def _rich(field: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_rich(field, item) for item in value)
    if isinstance(value, dict) and "module" in value:
        made_with = f"this run was made with the {field} {value['module']}"
        raise UserError(f"{made_with}, which a file cannot hold: load_run(run, {field}=...) takes another like it")
    if isinstance(value, dict) and "class" in value:
        module, _, name = str(value["class"]).partition(":")
        found: Any = _import(module, f"this run was made with {value['class']}")
        for part in name.split("."):
            found = getattr(found, part, None)
        if not (isinstance(found, type) and issubclass(found, Routing)):
            raise UserError(f"this run was made with {value['class']}, which is not there any more")
        return found
    return value


def _import(module: str, why: str) -> Any:
    """A module that is imported already. A file from elsewhere must not decide what code runs, so none is imported."""
    if module in sys.modules:
        return sys.modules[module]
    raise UserError(f"{why}: 'import {module}' first, then load it")


def check_fields(name: str, config: Any, overrides: Mapping[str, Any]) -> None:
    """Refuse what a configuration does not have, by name."""
    known = {field.name for field in dataclasses.fields(config)}
    unknown = sorted(set(overrides) - known)
    if unknown:
        raise UserError(f"{name} has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")

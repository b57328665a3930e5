"""A model's configuration, to JSON and back.

A run folder has the kind of its model (`capsnet`, `cnn`, `matrix`, or a registered name) and every field of its
configuration. A class from outside, such as your own routing, is saved by its import path and has to be imported before
the run is loaded. A module instance, such as your own backbone, is not saved and has to be given again.
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from torch import nn

from torchcaps.core.errors import UserError
from torchcaps.core.files import is_as_annotated
from torchcaps.models.timm_backbones import offer
from torchcaps.routing import ROUTINGS, Routing, VoteShape

OLD_NAMES = {"digits": "objects"}
"""Names of fields in earlier versions, and their names now."""
LARGEST = 2**20
"""Of the numbers in a configuration, but for seeds."""


@dataclass(frozen=True)
class Kind:
    """A class of configurations and the function that builds a network from one; `module` is where they are defined."""

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
    outside = {} if _ours(kind.module) else {"import": kind.module}
    return {"kind": name, **outside, **{key: _plain(value, key) for key, value in values.items()}}


def known_kind(model: nn.Module) -> str | None:
    """The name of its kind, if the network can be built again from its configuration."""
    config = type(getattr(model, "config", None))
    for name, kind in KINDS.items():
        # A class derived from one of ours is another network.
        if kind.config is config and (not isinstance(kind.build, type) or type(model) is kind.build):
            return name
    return None


def model_from_config(config: Mapping[str, Any], **given: Any) -> nn.Module:
    """The network that `model_config` describes; `given` replaces fields, such as a backbone that JSON cannot hold."""
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
    kind = KINDS[name]
    check_fields(name, kind.config, given)
    try:
        rich = {field: _rich(field, value) for field, value in fields.items() if field not in given}
        _check_sizes(rich)
        _check_kinds(kind.config, rich)
        offer({**rich, **given}.get("backbone"), pretrained=False)
        return kind.build(kind.config(**rich, **given))
    except UserError:
        raise
    except Exception as error:  # whatever a file makes a network stumble over
        why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise UserError(f"the model's configuration is not one of this version: {why}") from None


def _check_sizes(value: Any, name: str = "") -> None:
    """No network has sizes of millions; to try would take all memory first."""
    if isinstance(value, Mapping | list | tuple):
        parts = value.items() if isinstance(value, Mapping) else ((name, part) for part in value)
        for key, part in parts:
            _check_sizes(part, str(key))
    elif isinstance(value, int | float) and not abs(value) < LARGEST and name != "seed":
        raise UserError(f"the model's configuration is damaged: '{name}' is {value:.3g}")


def _check_kinds(config: type, values: Mapping[str, Any]) -> None:
    """Some fields are first read when an image comes, which is too late to say that a file is damaged."""
    hints = get_type_hints(config)
    for name, value in values.items():
        if not is_as_annotated(value, hints.get(name)):
            raise UserError(f"the model's configuration is damaged: '{name}' is {str(value)[:60]!r}")
    for name in ("image", "classes", "objects"):
        if name not in values:
            continue
        counts = values[name] if isinstance(values[name], tuple) else (values[name],)
        if min(counts) < 1 or (name == "objects" and values[name] > values.get("classes", LARGEST)):
            raise UserError(f"the model's configuration is damaged: '{name}' is {values[name]}")


def import_path(kind: Any) -> str:
    """Where a class or a function is defined, such as `package.module:Name`."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _ours(module: str) -> bool:
    return module.split(".")[0] == "torchcaps"


def _plain(value: Any, field: str) -> Any:
    """For JSON: a class by its import path, a routing instance with its sizes and options.

    A routing that somebody registered is kept by its class, so that loading can say which import it needs.
    """
    if field in ("routing", "hidden") and isinstance(value, str):
        value = ROUTINGS.get(value, value)
    if isinstance(value, type):
        names = [name for name, routing in ROUTINGS.items() if routing is value and _ours(value.__module__)]
        return names[0] if names else {"class": import_path(value)}
    if isinstance(value, Routing):
        return {"class": import_path(type(value)), "shape": value.shape, "options": _plain(value.options, "")}
    if isinstance(value, nn.Module):
        return {"module": import_path(type(value))}
    if isinstance(value, tuple | list):
        return [_plain(item, field) for item in value]
    return {key: _plain(item, "") for key, item in value.items()} if isinstance(value, dict) else value


def _rich(field: str, value: Any) -> Any:
    """The way back from `_plain`."""
    if isinstance(value, list):
        return tuple(_rich(field, item) for item in value)
    if isinstance(value, dict) and "module" in value:
        made_with = f"this run was made with the {field} {value['module']}"
        raise UserError(f"{made_with}, which is not saved with it: make one and give it as {field}=...")
    if isinstance(value, dict) and "class" in value:
        module, _, name = str(value["class"]).partition(":")
        found: Any = _import(module, f"this run was made with {value['class']}")
        for part in name.split("."):
            found = getattr(found, part, None)
        wanted = nn.Module if field == "backbone" else Routing
        if not (isinstance(found, type) and issubclass(found, wanted)):
            raise UserError(f"this run was made with {value['class']}: there is no such {field} in {module} now")
        if "options" not in value:
            return found
        shape = [VoteShape(*value["shape"])] if value.get("shape") else []
        return found(*shape, **value["options"])
    return value


def _import(module: str, why: str) -> Any:
    """A module that is already imported. It is not imported here: a file must not decide which code is run."""
    if module in sys.modules:
        return sys.modules[module]
    raise UserError(f"{why}, and {module} is not imported: 'import {module}' first, then load the run")


def check_fields(name: str, config: Any, overrides: Mapping[str, Any]) -> None:
    """Raise an error that names the fields that a configuration does not have."""
    known = {field.name for field in dataclasses.fields(config)}
    unknown = sorted(set(overrides) - known)
    if unknown:
        raise UserError(f"{name} has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")

"""Networks by name, and what they are made of."""

from torchcaps.models.registry import MODELS, create_model, list_models, register_model

__all__ = ["MODELS", "create_model", "list_models", "register_model"]

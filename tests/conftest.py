"""Shapes are types while testing: every annotated function of the package is checked at each call."""

import hypothesis
import jaxtyping
import torch

# Before anything imports torchcaps. An int is a float here, as PEP 484 says.
jaxtyping.install_import_hook("torchcaps", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")

torch.set_num_threads(1)
hypothesis.settings.register_profile("torchcaps", deadline=None, max_examples=20, derandomize=True, database=None)
hypothesis.settings.load_profile("torchcaps")

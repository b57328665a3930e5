"""The same mathematics, faster. Every kernel has a plain twin in PyTorch's own words, and a test holds them together.

`TORCHCAPS_KERNELS` chooses: `plain` for the twins, `fast` for the kernels, `auto` (the default) for what measures best.
"""

"""The same mathematics, faster. Every kernel has a plain twin in PyTorch's own operators, and a test compares both.

`dispatch.py` says which kernel serves which routing, `convolution.py` which way a convolution is computed.
`TORCHCAPS_KERNELS` chooses: `plain` for the twins, `fast` for the kernels, `auto` (the default) for the faster one.
"""

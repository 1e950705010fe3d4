# SPDX-License-Identifier: Apache-2.0
"""Measures the machine code of kernels for NVIDIA GPUs; `scripts/machine-code.py` runs it."""

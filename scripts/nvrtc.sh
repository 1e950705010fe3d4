#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs NVIDIA's runtime compiler (NVRTC, from PyPI; needs no GPU) into target/nvrtc, once.
# Prints the folder of its library, for NVRTC_PATH in tests and device.nvrtc_path in a session.
set -eu
exec "$(dirname "$0")/nvidia-wheel.sh" nvrtc "${NVRTC_VERSION:-13.0.88}" 'libnvrtc.so.*'

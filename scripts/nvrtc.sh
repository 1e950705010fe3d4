#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs NVIDIA's runtime compiler (NVRTC, from PyPI; needs no GPU) into target/nvrtc, once.
# Prints the folder of its library, for NVRTC_PATH in tests and device.nvrtc_path in a session.
set -eu

version=${NVRTC_VERSION:-13.0.88}
target=$(cd "$(dirname "$0")/.." && pwd)/target/nvrtc

library() {
    find "$target" -name 'libnvrtc.so.*' -exec dirname {} \; 2>/dev/null | head -n 1
}

if [ "$(cat "$target/version" 2>/dev/null)" != "$version" ] || [ -z "$(library)" ]; then
    if ! python3 -m pip --version >/dev/null 2>&1; then
        echo "nvrtc.sh: python3 with pip not found; on Debian or Ubuntu: apt-get install python3-pip" >&2
        exit 1
    fi
    echo "nvrtc.sh: installing NVRTC $version into $target" >&2
    rm -rf "$target"
    mkdir -p "$target"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps \
        --only-binary=:all: --target "$target" "nvidia-cuda-nvrtc==$version" >&2
    # Written last, so that an interrupted install is repeated.
    echo "$version" >"$target/version"
fi
library

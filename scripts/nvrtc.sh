#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Puts NVIDIA's run-time compiler (NVRTC, from PyPI; needs no GPU) into target/nvrtc, once, and prints the
# folder of its library. Give that folder to the tests as NVRTC_PATH, to a session as device.nvrtc_path.
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
    # Written last: an interrupted install is made again.
    echo "$version" >"$target/version"
fi
library

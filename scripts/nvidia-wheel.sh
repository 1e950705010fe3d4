#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs a tool of NVIDIA's from PyPI into target/NAME, once; needs no GPU. Prints the folder of
# its FILE, a pattern.
#
#     scripts/nvidia-wheel.sh NAME VERSION FILE
set -eu

name=$1 version=$2 file=$3
target=$(cd "$(dirname "$0")/.." && pwd)/target/$name

folder() {
    find "$target" ! -type d -name "$file" -exec dirname {} \; 2>/dev/null | head -n 1
}

if [ "$(cat "$target/version" 2>/dev/null)" != "$version" ] || [ -z "$(folder)" ]; then
    if ! python3 -m pip --version >/dev/null 2>&1; then
        echo "nvidia-wheel.sh: python3 with pip not found; on Debian or Ubuntu: apt-get install python3-pip" >&2
        exit 1
    fi
    echo "nvidia-wheel.sh: installing $name $version into $target" >&2
    rm -rf "$target"
    mkdir -p "$target"
    python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps \
        --only-binary=:all: --target "$target" "nvidia-cuda-$name==$version" >&2
    # Written last, so that an interrupted install is repeated.
    echo "$version" >"$target/version"
fi
folder

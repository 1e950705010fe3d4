#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the static library that is installed of the one that cargo builds: FROM TO. It is one object, in which only the functions
# of the header are visible, so that a program can link another library in Rust, or another version of what is inside, beside
# it. Without the tools of binutils the library stays as it is.
set -eu
from=$1 to=$2
for tool in ld objcopy ar; do
    command -v "$tool" >/dev/null || { echo "no $tool: the symbols of $to stay visible" >&2; exec install -m 644 "$from" "$to"; }
done
header=$(dirname "$0")/../crates/capi/include/devicefusion.h
roots=$(grep -v '^ *//' "$header" | sed -n 's/.*\(devicefusion_[a-z0-9_]*\)(.*/-u \1/p')
trap 'rm -f "$to.o"' EXIT
# shellcheck disable=SC2086
ld -r -S --gc-sections --force-group-allocation $roots -o "$to.o" "$from"
# Bitcode of the standard library keeps some tools from reading the rest.
objcopy --wildcard --keep-global-symbol 'devicefusion_*' --remove-section=.llvmbc --remove-section=.llvmcmd "$to.o"
rm -f "$to"
ar crs "$to" "$to.o"

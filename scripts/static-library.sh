#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Converts cargo's static library FROM to the installed static library TO.
#
# TO is one object in which only the functions of the header are visible. So a program can also link
# another Rust library, or another version of a dependency. Without binutils, TO is a copy of FROM.
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
# Some tools cannot read an object with the standard library's bitcode.
objcopy --wildcard --keep-global-symbol 'devicefusion_*' --remove-section=.llvmbc --remove-section=.llvmcmd "$to.o"
rm -f "$to"
ar crs "$to" "$to.o"

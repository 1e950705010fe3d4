#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the CUDA emulator into target/emulator, and prints shell commands that make it the CUDA
# driver of the programs that follow; `docs/emulator.md` explains it:
#
#     eval "$(scripts/cuda-emulator.sh)"
#     devicefusion --device cuda
#
# Needs a C compiler, clang++ or g++, and NVRTC, which it installs unless NVRTC_PATH is set.
# Messages go to standard error.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
sources=$root/crates/device/emulator
folder=${EMULATOR_FOLDER:-$root/target/emulator}

say() { echo "cuda-emulator: $*" >&2; }

compiler=
for candidate in clang++ g++; do
    if command -v "$candidate" >/dev/null; then
        compiler=$candidate
        break
    fi
done
[ -n "$compiler" ] || { say "neither clang++ nor g++ found; on Debian or Ubuntu: apt-get install clang"; exit 1; }
nvrtc=${NVRTC_PATH:-$("$root/scripts/nvrtc.sh")}
[ -d "$nvrtc" ] && nvrtc=$(find "$nvrtc" -maxdepth 1 -name 'libnvrtc.so.1[23]' | sort | tail -n 1)
[ -e "$nvrtc" ] || { say "no libnvrtc.so.13 or libnvrtc.so.12 at ${NVRTC_PATH:-target/nvrtc}"; exit 1; }

# A hash of everything that goes into compiled kernels.
build=$(cat "$sources"/*.[ch] "$0" | cksum | tr ' ' -)-$compiler-$nvrtc
if [ "$(cat "$folder/build" 2>/dev/null)" != "$build" ]; then
    mkdir -p "$folder/kernels"
    own=$folder/own.$$
    mkdir "$own"
    defines="-DEMULATOR_FOLDER=\"$folder\" -DEMULATOR_SOURCES=\"$sources\" -DEMULATOR_COMPILER=\"$compiler\""
    defines="$defines -DEMULATOR_BUILD=\"$build\" -DEMULATOR_NVRTC=\"$nvrtc\""
    # shellcheck disable=SC2086 # a list of words
    {
        cc -shared -fPIC -O2 -pthread $defines -Wl,-soname,libcuda.so.1 -o "$own/libcuda.so.1" \
            "$sources/libcuda.c" "$sources/grid.c" "$sources/count.c" "$sources/image.c" -ldl
        cc -shared -fPIC -O2 $defines -Wl,-soname,"$(basename "$nvrtc")" -o "$own/$(basename "$nvrtc")" \
            "$sources/libnvrtc.c" "$sources/count.c" "$sources/image.c" -ldl
    }
    for builtins in "$(dirname "$nvrtc")"/libnvrtc-builtins.so.*; do
        ln -sf "$builtins" "$own/"
    done
    mv -f "$own"/* "$folder/"
    rmdir "$own"
    # Written last, so that an interrupted build is repeated.
    echo "$build" >"$folder/build"
fi
echo "export LD_LIBRARY_PATH='$folder'\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"

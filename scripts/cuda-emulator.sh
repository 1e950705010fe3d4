#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the CUDA emulator into target/emulator, and prints a shell command that makes it the CUDA
# driver of later programs; `docs/emulator.md` explains it:
#
#     eval "$(scripts/cuda-emulator.sh)"
#     devicefusion --device cuda
#
# Needs a C compiler, clang++ or g++, and NVRTC. Installs NVRTC unless NVRTC_PATH is set.
# EMULATOR_FOLDER is another folder. Messages go to standard error.
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
nvrtc=$(cd "$(dirname "$nvrtc")" && pwd)/$(basename "$nvrtc")
mkdir -p "$folder/kernels" || { say "$folder cannot be made; EMULATOR_FOLDER names another one"; exit 1; }
folder=$(cd "$folder" && pwd)
case $folder$sources$nvrtc in
    *[\"\'\\]*) say "a path has quotes or a backslash: $folder, $sources, $nvrtc"; exit 1 ;;
esac

# A hash of everything that goes into compiled kernels.
build=$({
    cat "$sources"/*.[ch] "$0"
    echo "$folder $sources $nvrtc"
    "$compiler" --version
    ls -lL "$nvrtc"
} | cksum | tr ' ' -)
if [ "$(cat "$folder/build" 2>/dev/null)" != "$build" ] || ! [ -e "$folder/libcuda.so.1" ]; then
    own=$(mktemp -d "$folder/own.XXXXXX")
    trap 'rm -rf "$own"' EXIT
    # GCC copies calls into branches; lanes of a warp would meet at different places.
    flags=
    [ "$compiler" = g++ ] && flags=-fno-thread-jumps
    {
        echo "#define EMULATOR_FOLDER \"$folder\""
        echo "#define EMULATOR_SOURCES \"$sources\""
        echo "#define EMULATOR_COMPILER \"$compiler $flags\""
        echo "#define EMULATOR_BUILD \"$build\""
        echo "#define EMULATOR_NVRTC \"$nvrtc\""
    } >"$own/config.h"
    cc -shared -fPIC -O2 -pthread -I "$own" -Wl,-soname,libcuda.so.1 -o "$own/libcuda.so.1" \
        "$sources/libcuda.c" "$sources/grid.c" "$sources/fiber.c" "$sources/count.c" "$sources/cache.c" "$sources/image.c" -ldl
    cc -shared -fPIC -O2 -I "$own" -Wl,-soname,"$(basename "$nvrtc")" -o "$own/$(basename "$nvrtc")" \
        "$sources/libnvrtc.c" "$sources/count.c" "$sources/cache.c" "$sources/image.c" -ldl
    for builtins in "$(dirname "$nvrtc")"/libnvrtc-builtins.so.*; do
        [ -e "$builtins" ] && ln -sf "$builtins" "$own/"
    done
    mv -f "$own"/* "$folder/"
    # Written last, so that an interrupted build is repeated.
    echo "$build" >"$folder/build"
fi
echo "export LD_LIBRARY_PATH='$folder'\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"

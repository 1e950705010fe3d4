#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Finds or installs an OpenCL driver for the CPU, and prints shell commands that make it visible:
#
#     eval "$(scripts/setup-opencl.sh)"
#
# - Uses a driver of the system if there is one.
# - As root on Debian or Ubuntu, installs PoCL's packages.
# - Otherwise, or with OPENCL_LOCAL=1, installs PoCL from PyPI into target/opencl.
#
# Messages go to standard error.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
target=$root/target/opencl
packages="ocl-icd-libopencl1 pocl-opencl-icd"
# The driver, and a wheel that contains the OpenCL loader.
pocl_wheel="pocl-binary-distribution==3.0"
loader_wheel="pyopencl==2026.1.4"

say() { echo "setup-opencl: $*" >&2; }

has_loader() { (ldconfig -p 2>/dev/null || /sbin/ldconfig -p) | grep -q 'libOpenCL\.so\.1 '; }

# Looks for the CPU drivers of PoCL and Intel among the registered ICDs.
has_driver() { grep -qis -e pocl -e intelocl "${OCL_ICD_VENDORS:-/etc/OpenCL/vendors}"/*.icd; }

instructions() {
    say "no OpenCL driver for the CPU was found or could be installed. With root rights, run"
    say "    apt-get install $packages"
    say "or, without them, install python3 with pip and run this script again."
    exit 1
}

install_packages() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    say "installing $packages"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # a list of words
    apt-get install --yes --no-install-recommends $packages >&2 ||
        { apt-get update >&2 && apt-get install --yes --no-install-recommends $packages >&2; }
}

install_wheels() {
    [ "$(uname -sm)" = "Linux x86_64" ] && python3 -m pip --version >/dev/null 2>&1 || return 1
    say "installing $pocl_wheel into $target"
    rm -rf "$target"
    mkdir -p "$target/lib" "$target/vendors" "$target/none"
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$target/site" \
        --only-binary=:all: --implementation cp --python-version 3.11 --abi cp311 --abi none \
        --platform manylinux_2_17_x86_64 --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 \
        "$pocl_wheel" "$loader_wheel" >&2 || return 1
    ls "$target"/site/pyopencl/.libs/libpocl-*.so >"$target/vendors/pocl.icd"
    ln -s "$target"/site/pyopencl/.libs/libOpenCL-*.so.1.0.0 "$target/lib/libOpenCL.so.1"
    # Written last, so that an interrupted install is repeated.
    echo "$pocl_wheel $loader_wheel" >"$target/installed"
}

print_local() {
    echo "export OCL_ICD_VENDORS='$target/vendors'"
    # This loader requires the variable, and reads a folder of drivers from it too.
    echo "export PYOPENCL_HOME='$target/none'"
    echo "export LD_LIBRARY_PATH='$target/lib'\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
}

if [ -z "${OPENCL_LOCAL:-}" ]; then
    if has_loader && has_driver; then exit 0; fi
    if install_packages; then exit 0; fi
fi
if [ "$(cat "$target/installed" 2>/dev/null)" = "$pocl_wheel $loader_wheel" ] || install_wheels; then
    print_local
else
    instructions
fi

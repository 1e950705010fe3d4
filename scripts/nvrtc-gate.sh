#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles kernels of the gpu profile for NVIDIA GPUs; needs no GPU. Compiles a broad sample, or the
# sources in FOLDER, which tests write there with DEVICEFUSION_DUMP_KERNELS=FOLDER.
#
# Targets are PTX for compute_75 and machine code for sm_90. Spilled registers are a failure. With
# FOLDER, the machine code of a sample must also stay in its budget: docs/machine-code.md.
# Installs NVRTC unless NVRTC_PATH is set. PROFILE is a profile of `Cargo.toml`.
#
#     scripts/nvrtc-gate.sh [FOLDER]
set -eu
cd "$(dirname "$0")/.."
NVRTC_PATH=${NVRTC_PATH:-$(scripts/nvrtc.sh)}
export NVRTC_PATH DEVICEFUSION_REQUIRE_NVRTC=1
gates() {
    cargo test --profile "${PROFILE:-test}" --quiet --workspace --test gates "$@"
}
if [ -z "${1:-}" ]; then
    gates nvrtc::gpu -- --nocapture
    exit
fi
DEVICEFUSION_KERNEL_SOURCES=$(cd "$1" && pwd)
export DEVICEFUSION_KERNEL_SOURCES
status=0
scripts/machine-code.py "$1" || status=$?
gates nvrtc::dumped -- --ignored --nocapture || status=$?
exit "$status"

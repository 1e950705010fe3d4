#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles kernels of the gpu profile for NVIDIA's devices, without a GPU: a broad sample, and the texts in the
# folder FOLDER, which tests leave there when they run with DEVICEFUSION_DUMP_KERNELS=FOLDER. PTX for compute_75
# and machine code for sm_90; spilled registers fail. Installs NVRTC where NVRTC_PATH does not name it.
#
#     scripts/nvrtc-gate.sh [FOLDER]
set -eu
cd "$(dirname "$0")/.."
NVRTC_PATH=${NVRTC_PATH:-$(scripts/nvrtc.sh)}
export NVRTC_PATH DEVICEFUSION_REQUIRE_NVRTC=1
cargo test --quiet -p kernels --test gates nvrtc::gpu -- --nocapture
if [ -n "${1:-}" ]; then
    DEVICEFUSION_KERNEL_TEXTS=$(cd "$1" && pwd) cargo test --quiet -p kernels --test gates nvrtc::dumped -- --ignored --nocapture
fi

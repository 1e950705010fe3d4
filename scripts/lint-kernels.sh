#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks the prelude and a broad sample of kernels with clang, as OpenCL C 1.2 and as OpenCL C 3.0
# without optional features. CLANG names another compiler.
set -eu
cd "$(dirname "$0")/.."
DEVICEFUSION_REQUIRE_CLANG=1 exec cargo test --quiet --workspace --test gates lint:: "$@"

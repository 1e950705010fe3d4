#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The budget of machine code: compiles a sample of the kernels in FOLDER for sm_80 and sm_90, and
measures what nvdisasm shows. Needs no GPU. Fails where a kind of kernel gets worse than
`machine-code.toml` allows.

    scripts/machine-code.py FOLDER [--of-each N] [--write]

FOLDER holds sources that tests write there with DEVICEFUSION_DUMP_KERNELS=FOLDER. The sample has
the N/2 shortest and N/2 longest kernels of each kind, and each helper that a kind calls. `--write`
puts today's values into `machine-code.toml` and `docs/machine-code.md`.
"""

import argparse
import collections
import concurrent.futures
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from machine_code import limits, measure, nvrtc, report, sample, sass

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
LIMITS = HERE / "machine-code.toml"
PAGE = ROOT / "docs" / "machine-code.md"
BASE = ROOT / "crates/kernels/prelude/base.h"
ARCHITECTURES = ("sm_90", "sm_80")
# The oldest that PyPI has; it reads the code of NVRTC 13.0.
NVDISASM = "13.2.51"


def install(*command):
    return pathlib.Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


def disassemble(tool, cubin):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, "-c", "-gi", file.name], check=True, capture_output=True, text=True).stdout


@functools.cache
def compiler(folder):
    """NVRTC, once in each process."""
    return nvrtc.Nvrtc(folder)


def measured_kernels(source, nvrtc_folder, nvdisasm):
    """Compiles a source for each architecture; its kernels with their measures."""
    kernels = []
    for architecture in ARCHITECTURES:
        try:
            cubin, log = compiler(nvrtc_folder).compile(source.text, architecture)
        except ValueError as error:
            sys.exit(f"{source.path} for {architecture}: {error}")
        used = measure.usage(log)
        for function in sass.parse(disassemble(nvdisasm, cubin)):
            measured = measure.measure(function, used[function.name], architecture, source.work_group)
            kernels.append(report.Kernel(function.name, source.path, architecture, measured))
    return kernels


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--of-each", type=int, default=4, help="kernels of each kind (default 4)")
    parser.add_argument("--write", action="store_true", help="update the limits and the page")
    arguments = parser.parse_args()

    begin = time.monotonic()
    nvrtc_folder = pathlib.Path(os.environ.get("NVRTC_PATH") or install(HERE / "nvrtc.sh"))
    nvdisasm = install(HERE / "nvidia-wheel.sh", "nvdisasm", NVDISASM, "nvdisasm") / "nvdisasm"
    worker = functools.partial(measured_kernels, nvrtc_folder=nvrtc_folder, nvdisasm=nvdisasm)
    found = list(sample.sources(arguments.folder, BASE.read_text()))
    chosen = sample.choose(found, arguments.of_each)
    if not chosen:
        sys.exit(f"{arguments.folder} holds no texts of the gpu profile: did tests write them there?")
    by_kind = collections.defaultdict(list)
    with concurrent.futures.ProcessPoolExecutor() as processes:
        for kernels in processes.map(worker, chosen):
            for kernel in kernels:
                by_kind[sample.kind(kernel.name)].append(kernel)

    budget = limits.load(LIMITS)
    if arguments.write:
        LIMITS.write_text(limits.updated(LIMITS.read_text(), by_kind))
        budget = limits.load(LIMITS)
        PAGE.write_text(report.page(PAGE.read_text(), budget, by_kind))
    print("\n".join(report.table(budget, by_kind)))
    count = sum(map(len, by_kind.values()))
    seconds = time.monotonic() - begin
    print(f"{len(chosen)} of {len(found)} programs, {count} kernels on {' and '.join(ARCHITECTURES)}, {seconds:.0f} s")
    failures = report.failures(budget, by_kind)
    print("\n".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

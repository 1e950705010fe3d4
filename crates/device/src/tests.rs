// SPDX-License-Identifier: Apache-2.0
//! Tests on a real driver: OpenCL on the CPU, or the device of `DEVICEFUSION_TEST_DEVICE`.

// Signals, links and `/dev/full`.
#[cfg(unix)]
mod cache_attacks;
mod faults;
mod foreign;
mod launches;
mod limits;
mod megakernels;
mod memory;
mod pocl_cache;
mod programs;
mod reports;
mod selection;
mod shared;
mod timeline;

use bytes::Bytes;
use futures::executor::block_on;

use crate::testing::{self, FaultPlan};
use crate::{Buffer, Context, DeviceConfig, Grid, ProgramSource, Queue, Result};

/// Macros for a source that both compilers accept.
const DIALECT: &str = r#"
#ifdef __OPENCL_VERSION__
#define KERNEL kernel
#define G global
#define ID get_global_id(0)
#define ITEMS get_global_size(0)
#else
#define KERNEL extern "C" __global__
#define G
#define ID (blockIdx.x * (ulong)blockDim.x + threadIdx.x)
#define ITEMS (gridDim.x * (ulong)blockDim.x)
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#endif
"#;

/// `y = a * x + b` on doubles, an integer sum, scalars of every width, and a slow loop.
const KERNELS: &str = r#"
KERNEL void axpb(G const double *x, G double *y, double a, double b, ulong n) {
    for (ulong i = ID; i < n; i += ITEMS) y[i] = a * x[i] + b;
}
KERNEL void add(G ulong *x, ulong by, ulong n) {
    for (ulong i = ID; i < n; i += ITEMS) x[i] += by;
}
KERNEL void scalars(G ulong *out, uchar a, char b, ushort c, short d, uint e, int f, ulong g, long h, float i, double j) {
    out[0] = a; out[1] = (ulong)(long)b; out[2] = c; out[3] = (ulong)(long)d; out[4] = e;
    out[5] = (ulong)(long)f; out[6] = g; out[7] = (ulong)h; out[8] = (ulong)(long)i; out[9] = (ulong)(long)j;
}
KERNEL void spin(G ulong *x, ulong n) {
    ulong v = x[0];
    for (ulong i = 0; i < n; i++) v = v * 6364136223846793005UL + 1442695040888963407UL;
    x[0] = v;
}
"#;

fn config() -> DeviceConfig {
    testing::config().unwrap()
}

fn in_dialect(kernels: &str) -> String {
    format!("{DIALECT}{kernels}")
}

fn source() -> ProgramSource {
    ProgramSource::new(in_dialect(KERNELS), "tests")
}

fn context() -> Context {
    Context::new(config()).expect("the tests need a device; for OpenCL on a CPU install pocl-opencl-icd")
}

/// A context whose driver fails as planned.
fn under(plan: &FaultPlan) -> Context {
    Context::new(config().with_wrap(plan.wrap())).unwrap()
}

/// A context, if the tests' device shares the host's memory.
fn sharing() -> Option<Context> {
    let context = context();
    if !context.info().unified_memory {
        println!("skipped: {} has memory of its own", context.info().label());
        return None;
    }
    Some(context)
}

fn numbers(range: std::ops::Range<u64>) -> Bytes {
    range.flat_map(u64::to_ne_bytes).collect::<Vec<u8>>().into()
}

fn to_numbers(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|chunk| u64::from_ne_bytes(chunk.try_into().unwrap())).collect()
}

fn add(queue: &Queue, x: &Buffer, by: u64) -> Result<()> {
    let program = block_on(queue.compile(source()))?;
    let n = x.len() as u64 / 8;
    let grid = Grid { work_groups: 4, work_group_size: 8 };
    queue.launch(&program.kernel("add")?, grid, &[x.into(), by.into(), n.into()])
}

/// The variable of a process that runs one test alone: the test's name.
const ALONE: &str = "DEVICE_TEST_ALONE";

/// Runs the test `name` in a new process with environment variables; returns `true` in that
/// process.
fn alone_with(name: &str, variables: &[(&str, &std::path::Path)]) -> bool {
    if std::env::var(ALONE).is_ok_and(|alone| alone == name) {
        return true;
    }
    let output = output_alone(name, variables);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    false
}

/// The output of the test `name` in a new process with environment variables.
fn output_alone(name: &str, variables: &[(&str, &std::path::Path)]) -> std::process::Output {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name]).env(ALONE, name).envs(variables.iter().copied()).output().unwrap()
}

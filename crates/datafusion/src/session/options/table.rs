// SPDX-License-Identifier: Apache-2.0
//! The table of settings. A new setting is one entry here.
//!
//! From an entry follow the field of [`DeviceOptions`], `SET`, `SHOW`, the environment variable,
//! the page of settings, and the list of the C library. An entry whose `value` is a new kind needs
//! a type in `value.rs`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use datafusion::common::Result;
use device::{DeviceConfig, Selector, UnifiedMemory};
use kernels::ops::Sizes;

use super::value::{AnyString, Bytes, Choice, CompilerFlags, DeviceSelector, Flag, Number, Size, Value};
use super::{AUTO, AdaptiveStart, Cost, ExplainedPlan, Fallback, ProfileSetting, SpillSetting};

/// One row of the table.
pub(super) struct Setting {
    /// Full name, as in `SET`.
    pub key: &'static str,
    /// Whether it may no longer change once the session's device is open.
    pub frozen: bool,
    /// Whether SQL may not set it: for runs of native code, and reads and writes of files.
    pub program_only: bool,
    pub description: &'static str,
    /// The value as `SHOW` prints it.
    pub get: fn(&DeviceOptions) -> String,
    /// Parses and stores the value of a `SET`. The error names the accepted values.
    pub set: fn(&mut DeviceOptions, key: &str, value: &str) -> Result<()>,
}

macro_rules! settings {
    ($($name:ident: $type:ty {
        default: $default:expr, value: $value:expr, frozen: $frozen:literal, program_only: $program_only:literal,
        description: $description:literal $(,)?
    })*) => {
        /// The settings of one session. Clones share the flag that freezes what the open device
        /// depends on.
        #[derive(Debug, Clone)]
        pub struct DeviceOptions {
            $(#[doc = concat!("`device.", stringify!($name), "`: ", $description, ".")] pub $name: $type,)*
            pub(super) opened: Arc<AtomicBool>,
            /// Whether the session is made, so that the next changes may come from SQL.
            pub(super) is_sealed: bool,
            /// The plan of an EXPLAIN, which does not open the device.
            pub(super) explained: Option<Arc<ExplainedPlan>>,
        }

        impl Default for DeviceOptions {
            fn default() -> Self {
                DeviceOptions { $($name: $default,)* opened: Arc::default(), is_sealed: false, explained: None }
            }
        }

        pub(super) const SETTINGS: &[Setting] = &[$(Setting {
            key: concat!("device.", stringify!($name)),
            frozen: $frozen,
            program_only: $program_only,
            description: $description,
            get: |options| $value.show(&options.$name),
            set: |options, key, value| {
                options.$name = $value.parse(key, value)?;
                Ok(())
            },
        },)*];
    };
}

settings! {
    adaptive_start: AdaptiveStart {
        default: AdaptiveStart::Auto,
        value: Choice(&[("auto", AdaptiveStart::Auto), ("always", AdaptiveStart::Always), ("never", AdaptiveStart::Never)]),
        frozen: false,
        program_only: false,
        description: "Whether queries without compiled kernels run on the host. The kernels are compiled meanwhile. 'auto' does so on CPU devices, 'always' on all, 'never' waits for the kernels. Queries over more than 2 GiB of columns, tables of device memory or with Futhark functions always wait. So do all with device.cost = always or device.fallback = error",
    }
    allow_unsafe_settings: bool {
        default: false,
        value: Flag,
        frozen: false,
        program_only: true,
        description: "Whether SQL may set what the page Security lists: those for native code, and for reading and writing files",
    }
    batch_rows: usize {
        default: 0,
        value: Number { most: i32::MAX as usize },
        frozen: false,
        program_only: false,
        description: "Rows of the device batches that host input is coalesced to. 0 chooses by device: 131072 on CPU devices, 1048576 elsewhere, fewer under a small device.memory_bytes. More rows mean fewer launches and more device memory per query",
    }
    cache_dir: String {
        default: AUTO.to_owned(),
        value: AnyString,
        frozen: true,
        program_only: true,
        description: "Folder of compiled programs, for later processes, of at most 1 GiB. 'auto' is devicefusion/programs in the user's folder of caches for GPUs, and none for CPU devices, whose drivers have their own. PoCL's own programs are in pocl below the folder in the binary devicefusion, and where POCL_CACHE_DIR says in other programs. Empty keeps none",
    }
    cached_plans: usize {
        default: 64,
        value: Number { most: 1 << 16 },
        frozen: false,
        program_only: false,
        description: "Queries over resident tables whose plans the session keeps. The same query then runs without planning. 0 keeps none",
    }
    compaction_tile_rows: u32 {
        default: 0,
        value: Size { takes: Sizes::accepts_tile_rows, wanted: || {
            let (least, most) = Sizes::TILE_ROWS.into_inner();
            format!("must be 0 or a multiple of 32 from {least} to {most}")
        } },
        frozen: false,
        program_only: false,
        description: "Rows of a tile, of which a work-group compacts those of a filter: a multiple of 32 up to 1048576. In the profile 'gpu' it is a multiple of device.work_group_size, at most 32 times as many. 0 takes 16384 in 'cpu' and 4096 in 'gpu', fewer with small work-groups",
    }
    compile_options: String {
        default: String::new(),
        value: CompilerFlags,
        frozen: true,
        program_only: true,
        description: "Further options of the kernel compiler, separated by spaces. Only known ones are taken; the error for another one lists them",
    }
    cost: Cost {
        default: Cost::Auto,
        value: Choice(&[("auto", Cost::Auto), ("always", Cost::Always)]),
        frozen: false,
        program_only: false,
        description: "'auto' leaves operators over tiny inputs to the host: fewer rows than device.min_rows. Statistics, footers of Parquet and the bytes of CSV and JSON files tell them. 'always' never does",
    }
    dump_programs: String {
        default: String::new(),
        value: AnyString,
        frozen: true,
        program_only: true,
        description: "Folder for the source of each program, as HASH.cl, and its image. device.load_programs and tools read it. Empty writes none",
    }
    enabled: bool {
        default: true,
        value: Flag,
        frozen: false,
        program_only: false,
        description: "Whether plans use the device. With false they are plain DataFusion's, and EXPLAIN gives no reasons",
    }
    exact_functions: bool {
        default: true,
        value: Flag,
        frozen: false,
        program_only: false,
        description: "Whether float functions with other last digits on devices stay on the host. These are sin, cos, cbrt and similar ones. exp, ln, power and similar ones are among them unless kernels match the host's C library. With false all run on the device",
    }
    fallback: Fallback {
        default: Fallback::Host,
        value: Choice(&[("host", Fallback::Host), ("error", Fallback::Error)]),
        frozen: false,
        program_only: false,
        description: "'host' runs unsupported operators on the host, with the reason in EXPLAIN. 'error' makes such a query fail, and implies device.cost = always",
    }
    file_cache: bool {
        default: true,
        value: Flag,
        frozen: false,
        program_only: false,
        description: "Whether columns of Parquet files stay in device memory for the next query. A changed file is read again, and queries that need the memory take it",
    }
    file_cache_bytes: usize {
        default: 0,
        value: Bytes { least: 1 },
        frozen: false,
        program_only: false,
        description: "Most bytes of columns of files in device memory, or as in '8G'. 0 takes half of device.memory_bytes, and none below 256 MiB",
    }
    futhark: bool {
        default: false,
        value: Flag,
        frozen: false,
        program_only: true,
        description: "Whether CREATE FUNCTION … LANGUAGE futhark may load native libraries into this process. They can do whatever the process can",
    }
    futhark_profiling: bool {
        default: false,
        value: Flag,
        frozen: false,
        program_only: false,
        description: "Whether libraries opened by CREATE FUNCTION from now on profile themselves, for the report of the device. OpenCL's keep their measurements until the report is read",
    }
    load_programs: String {
        default: String::new(),
        value: AnyString,
        frozen: true,
        program_only: true,
        description: "Folder that device.dump_programs has filled, read before anything is compiled. An image is used if all its dependencies are unchanged. A changed HASH.cl is compiled in place of the original. Empty reads none",
    }
    max_work_groups: u32 {
        default: 0,
        value: Size {
            takes: |work_groups| work_groups <= Sizes::MAX_WORK_GROUPS,
            wanted: || format!("must lie between 0 and {}", Sizes::MAX_WORK_GROUPS),
        },
        frozen: false,
        program_only: false,
        description: "Most work-groups of a grid whose work-items share the rows of a batch, up to 65536. 0 takes a few for each compute unit of the device: 16 in the profile 'gpu', 4 in 'cpu'",
    }
    memory_bytes: usize {
        default: 0,
        value: Bytes { least: DeviceConfig::LEAST_MEMORY_BYTES },
        frozen: true,
        program_only: false,
        description: "Limit of the device memory pool in bytes or as in '8G', from 1048576 to all of the device's memory. 0 takes 90 % of a GPU's memory or half of the host's, at most three quarters of what other processes leave",
    }
    min_rows: usize {
        default: 10_000,
        value: Number { most: usize::MAX },
        frozen: false,
        program_only: false,
        description: "With device.cost = auto, inputs known to have fewer rows stay on the host",
    }
    nvrtc_path: String {
        default: String::new(),
        value: AnyString,
        frozen: true,
        program_only: true,
        description: "Path of the NVRTC library (libnvrtc.so.*) or its folder. Empty searches the usual places",
    }
    platform: String {
        default: String::new(),
        value: AnyString,
        frozen: true,
        program_only: false,
        description: "Part of the name of the OpenCL platform to use. Empty takes any",
    }
    profile: ProfileSetting {
        default: ProfileSetting::Auto,
        value: Choice(&[("auto", ProfileSetting::Auto), ("cpu", ProfileSetting::Cpu), ("gpu", ProfileSetting::Gpu)]),
        frozen: false,
        program_only: false,
        description: "Shape of the generated kernels: 'cpu' (a contiguous run of rows per core), 'gpu' (tiles and shared memory) or 'auto' (by device)",
    }
    profiling: bool {
        default: true,
        value: Flag,
        frozen: true,
        program_only: false,
        description: "Whether kernel times are measured, for EXPLAIN ANALYZE and reports",
    }
    resident_batch_rows: usize {
        default: 0,
        value: Number { most: i32::MAX as usize },
        frozen: false,
        program_only: false,
        description: "Rows of a batch of resident tables, for those that are made or extended from now on. 0 chooses by device: 1048576 on CPU devices, 67108864 elsewhere, 16777216 there with lists or dictionaries, fewer where rows are long for the memory. More rows mean fewer launches",
    }
    selector: Option<Selector> {
        default: Some(Selector::Auto),
        value: DeviceSelector,
        frozen: true,
        program_only: false,
        description: "The device: 'auto', 'none', a driver such as 'opencl', '#k' (as `devicefusion devices` numbers them) or a part of its name",
    }
    spill: SpillSetting {
        default: SpillSetting::Auto,
        value: Choice(&[("auto", SpillSetting::Auto), ("off", SpillSetting::Off)]),
        frozen: false,
        program_only: false,
        description: "'auto' writes rows of sorts, aggregations, joins and shared subplans that do not fit device memory to DataFusion's temporary files. 'off' fails the query",
    }
    threshold_divisor: usize {
        default: 1,
        value: Number { most: i32::MAX as usize },
        frozen: false,
        program_only: false,
        description: "Divides sizes at which joins and hash tables change their ways, such as that of a join's table in the caches. Small data is then handled as large data is, for tests and models. 0 is as 1",
    }
    unified_memory: UnifiedMemory {
        default: UnifiedMemory::Auto,
        value: Choice(&[("auto", UnifiedMemory::Auto), ("never", UnifiedMemory::Never), ("always", UnifiedMemory::Always)]),
        frozen: true,
        program_only: false,
        description: "Whether kernels use host memory in place. 'auto' does so where the device is the host's processor, 'never' copies. 'always' refuses a device that cannot",
    }
    work_group_size: u32 {
        default: 0,
        value: Size { takes: Sizes::accepts_work_group_size, wanted: || {
            let (least, most) = Sizes::WORK_GROUP_SIZES.into_inner();
            format!("must be 0 or a power of two from {least} to {most}")
        } },
        frozen: false,
        program_only: false,
        description: "Work-items of a work-group in the profile 'gpu': a power of two from 32 to 512, within the device's limit. 0 takes 256. Kernels of the profile 'cpu' have one work-item in a work-group, and refuse any other value",
    }
}

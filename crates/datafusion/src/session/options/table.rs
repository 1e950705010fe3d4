// SPDX-License-Identifier: Apache-2.0
//! The table of settings. A new setting is one entry here.
//!
//! From an entry follow the field of [`DeviceOptions`], `SET`, `SHOW`, the environment variable,
//! the page of settings, and the list of the C library. An entry whose `value` is a new kind needs
//! a type in `value.rs`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use datafusion::common::Result;
use device::{Selector, UnifiedMemory};
use kernels::ops::Sizes;

use super::value::{AnyString, Choice, DeviceSelector, Flag, Number, Size, Value};
use super::{Cost, Fallback, ProfileSetting};

/// One row of the table.
pub(super) struct Setting {
    /// Full name, as in `SET`.
    pub key: &'static str,
    /// Whether it may no longer change once the session's device is open.
    pub frozen: bool,
    pub description: &'static str,
    /// The value as `SHOW` prints it.
    pub get: fn(&DeviceOptions) -> String,
    /// Parses and stores the value of a `SET`. The error names the accepted values.
    pub set: fn(&mut DeviceOptions, key: &str, value: &str) -> Result<()>,
}

macro_rules! settings {
    ($($name:ident: $type:ty {
        default: $default:expr, value: $value:expr, frozen: $frozen:literal, description: $description:literal $(,)?
    })*) => {
        /// The settings of one session. Clones share the flag that freezes what the open device
        /// depends on.
        #[derive(Debug, Clone)]
        pub struct DeviceOptions {
            $(#[doc = concat!("`device.", stringify!($name), "`: ", $description, ".")] pub $name: $type,)*
            pub(super) opened: Arc<AtomicBool>,
        }

        impl Default for DeviceOptions {
            fn default() -> Self {
                DeviceOptions { $($name: $default,)* opened: Arc::default() }
            }
        }

        pub(super) const SETTINGS: &[Setting] = &[$(Setting {
            key: concat!("device.", stringify!($name)),
            frozen: $frozen,
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
    batch_rows: usize {
        default: 0,
        value: Number { most: i32::MAX as usize },
        frozen: false,
        description: "Rows of a device batch, to which host batches are coalesced; 0 takes 131072 on CPU devices and 1048576 elsewhere. Larger batches need fewer launches and more device memory",
    }
    cache_dir: String {
        default: String::new(),
        value: AnyString,
        frozen: true,
        description: "Folder of the cache of compiled programs, for later processes; empty disables it",
    }
    compaction_tile_rows: u32 {
        default: 0,
        value: Size { takes: Sizes::accepts_tile_rows, wanted: || {
            let (least, most) = Sizes::TILE_ROWS.into_inner();
            format!("must be 0 or a multiple of 32 from {least} to {most}")
        } },
        frozen: false,
        description: "Rows from which one work-group compacts those that pass a filter: a multiple of 32 up to 1048576. In the profile 'gpu' a multiple of device.work_group_size, at most 32 times as many. 0 takes 16384 in the profile 'cpu' and 4096 in 'gpu', or fewer if work-groups are small",
    }
    compile_options: String {
        default: String::new(),
        value: AnyString,
        frozen: true,
        description: "Additional options for the kernel compiler, separated by spaces",
    }
    cost: Cost {
        default: Cost::Auto,
        value: Choice(&[("auto", Cost::Auto), ("always", Cost::Always)]),
        frozen: false,
        description: "'auto' leaves operators over tiny inputs on the host: exact statistics show fewer rows than device.min_rows. 'always' offloads them",
    }
    dump_programs: String {
        default: String::new(),
        value: AnyString,
        frozen: true,
        description: "Folder to which each program's source (HASH.cl) and image are written, for device.load_programs or tools; empty writes none",
    }
    enabled: bool {
        default: true,
        value: Flag,
        frozen: false,
        description: "Whether operators are offloaded. With false, plans are DataFusion's and EXPLAIN gives no reasons",
    }
    exact_functions: bool {
        default: true,
        value: Flag,
        frozen: false,
        description: "Whether float functions whose last digits may differ from the host's stay on the host: sin, cos, cbrt and similar. Also exp, ln, power and similar, unless kernels reproduce the host's C library. With false they run on the device",
    }
    fallback: Fallback {
        default: Fallback::Host,
        value: Choice(&[("host", Fallback::Host), ("error", Fallback::Error)]),
        frozen: false,
        description: "'host' runs unsupported operators on the host, with reasons in EXPLAIN. 'error' makes such a query fail, and implies device.cost = always",
    }
    futhark: bool {
        default: false,
        value: Flag,
        frozen: false,
        description: "Whether CREATE FUNCTION … LANGUAGE futhark may load native libraries into this process. They have all its rights",
    }
    futhark_profiling: bool {
        default: false,
        value: Flag,
        frozen: false,
        description: "Whether libraries that CREATE FUNCTION opens from now on profile themselves, for the device's report. OpenCL libraries keep their measurements until a report reads them",
    }
    load_programs: String {
        default: String::new(),
        value: AnyString,
        frozen: true,
        description: "Folder of programs that device.dump_programs wrote, read before a compilation; empty reads none. An image is used if all its dependencies are the same. A HASH.cl with an edited source is compiled instead of the generated one",
    }
    max_work_groups: u32 {
        default: 0,
        value: Size {
            takes: |work_groups| work_groups <= Sizes::MAX_WORK_GROUPS,
            wanted: || format!("must lie between 0 and {}", Sizes::MAX_WORK_GROUPS),
        },
        frozen: false,
        description: "Largest number of work-groups of a grid-stride kernel, up to 65536; 0 takes 16 per compute unit in the profile 'gpu' and 4 in 'cpu'",
    }
    memory_bytes: usize {
        default: 0,
        value: Number { most: usize::MAX },
        frozen: true,
        description: "Limit of the device memory pool in bytes; 0 takes 90 % of a GPU's memory or half of the host's",
    }
    min_rows: usize {
        default: 10_000,
        value: Number { most: usize::MAX },
        frozen: false,
        description: "With device.cost = auto, inputs known to have fewer rows stay on the host",
    }
    nvrtc_path: String {
        default: String::new(),
        value: AnyString,
        frozen: true,
        description: "Path of the NVRTC library (libnvrtc.so.*) or its folder; empty searches the usual places",
    }
    platform: String {
        default: String::new(),
        value: AnyString,
        frozen: true,
        description: "Substring of the OpenCL platform's name; empty accepts any",
    }
    profile: ProfileSetting {
        default: ProfileSetting::Auto,
        value: Choice(&[("auto", ProfileSetting::Auto), ("cpu", ProfileSetting::Cpu), ("gpu", ProfileSetting::Gpu)]),
        frozen: false,
        description: "Shape of the generated kernels: 'cpu' (a contiguous run of rows per core), 'gpu' (tiles and shared memory) or 'auto' (by device)",
    }
    profiling: bool {
        default: true,
        value: Flag,
        frozen: true,
        description: "Whether kernel times are measured, for EXPLAIN ANALYZE and reports",
    }
    selector: Option<Selector> {
        default: Some(Selector::Auto),
        value: DeviceSelector,
        frozen: true,
        description: "The device: 'auto', 'none', 'opencl', 'cuda', '#k' (as `devicefusion devices` numbers them) or a part of its name",
    }
    unified_memory: UnifiedMemory {
        default: UnifiedMemory::Auto,
        value: Choice(&[("auto", UnifiedMemory::Auto), ("never", UnifiedMemory::Never), ("always", UnifiedMemory::Always)]),
        frozen: true,
        description: "Whether kernels read the host's memory in place: 'auto' if the device is the host's processor, 'never', or 'always', which refuses a device without unified memory",
    }
    work_group_size: u32 {
        default: 0,
        value: Size { takes: Sizes::accepts_work_group_size, wanted: || {
            let (least, most) = Sizes::WORK_GROUP_SIZES.into_inner();
            format!("must be 0 or a power of two from {least} to {most}")
        } },
        frozen: false,
        description: "Work-items per work-group in the profile 'gpu': a power of two from 32 to 512, within the device's limit; 0 takes 256. The profile 'cpu' has one work-item per work-group and accepts 0 only",
    }
}

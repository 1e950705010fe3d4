// SPDX-License-Identifier: Apache-2.0
//! Sizes of work-groups, tiles and grids that settings choose, and the limits of kernels and
//! devices.

use std::ops::RangeInclusive;

use device::DeviceInfo;

use crate::codegen::Profile;
use crate::ops::Options;
use crate::ops::sort::radix_shared_bytes;
use crate::{Error, Result};

/// Sizes of kernels; 0 leaves a size to the profile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Work-items of a work-group: a power of two within
    /// [`WORK_GROUP_SIZES`](Self::WORK_GROUP_SIZES). Only the gpu profile has work-groups of
    /// several work-items.
    pub work_group_size: u32,
    /// Rows of a compaction tile: a multiple of 32; in the gpu profile a multiple of the work-group
    /// size, and at most 32 times that.
    pub compaction_tile_rows: u32,
    /// Most work-groups of a grid whose work-items share rows.
    pub max_work_groups: u32,
}

impl Sizes {
    /// Sizes of work-groups that kernels support: work-items vote by 32, and the radix sort keeps
    /// digits in shared memory.
    pub const WORK_GROUP_SIZES: RangeInclusive<u32> = 32..=512;
    /// Numbers of rows that a compaction tile can have.
    pub const TILE_ROWS: RangeInclusive<u32> = 32..=1 << 20;
    /// Most work-groups of a grid: each work-item has scratch memory of its own.
    pub const MAX_WORK_GROUPS: u32 = 1 << 16;

    /// Whether work-groups can have so many work-items; 0 is the profile's choice.
    pub fn accepts_work_group_size(work_items: u32) -> bool {
        work_items == 0 || work_items.is_power_of_two() && Self::WORK_GROUP_SIZES.contains(&work_items)
    }

    /// Whether compaction tiles can have so many rows; 0 is the profile's choice.
    pub fn accepts_tile_rows(rows: u32) -> bool {
        rows == 0 || rows.is_multiple_of(32) && Self::TILE_ROWS.contains(&rows)
    }

    /// All sizes, with the names of their settings.
    pub fn named(self) -> [(&'static str, u32); 3] {
        let Sizes { work_group_size, compaction_tile_rows, max_work_groups } = self;
        [
            ("work_group_size", work_group_size),
            ("compaction_tile_rows", compaction_tile_rows),
            ("max_work_groups", max_work_groups),
        ]
    }
}

impl Options {
    /// The sizes of the kernels.
    pub fn sizes(&self) -> Sizes {
        let Options { work_group_size, compaction_tile_rows, max_work_groups, .. } = *self;
        Sizes { work_group_size, compaction_tile_rows, max_work_groups }
    }

    /// The same with these sizes and the argument limit of a device.
    ///
    /// # Errors
    /// `Unsupported` for a size that the profile's kernels or the device cannot have; the message
    /// names the setting.
    pub fn with_sizes(mut self, sizes: Sizes, device: &DeviceInfo) -> Result<Options> {
        let refuse = |reason: String| Err(Error::Unsupported(reason));
        let Sizes { work_group_size, compaction_tile_rows, max_work_groups } = sizes;
        if work_group_size > 0 {
            let device_name = device.label();
            let shared = radix_shared_bytes(work_group_size);
            if self.profile == Profile::Cpu {
                return refuse(format!(
                    "device.work_group_size = {work_group_size}: kernels of the profile 'cpu' have work-groups of one work-item; \
                     0 is their size, and device.profile = 'gpu' has larger ones"
                ));
            }
            if work_group_size > device.max_work_group_size {
                return refuse(format!(
                    "device.work_group_size = {work_group_size}: work-groups of {device_name} have at most {} work-items",
                    device.max_work_group_size
                ));
            }
            if shared > device.shared_bytes as usize {
                return refuse(format!(
                    "device.work_group_size = {work_group_size}: sorting needs {shared} bytes of shared memory for such a work-group, \
                     and {device_name} has {}",
                    device.shared_bytes
                ));
            }
            self.work_group_size = work_group_size;
            self.compaction_tile_rows = self.compaction_tile_rows.min(32 * work_group_size);
        }
        if compaction_tile_rows > 0 {
            let group = self.work_group_size;
            if self.profile == Profile::Gpu && (!compaction_tile_rows.is_multiple_of(group) || compaction_tile_rows / group > 32)
            {
                return refuse(format!(
                    "device.compaction_tile_rows = {compaction_tile_rows}: in the profile 'gpu' it must be a multiple of \
                     the {group} work-items of a work-group (device.work_group_size), at most 32 times as many"
                ));
            }
            self.compaction_tile_rows = compaction_tile_rows;
        }
        self.max_work_groups = max_work_groups;
        self.max_arg_bytes = device.max_arg_bytes as usize;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> DeviceInfo {
        DeviceInfo { kind: device::DeviceKind::Gpu, ..device::testing::some_info() }
    }

    fn sized(profile: Profile, work_group_size: u32, compaction_tile_rows: u32) -> Result<(u32, u32), String> {
        let sizes = Sizes { work_group_size, compaction_tile_rows, max_work_groups: 0 };
        let options = Options::new(profile).with_sizes(sizes, &device()).map_err(|error| error.to_string())?;
        Ok((options.work_group_size, options.compaction_tile_rows))
    }

    #[test]
    fn sizes_that_are_not_chosen_are_those_of_the_profile() {
        assert_eq!(Options::new(Profile::Cpu).with_sizes(Sizes::default(), &device()).unwrap(), Options::new(Profile::Cpu));
        assert_eq!(sized(Profile::Gpu, 0, 0).unwrap(), (256, 4096));
        assert_eq!(sized(Profile::Gpu, 128, 0).unwrap(), (128, 4096));
        // A tile has at most a mask word for each work-item.
        assert_eq!(sized(Profile::Gpu, 32, 0).unwrap(), (32, 1024));
        assert_eq!(sized(Profile::Gpu, 0, 256).unwrap(), (256, 256));
        assert_eq!(sized(Profile::Cpu, 0, 96).unwrap(), (256, 96));
    }

    #[test]
    fn sizes_that_kernels_or_device_do_not_support_are_refused_with_the_reason() {
        for (profile, group, tile, reason) in [
            (Profile::Cpu, 64, 0, "device.work_group_size = 64: kernels of the profile 'cpu' have work-groups of one work-item"),
            (Profile::Gpu, 512, 0, "device.work_group_size = 512: work-groups of opencl:0 have at most 256 work-items"),
            (
                Profile::Gpu,
                256,
                0,
                "device.work_group_size = 256: sorting needs 21504 bytes of shared memory for such a work-group, and opencl:0 has 16384",
            ),
            (
                Profile::Gpu,
                0,
                96,
                "device.compaction_tile_rows = 96: in the profile 'gpu' it must be a multiple of the 256 work-items of a work-group",
            ),
            (
                Profile::Gpu,
                32,
                2048,
                "device.compaction_tile_rows = 2048: in the profile 'gpu' it must be a multiple of the 32 work-items of a work-group",
            ),
        ] {
            let error = sized(profile, group, tile).unwrap_err();
            assert!(error.starts_with(reason), "{error}");
        }
        let accepts = |size| (Sizes::accepts_work_group_size(size), Sizes::accepts_tile_rows(size));
        assert_eq!(
            [0, 16, 32, 48, 96, 512, 1024].map(accepts).map(|accepts| accepts.0),
            [true, false, true, false, false, true, false]
        );
        assert_eq!(
            [0, 16, 32, 48, 96, 1 << 20, 2 << 20].map(accepts).map(|accepts| accepts.1),
            [true, false, true, false, true, true, false]
        );
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Contents of a compiled program: the names of its kernels and their resource usage.
//!
//! Names come from the image itself. So a program from the disk cache loads like a fresh one, also
//! with drivers without `cuModuleEnumerateFunctions` (before CUDA 12.4).

/// Registers and memory of a kernel, from a log of the option `--ptxas-options=-v`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelUsage {
    /// Name of the kernel.
    pub kernel: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Shared memory of a block in bytes.
    pub shared_bytes: u32,
    /// Stack of a thread in bytes: arrays that are indexed at run time, and spills.
    pub stack_bytes: u32,
    /// Register spills of a thread in bytes, stores and loads.
    pub spill_bytes: u32,
}

/// Parses the usage of each kernel out of a compiler's log, in the order of the log.
///
/// Functions that were not inlined count towards the preceding kernel of the log.
///
/// # Examples
/// ```
/// let log = "ptxas info    : Compiling entry function 'q6' for 'sm_90'
/// ptxas info    : Function properties for q6
/// ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
/// ptxas info    : Used 30 registers, used 1 barriers, 5120 bytes smem";
/// let usage = device::cuda::nvrtc::usage(log);
/// assert_eq!((usage[0].kernel.as_str(), usage[0].registers, usage[0].spill_bytes), ("q6", 30, 16));
/// ```
pub fn usage(log: &str) -> Vec<KernelUsage> {
    let mut kernels: Vec<KernelUsage> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            kernels.push(KernelUsage { kernel, ..KernelUsage::default() });
        }
        let Some(current) = kernels.last_mut() else { continue };
        current.registers = current.registers.max(before(line, " registers"));
        current.shared_bytes = current.shared_bytes.max(before(line, " bytes smem"));
        current.stack_bytes += before(line, " bytes stack frame");
        current.spill_bytes += before(line, " bytes spill stores") + before(line, " bytes spill loads");
    }
    kernels
}

/// The number right before `unit`, 0 where there is none.
fn before(line: &str, unit: &str) -> u32 {
    let number = line.split_once(unit).and_then(|(left, _)| left.rsplit(|c: char| !c.is_ascii_digit()).next());
    number.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Names of the kernels in a cubin or in PTX; `None` if the image is neither, or is truncated.
pub(super) fn kernel_names(image: &[u8]) -> Option<Vec<String>> {
    if image.starts_with(b"\x7fELF") { cubin_kernels(image) } else { ptx_kernels(image) }
}

/// Names of the entry points that PTX declares, as in `.visible .entry name(`.
fn ptx_kernels(image: &[u8]) -> Option<Vec<String>> {
    let text = std::str::from_utf8(image).ok()?;
    if !text.contains(".version") {
        return None;
    }
    let entries = text.split(".entry").skip(1);
    Some(entries.map(|rest| rest.trim_start().split(['(', ' ', '\n', '\t']).next().unwrap_or_default().to_owned()).collect())
}

/// Names of the symbols that are entry points of a cubin.
///
/// A cubin is a 64-bit little-endian ELF file:
/// <https://docs.nvidia.com/cuda/cuda-binary-utilities/>.
fn cubin_kernels(image: &[u8]) -> Option<Vec<String>> {
    const SYMBOL_TABLE: u64 = 2;
    const FUNCTION: u64 = 2;
    const ENTRY_POINT: u64 = 0x10;
    let sections = usize::try_from(field(image, 0x28, 8)?).ok()?;
    let (size, count) = (field(image, 0x3a, 2)? as usize, field(image, 0x3c, 2)? as usize);
    // The bytes of a section.
    let section = |index: usize| {
        let header = sections.checked_add(index.checked_mul(size)?)?;
        let offset = usize::try_from(field(image, header.checked_add(0x18)?, 8)?).ok()?;
        let bytes = usize::try_from(field(image, header.checked_add(0x20)?, 8)?).ok()?;
        image.get(offset..offset.checked_add(bytes)?)
    };
    let mut names = Vec::new();
    for index in 0..count {
        let header = sections.checked_add(index.checked_mul(size)?)?;
        if field(image, header.checked_add(4)?, 4)? != SYMBOL_TABLE {
            continue;
        }
        let strings = section(field(image, header.checked_add(0x28)?, 4)? as usize)?;
        for symbol in section(index)?.chunks_exact(24) {
            let (name, info, other) = (field(symbol, 0, 4)? as usize, field(symbol, 4, 1)?, field(symbol, 5, 1)?);
            if info & 0xf == FUNCTION && other & ENTRY_POINT != 0 {
                let name = strings.get(name..)?.split(|byte| *byte == 0).next()?;
                names.push(String::from_utf8_lossy(name).into_owned());
            }
        }
    }
    Some(names)
}

/// A little-endian number of `width` bytes at `offset`.
fn field(bytes: &[u8], offset: usize, width: usize) -> Option<u64> {
    let bytes = bytes.get(offset..offset.checked_add(width)?)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_entries_are_named() {
        let text = b"//\n.version 9.0\n.target sm_75\n.visible .entry q1(\n.param .u64 q1_0\n)\n{ret;}\n.entry q6 (\n)\n";
        assert_eq!(kernel_names(text), Some(vec!["q1".to_owned(), "q6".to_owned()]));
    }

    #[test]
    fn foreign_and_cut_images_are_refused() {
        assert_eq!(kernel_names(b""), None);
        assert_eq!(kernel_names(b"not a program"), None);
        assert_eq!(kernel_names(b"\x7fELF\x02\x01\x01"), None);
        let mut huge = vec![0xff; 64];
        huge[..4].copy_from_slice(b"\x7fELF");
        assert_eq!(kernel_names(&huge), None);
    }

    #[test]
    fn log_without_kernels_uses_nothing() {
        assert_eq!(usage("ptxas info    : 1 bytes gmem\n"), vec![]);
    }

    #[test]
    fn function_that_was_not_inlined_counts_to_its_kernel() {
        let log = "ptxas info    : Compiling entry function 'k' for 'sm_90'\n\
                   ptxas info    : Function properties for k\n\
                   ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
                   ptxas info    : Used 8 registers, used 0 barriers\n\
                   ptxas info    : Function properties for helper\n\
                   ptxas         .     16 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads\n";
        let kernel = KernelUsage { kernel: "k".to_owned(), registers: 8, shared_bytes: 0, stack_bytes: 16, spill_bytes: 16 };
        assert_eq!(usage(log), vec![kernel]);
    }
}

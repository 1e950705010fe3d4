// SPDX-License-Identifier: Apache-2.0
//! Partitions and groups of peers of sorted rows.
//!
//! 1. `window_flags` flags each row that differs from the one before.
//! 2. A prefix sum numbers the partitions and the groups of peers.
//! 3. `window_starts` writes the first row of each number.

use arrow::datatypes::DataType;
use columnar::{ColumnType, DeviceBatch, Layout};
use device::{Arg, Buffer};

use super::frame::{FrameUnits, PartitionIndex, float_range_search, range_search, wide_range_search};
use super::interval_bounds::IntervalBounds;
use crate::codegen::{CType, Params, RowWriter, Value};
use crate::expr::Expr;
use crate::ops::Options;
use crate::ops::launch::Launch;
use crate::ops::launch::equality::equal;
use crate::ops::launch::primitives::Lengths;
use crate::ops::launch::program::{Kernel, read_u64, row_loop};
use crate::prelude::Section;
use crate::{Error, Result};

/// Positions of the kernels in the window's program.
const FLAGS: usize = 0;
const STARTS: usize = 1;
const KEYS: usize = 2;

/// The kernels, for keys in columns of `types`. `searched`: the units of frames that search the
/// order key.
pub(super) fn kernels(
    types: &[ColumnType],
    partition: &[usize],
    order: &[usize],
    searched: &[FrameUnits],
    interval_bounds: &mut IntervalBounds,
    options: &Options,
) -> Result<Vec<Kernel>> {
    let mut kernels = vec![flags_kernel(types, partition, order, options)?, starts_kernel(options)];
    if !searched.is_empty() {
        kernels.push(keys_kernel(types, order, searched, options)?);
        interval_bounds.plan(types, order, options, &mut kernels)?;
    }
    Ok(kernels)
}

/// The first rows of the last partition and of the last group of peers of sorted rows. Waits thrice
/// for the device.
pub(super) async fn last_starts(launch: &Launch<'_>, batch: &DeviceBatch) -> Result<(usize, usize)> {
    let (n, numbered) = (batch.num_rows(), number(launch, batch).await?);
    let part = last_start(launch, &numbered.parts, numbered.part_count, n).await?;
    let peers = last_start(launch, &numbered.peers, numbered.peer_count, n).await?;
    Ok((part, peers))
}

/// The first row of the last number.
async fn last_start(launch: &Launch<'_>, numbers: &Buffer, count: usize, n: usize) -> Result<usize> {
    let starts = starts(launch, numbers, count, n)?;
    let at = count.saturating_sub(1) * size_of::<u32>();
    let start = launch.queue.read(&starts, at..at + size_of::<u32>()).await?;
    let start = start.as_ref().try_into().map_err(|_| Error::Internal("a row number of other bytes".into()))?;
    Ok(u32::from_le_bytes(start) as usize)
}

/// The partitions and peers of sorted rows, at least one. `key`: C type of the order key, if frames
/// search it. Waits for the numbers of partitions and groups of peers.
pub(super) async fn find(launch: &Launch<'_>, batch: &DeviceBatch, key: Option<CType>) -> Result<PartitionIndex> {
    let (queue, n) = (launch.queue, batch.num_rows());
    let Numbered { parts, peers, part_count, peer_count } = number(launch, batch).await?;
    let (part_starts, peer_starts) = (starts(launch, &parts, part_count, n)?, starts(launch, &peers, peer_count, n)?);
    let keys = match key {
        Some(key) => {
            let (keys, valid) = (queue.alloc(n * key.width())?, queue.alloc(n)?);
            let rows = ("n", Arg::U64(n as u64));
            let named = vec![("range_keys", Arg::Buffer(&keys)), ("range_valid", Arg::Buffer(&valid)), rows];
            launch.run_on(KEYS, launch.grid(n), batch.columns(), None, named)?;
            Some((keys, valid))
        }
        None => None,
    };
    Ok(PartitionIndex { parts, peers, part_starts, peer_starts, keys, interval_bounds: vec![] })
}

/// The numbers of [`PartitionIndex`], and how many partitions and groups of peers there are.
struct Numbered {
    parts: Buffer,
    peers: Buffer,
    part_count: usize,
    peer_count: usize,
}

/// Numbers the partitions and the groups of peers of sorted rows. Waits for their counts.
async fn number(launch: &Launch<'_>, batch: &DeviceBatch) -> Result<Numbered> {
    let (queue, n) = (launch.queue, batch.num_rows());
    let numbers = || queue.alloc((n + 1) * size_of::<i64>());
    let (parts, peers) = (numbers()?, numbers()?);
    let named = vec![("parts", Arg::Buffer(&parts)), ("peers", Arg::Buffer(&peers)), ("n", Arg::U64(n as u64))];
    launch.run_on(FLAGS, launch.grid(n), batch.columns(), None, named)?;
    let control = queue.alloc(2 * size_of::<u64>())?;
    for (at, flags) in [&parts, &peers].into_iter().enumerate() {
        launch.primitives.offsets(Lengths::of(flags, n), &control, at as u32)?;
    }
    let counts = queue.read(&control, 0..control.len()).await?;
    let (part_count, peer_count) = (read_u64(&counts, 0)? as usize, read_u64(&counts, 1)? as usize);
    Ok(Numbered { parts, peers, part_count, peer_count })
}

/// The first row of each number, and the number of rows.
fn starts(launch: &Launch<'_>, numbers: &Buffer, count: usize, n: usize) -> Result<Buffer> {
    let starts = launch.queue.alloc((count + 1) * size_of::<u32>())?;
    let named = vec![("numbers", Arg::Buffer(numbers)), ("starts", Arg::Buffer(&starts)), ("n", Arg::U64(n as u64))];
    launch.run(STARTS, launch.grid(n), named)?;
    Ok(starts)
}

fn flags_kernel(types: &[ColumnType], partition: &[usize], order: &[usize], options: &Options) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Base);
    let parts = params.named("parts", "G i64 *RESTRICT");
    let peers = params.named("peers", "G i64 *RESTRICT");
    let n = params.named("n", "u64");
    let mut statements = String::from("    u64 before = row ? row - 1 : 0;\n    i32 part = row == 0, peer = 0;\n");
    for (flag, columns) in [("part", partition), ("peer", order)] {
        for (index, column) in columns.iter().enumerate() {
            let mut load = |row: &str, prefix: char| -> Result<(String, Value)> {
                let names = format!("{prefix}{flag}{index}_");
                let mut writer = RowWriter::new(types, options.profile, &mut params).with_names(row, &names);
                let value = value(&mut writer, types, *column)?;
                Ok((writer.statements(), value))
            };
            let ((first, left), (second, right)) = (load("row", 'x')?, load("before", 'y')?);
            statements.push_str(&format!("{first}{second}    {flag} |= !{};\n", same_peer(&left, &right)));
        }
    }
    statements.push_str(&format!("    {parts}[row + 1] = part;\n    {peers}[row + 1] = part | peer;\n"));
    Ok(Kernel::new("window_flags", params, row_loop(options.profile, "row", &n, &statements)))
}

/// The value of a key, or its code in a dictionary.
fn value(writer: &mut RowWriter<'_>, types: &[ColumnType], column: usize) -> Result<Value> {
    match types.get(column).map(|ty| &ty.layout) {
        Some(Layout::Dictionary { .. }) => writer.code(column),
        Some(_) => writer.eval(&Expr::Column(column)),
        None => Err(Error::Internal(format!("no column {column}"))),
    }
}

/// C: whether two values are the same; values of type Null always are.
pub(super) fn same_peer(left: &Value, right: &Value) -> String {
    if left.is_null() { "1".into() } else { equal(left, right) }
}

fn starts_kernel(options: &Options) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    params.named("numbers", "const G i64 *RESTRICT");
    params.named("starts", "G u32 *RESTRICT");
    let n = params.named("n", "u64");
    let statements = "    i64 number = numbers[row + 1];
    if (row == 0 || numbers[row] != number) starts[number - 1] = (u32)row;
    if (row + 1 == n) starts[number] = (u32)n;
";
    Kernel::new("window_starts", params, row_loop(options.profile, "row", &n, statements))
}

/// The kernel that writes the order key of each row as a signed integer in its order.
fn keys_kernel(types: &[ColumnType], order: &[usize], units: &[FrameUnits], options: &Options) -> Result<Kernel> {
    let [column] = order else {
        return Err(Error::Unsupported(
            "RANGE with an offset over several order keys, or none, is not supported on the device".into(),
        ));
    };
    let mut params = Params::new();
    params.need(Section::Base);
    let floats = units.iter().any(|units| matches!(units, FrameUnits::FloatRange { .. }));
    if floats {
        params.need(Section::Float);
    }
    let own = units.first().map_or(CType::I64, |units| units.key());
    params.need_type(own);
    let keys = params.named("range_keys", &format!("G {} *RESTRICT", own.name()));
    let valid = params.named("range_valid", "G u8 *RESTRICT");
    let n = params.named("n", "u64");
    let mut writer = RowWriter::new(types, options.profile, &mut params);
    let value = writer.eval(&Expr::Column(*column))?;
    let (least, most, unsigned) = match &value.data_type {
        DataType::Int8 => (i8::MIN.into(), i8::MAX.into(), false),
        DataType::Int16 => (i16::MIN.into(), i16::MAX.into(), false),
        DataType::Int32 | DataType::Date32 | DataType::Decimal32(_, _) => (i32::MIN.into(), i32::MAX.into(), false),
        DataType::UInt8 => (0, u8::MAX.into(), true),
        DataType::UInt16 => (0, u16::MAX.into(), true),
        DataType::UInt32 => (0, u32::MAX.into(), true),
        // With the highest bit flipped.
        DataType::UInt64 => (i64::MIN, i64::MAX, true),
        _ => (i64::MIN, i64::MAX, false),
    };
    let unsupported =
        |key: &DataType| Err(Error::Unsupported(format!("RANGE with an offset over {key} is not supported on the device")));
    let mut search = range_search(least, most, unsigned);
    let key = match value.ctype {
        _ if units.first() == Some(&FrameUnits::NonArithmeticRange) => "0".into(),
        ctype if own.is_wide() && ctype.is_integer() && CType::native(&value.data_type) == Some(own) => {
            search = wide_range_search(own);
            value.to_ctype(own)
        }
        _ if own.is_wide() => return unsupported(&value.data_type),
        // A wide type in a narrow carrier.
        ctype if !floats && value.data_type == DataType::UInt64 && ctype.is_integer() && !ctype.is_wide() => {
            format!("(i64)((u64){} ^ (u64)0x8000000000000000UL)", value.code)
        }
        ctype if !floats && ctype.is_integer() && !ctype.is_wide() => format!("(i64){}", value.code),
        // At most 18 decimal digits fit 64 bits.
        CType::I128 if !floats && matches!(value.data_type, DataType::Decimal128(..=18, _)) => format!("(i64){}.lo", value.code),
        CType::F64 | CType::F32 if floats => {
            search = float_range_search(if value.ctype == CType::F64 { 64 } else { 32 });
            format!("(i64){}_key({})", value.ctype.name(), value.code)
        }
        _ => return unsupported(&value.data_type),
    };
    writer.push(&format!("{keys}[row] = {key};\n{valid}[row] = (u8)({});", value.valid_code()));
    let statements = writer.statements();
    let mut kernel = Kernel::new("window_keys", params, row_loop(options.profile, "row", &n, &statements));
    // For the kernels of functions, which follow in the source.
    kernel.params.function(search);
    Ok(kernel)
}

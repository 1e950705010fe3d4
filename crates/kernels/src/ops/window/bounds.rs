// SPDX-License-Identifier: Apache-2.0
//! Where partitions and peers begin in sorted rows: a flag for each row that differs from the one before it, a scan of the
//! flags, and the first row of each number.

use arrow::datatypes::DataType;
use columnar::{ColumnType, DeviceBatch, Layout};
use device::{Arg, Buffer, Queue};

use super::frame::{FrameUnits, Places, float_range_search, range_search, wide_range_search};
use super::moments::Moments;
use crate::codegen::{CType, Params, RowWriter, Value};
use crate::expr::Expr;
use crate::ops::Options;
use crate::ops::primitives::LoadedPrimitives;
use crate::ops::program::{Kernel, Loaded, for_rows, spread, word};
use crate::prelude::Section;
use crate::{Error, Result};

/// Their places in the window's program.
const FLAGS: usize = 0;
const STARTS: usize = 1;
const KEYS: usize = 2;

/// The kernels, for keys in columns of `types`; `by_key`: the units of frames that look at the order key, if any do, `moments`: their
/// bounds of intervals.
pub(super) fn kernels(
    types: &[ColumnType],
    partition: &[usize],
    order: &[usize],
    by_key: &[FrameUnits],
    moments: &mut Moments,
    options: &Options,
) -> Result<Vec<Kernel>> {
    let mut kernels = vec![flags(types, partition, order, options)?, starts(options)];
    if !by_key.is_empty() {
        kernels.push(keys(types, order, by_key, options)?);
        moments.plan(types, order, options, &mut kernels)?;
    }
    Ok(kernels)
}

/// Runs them over sorted rows, of which there must be some. `key`: what the order key becomes, if frames look at it.
/// Waits for the numbers of partitions and peers.
pub(super) async fn find(
    queue: &Queue,
    options: &Options,
    loaded: &Loaded<'_>,
    primitives: &LoadedPrimitives<'_>,
    batch: &DeviceBatch,
    key: Option<CType>,
) -> Result<Places> {
    let n = batch.num_rows();
    let grid = spread(queue, options, n);
    let numbers = || queue.alloc((n + 1) * size_of::<i64>());
    let (parts, peers) = (numbers()?, numbers()?);
    let rows = ("n", Arg::U64(n as u64));
    let named = vec![("parts", Arg::Buffer(&parts)), ("peers", Arg::Buffer(&peers)), rows];
    loaded.launch_on(queue, FLAGS, grid, batch, None, named)?;
    let control = queue.alloc(2 * size_of::<u64>())?;
    for (at, flags) in [&parts, &peers].into_iter().enumerate() {
        primitives.offsets(queue, flags, 0, n, 0, &control, at as u32)?;
    }
    let counts = queue.read(&control, 0..control.len()).await?;
    let starts = |numbers: &Buffer, count: u64| -> Result<Buffer> {
        let starts = queue.alloc((count as usize + 1) * size_of::<u32>())?;
        let named = vec![("numbers", Arg::Buffer(numbers)), ("starts", Arg::Buffer(&starts)), rows];
        loaded.launch(queue, STARTS, grid, named)?;
        Ok(starts)
    };
    let (part_starts, peer_starts) = (starts(&parts, word(&counts, 0)?)?, starts(&peers, word(&counts, 1)?)?);
    let keys = match key {
        Some(key) => {
            let (keys, valid) = (queue.alloc(n * key.width())?, queue.alloc(n)?);
            let named = vec![("range_keys", Arg::Buffer(&keys)), ("range_valid", Arg::Buffer(&valid)), rows];
            loaded.launch_on(queue, KEYS, grid, batch, None, named)?;
            Some((keys, valid))
        }
        None => None,
    };
    Ok(Places { parts, peers, part_starts, peer_starts, keys, positions: vec![] })
}

fn flags(types: &[ColumnType], partition: &[usize], order: &[usize], options: &Options) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Base);
    let parts = params.named("parts", "G i64 *RESTRICT");
    let peers = params.named("peers", "G i64 *RESTRICT");
    let n = params.named("n", "u64");
    let mut text = String::from("    u64 before = row ? row - 1 : 0;\n    i32 part = row == 0, peer = 0;\n");
    for (flag, columns) in [("part", partition), ("peer", order)] {
        for (index, column) in columns.iter().enumerate() {
            let mut load = |row: &str, prefix: char| -> Result<(String, Value)> {
                let names = format!("{prefix}{flag}{index}_");
                let mut writer = RowWriter::new(types, options.profile, &mut params).with_names(row, &names);
                let value = value(&mut writer, types, *column)?;
                Ok((writer.statements(), value))
            };
            let ((first, left), (second, right)) = (load("row", 'x')?, load("before", 'y')?);
            text.push_str(&format!("{first}{second}    {flag} |= !{};\n", equal(&left, &right)));
        }
    }
    text.push_str(&format!("    {parts}[row + 1] = part;\n    {peers}[row + 1] = part | peer;\n"));
    Ok(Kernel::new("window_flags", params, for_rows(options.profile, "row", &n, &text)))
}

/// A key, codes instead of the values of a dictionary.
fn value(writer: &mut RowWriter<'_>, types: &[ColumnType], column: usize) -> Result<Value> {
    match types.get(column).map(|ty| &ty.layout) {
        Some(Layout::Dictionary { .. }) => writer.code(column),
        Some(_) => writer.eval(&Expr::Column(column)),
        None => Err(Error::Internal(format!("no column {column}"))),
    }
}

/// C: whether two values, perhaps NULL, are the same. Floats are where all their bits are, as Arrow's `partition` tells.
pub(super) fn equal(left: &Value, right: &Value) -> String {
    let (a, b) = (&left.code, &right.code);
    let equal = match left.ctype {
        _ if left.is_null() => return "1".into(),
        CType::Str => format!("str_eq({a}, {b})"),
        CType::I128 | CType::I256 => format!("{}_eq({a}, {b})", left.ctype.name()),
        CType::F64 => format!("F64_BITS({a}) == F64_BITS({b})"),
        CType::F32 => format!("F32_BITS({a}) == F32_BITS({b})"),
        _ => format!("{a} == {b}"),
    };
    match (&left.valid, &right.valid) {
        (None, None) => format!("({equal})"),
        _ => format!("({0} == {1} && (!{0} || {equal}))", left.valid_code(), right.valid_code()),
    }
}

fn starts(options: &Options) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    params.named("numbers", "const G i64 *RESTRICT");
    params.named("starts", "G u32 *RESTRICT");
    let n = params.named("n", "u64");
    let text = "    i64 number = numbers[row + 1];
    if (row == 0 || numbers[row] != number) starts[number - 1] = (u32)row;
    if (row + 1 == n) starts[number] = (u32)n;
";
    Kernel::new("window_starts", params, for_rows(options.profile, "row", &n, text))
}

/// The one order key of each row as a signed number in its order.
fn keys(types: &[ColumnType], order: &[usize], units: &[FrameUnits], options: &Options) -> Result<Kernel> {
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
        // With its highest bit turned.
        DataType::UInt64 => (i64::MIN, i64::MAX, true),
        _ => (i64::MIN, i64::MAX, false),
    };
    let no_form =
        |key: &DataType| Err(Error::Unsupported(format!("RANGE with an offset over {key} is not supported on the device")));
    let mut search = range_search(least, most, unsigned);
    let key = match value.ctype {
        _ if units.first() == Some(&FrameUnits::Boundless) => "0".into(),
        ctype if own.is_wide() && ctype.is_integer() && CType::native(&value.data_type) == Some(own) => {
            search = wide_range_search(own);
            value.to_ctype(own)
        }
        _ if own.is_wide() => return no_form(&value.data_type),
        // A narrow carrier of a wide type.
        ctype if !floats && value.data_type == DataType::UInt64 && ctype.is_integer() && !ctype.is_wide() => {
            format!("(i64)((u64){} ^ (u64)0x8000000000000000UL)", value.code)
        }
        ctype if !floats && ctype.is_integer() && !ctype.is_wide() => format!("(i64){}", value.code),
        // Of 18 digits or fewer.
        CType::I128 if !floats && matches!(value.data_type, DataType::Decimal128(..=18, _)) => format!("(i64){}.lo", value.code),
        CType::F64 | CType::F32 if floats => {
            search = float_range_search(if value.ctype == CType::F64 { 64 } else { 32 });
            format!("(i64){}_key({})", value.ctype.name(), value.code)
        }
        _ => return no_form(&value.data_type),
    };
    writer.push(&format!("{keys}[row] = {key};\n{valid}[row] = (u8)({});", value.valid_code()));
    let statements = writer.statements();
    let mut kernel = Kernel::new("window_keys", params, for_rows(options.profile, "row", &n, &statements));
    // For the kernels of the functions, which come behind.
    kernel.params.function(search);
    Ok(kernel)
}

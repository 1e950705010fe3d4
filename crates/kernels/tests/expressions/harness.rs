// SPDX-License-Identifier: Apache-2.0
//! Evaluates expressions on a device and compares with the host.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, i256};
use columnar::{ColumnType, DeviceBatch};
use device::{Arg, Context, DeviceKind, Grid, ProgramSource, Queue, testing};
use futures::executor::block_on;
use kernels::codegen::{Bindings, CType, Params, Profile, RowWriter, SCRATCH};
use kernels::expr::{Expr, LiteralValue};

use crate::data;
use crate::host::{self, Outcome};

pub const PROFILES: [Profile; 2] = [Profile::Gpu, Profile::Cpu];

pub fn queue() -> Queue {
    static CONTEXT: OnceLock<Context> = OnceLock::new();
    CONTEXT.get_or_init(|| Context::new(testing::config().unwrap()).unwrap()).queue().unwrap()
}

/// A batch with nullable columns `c0, c1, …`.
pub fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
    let fields: Vec<Field> = columns
        .iter()
        .enumerate()
        .map(|(index, column)| Field::new(format!("c{index}"), column.data_type().clone(), true))
        .collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

pub fn natural(batch: &RecordBatch) -> Vec<ColumnType> {
    batch.schema().fields().iter().map(|field| ColumnType::of(field.data_type(), field.is_nullable()).unwrap()).collect()
}

pub fn upload(batch: &RecordBatch, types: &[ColumnType]) -> DeviceBatch {
    columnar::upload(&queue(), &batch.schema(), types, std::slice::from_ref(batch)).unwrap()
}

/// Results of a device by column: values, and the lowest failing row.
pub struct Computed {
    pub values: Vec<LiteralValue>,
    pub failed: Option<u64>,
}

/// The source of a kernel `evaluate` with one output per expression.
pub struct Text {
    pub text: String,
    pub params: Params,
    types: Vec<CType>,
    offsets: Vec<usize>,
    bytes: usize,
}

/// Bytes of the length at the start of a string's slot.
const SLOT_HEAD: usize = 8;

pub fn write(types: &[ColumnType], exprs: &[Expr], rows: usize, slot: usize, profile: Profile) -> Text {
    let mut params = Params::new();
    params.named("n", "u64");
    let out = params.named("out", "G u8 *");
    let (mut body, mut results, mut offsets, mut at) = (String::new(), Vec::new(), Vec::new(), 0);
    for (index, expr) in exprs.iter().enumerate() {
        let mut writer = RowWriter::new(types, profile, &mut params).with_names("row", &format!("e{index}_")).per_row();
        let value = writer.eval_output(expr).unwrap_or_else(|error| panic!("{expr:?}: {error}"));
        let code = writer.statements();
        // An error flag per expression.
        body.push_str(&code.replace("A_MIN64(err,", &format!("A_MIN64(err + {index},")));
        body.push_str(&format!("    {out}[{at} + row] = {};\n", value.valid_code()));
        let values = (at + rows).next_multiple_of(16);
        // The value of a NULL must not be read; that of a failing row may not fit.
        let (c, width) = match value.ctype {
            CType::Str | CType::ComposedString => {
                let copy = format!(
                    "    if ({}) {{ G u8 *slot = {out} + {values} + row * {slot}; *(G u32 *)slot = (u32){}; slot += {SLOT_HEAD}; if ({} <= {}) {{ {} }} }}\n",
                    value.valid_code(),
                    value.measured(),
                    value.measured(),
                    slot - SLOT_HEAD,
                    value.written("slot"),
                );
                (copy, slot)
            }
            ctype => (format!("    ((G {} *)({out} + {values}))[row] = {};\n", ctype.name(), value.code), ctype.width()),
        };
        body.push_str(&c);
        offsets.push(at);
        at = (values + rows * width).next_multiple_of(16);
        results.push(value.ctype);
    }
    let range = match profile {
        Profile::Gpu => "for (u64 row = GID(); row < n; row += GSZ())",
        Profile::Cpu => {
            "u64 run = (n + GSZ() - 1) / GSZ(), first = GID() * run, last = first + run < n ? first + run : n;\n  for (u64 row = first; row < last; ++row)"
        }
    };
    let text = format!(
        "{}KERNEL void evaluate({}) {{\n  {range} {{\n{body}  }}\n}}\n",
        params.sections().source(),
        params.declaration()
    );
    Text { text, params, types: results, offsets, bytes: at.max(16) }
}

/// Evaluates expressions over a batch. On a GPU the profile `gpu` replaces `cpu`.
pub fn evaluate(device: &DeviceBatch, types: &[ColumnType], exprs: &[Expr], slot: usize, profile: Profile) -> Vec<Computed> {
    let queue = queue();
    let profile = if queue.context().info().kind == DeviceKind::Cpu { profile } else { Profile::Gpu };
    let rows = device.num_rows();
    let slot = (slot + SLOT_HEAD).next_multiple_of(8);
    let text = write(types, exprs, rows, slot, profile);
    let program = block_on(queue.compile(ProgramSource::new(text.text.as_str(), "evaluate")))
        .unwrap_or_else(|error| panic!("{error}\n{}", text.text));
    let kernel = program.kernel("evaluate").unwrap();
    let out = queue.alloc(text.bytes).unwrap();
    let error = queue.filled(8 * exprs.len().max(1), 0xff).unwrap();
    let constants = text.params.upload(&queue).unwrap();
    let grid = match profile {
        Profile::Gpu => Grid { work_groups: 3, work_group_size: 64 },
        Profile::Cpu => Grid { work_groups: 3, work_group_size: 1 },
    };
    let scratch = queue.alloc(text.params.scratch_bytes((grid.work_groups * grid.work_group_size) as usize)).unwrap();
    let named = vec![("n", Arg::U64(rows as u64)), ("out", Arg::Buffer(&out)), (SCRATCH, Arg::Buffer(&scratch))];
    let args = text
        .params
        .bind(device.columns(), Bindings { constants: Some(&constants), error: Some(&error), dictionary_predicates: &[], named })
        .unwrap();
    queue.launch(&kernel, grid, &args).unwrap();
    let bytes = block_on(queue.read(&out, 0..text.bytes)).unwrap();
    let errors = block_on(queue.read(&error, 0..8 * exprs.len())).unwrap();
    let mut computed = Vec::new();
    for (index, ctype) in text.types.iter().enumerate() {
        let valid = text.offsets[index];
        let first = (valid + rows).next_multiple_of(16);
        let value = |row: usize| {
            if bytes[valid + row] == 0 {
                return LiteralValue::Null;
            }
            assert_eq!(bytes[valid + row], 1, "validity is 0 or 1");
            if matches!(ctype, CType::Str | CType::ComposedString) {
                let at = first + row * slot;
                let len = (u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize).min(slot - SLOT_HEAD);
                return LiteralValue::Bytes(bytes[at + SLOT_HEAD..at + SLOT_HEAD + len].to_vec());
            }
            let at = first + row * ctype.width();
            let number = integer(*ctype, &bytes[at..at + ctype.width()]);
            match (*ctype, &number) {
                (CType::Bool, LiteralValue::Int(raw)) => LiteralValue::Bool(*raw != 0),
                (CType::F32, LiteralValue::Int(raw)) => LiteralValue::Float(f32::from_bits(*raw as u32).into()),
                (CType::F64, LiteralValue::Int(raw)) => LiteralValue::Float(f64::from_bits(*raw as u64)),
                _ => number,
            }
        };
        let failed = u64::from_le_bytes(errors[index * 8..index * 8 + 8].try_into().unwrap());
        computed.push(Computed { values: (0..rows).map(value).collect(), failed: (failed != u64::MAX).then_some(failed) });
    }
    computed
}

/// The little-endian integer of these bytes.
fn integer(ctype: CType, bytes: &[u8]) -> LiteralValue {
    let negative = ctype.is_signed() && bytes.last().is_some_and(|byte| byte >> 7 == 1);
    let mut padded = [if negative { 0xff } else { 0 }; 32];
    padded[..bytes.len()].copy_from_slice(bytes);
    data::number(i256::from_le_bytes(padded))
}

/// Values of an array as literals.
pub fn values(array: &dyn Array) -> Vec<LiteralValue> {
    let ctype = CType::native(array.data_type()).unwrap();
    let plain: ArrayRef = match (array.data_type(), ctype) {
        (DataType::Dictionary(_, value), _) => cast(array, value).unwrap(),
        _ => arrow::array::make_array(array.to_data()),
    };
    (0..plain.len())
        .map(|row| {
            if plain.is_null(row) || *plain.data_type() == DataType::Null {
                return LiteralValue::Null;
            }
            match ctype {
                CType::Bool => LiteralValue::Bool(plain.as_boolean().value(row)),
                CType::F32 => LiteralValue::Float(plain.as_primitive::<arrow::datatypes::Float32Type>().value(row).into()),
                CType::F64 => LiteralValue::Float(plain.as_primitive::<arrow::datatypes::Float64Type>().value(row)),
                CType::Str => LiteralValue::Bytes(match plain.data_type() {
                    DataType::Utf8 => plain.as_string::<i32>().value(row).as_bytes().to_vec(),
                    DataType::LargeUtf8 => plain.as_string::<i64>().value(row).as_bytes().to_vec(),
                    DataType::Utf8View => plain.as_string_view().value(row).as_bytes().to_vec(),
                    DataType::Binary => plain.as_binary::<i32>().value(row).to_vec(),
                    DataType::LargeBinary => plain.as_binary::<i64>().value(row).to_vec(),
                    DataType::BinaryView => plain.as_binary_view().value(row).to_vec(),
                    _ => plain.as_fixed_size_binary().value(row).to_vec(),
                }),
                ctype => {
                    let data = plain.to_data();
                    let at = (data.offset() + row) * ctype.width();
                    integer(ctype, &data.buffers()[0][at..at + ctype.width()])
                }
            }
        })
        .collect()
}

/// Equal bit for bit.
pub fn same(left: &LiteralValue, right: &LiteralValue) -> bool {
    match (left, right) {
        (LiteralValue::Float(left), LiteralValue::Float(right)) => left.to_bits() == right.to_bits(),
        (left, right) => left == right,
    }
}

/// Compares device and host for every expression over a batch in its natural layout.
///
/// The code of a row is the same in both profiles; only the loop differs. So calls alternate
/// profiles. A run of one part of the long tests has half of the expressions.
#[track_caller]
pub fn check(batch: &RecordBatch, exprs: &[Expr]) {
    static TURN: AtomicUsize = AtomicUsize::new(0);
    let profile = PROFILES[TURN.fetch_add(1, Ordering::Relaxed) % 2];
    check_in(batch, &natural(batch), &testing::half(exprs.to_vec()).unwrap(), &[profile]);
}

#[track_caller]
pub fn check_in(batch: &RecordBatch, types: &[ColumnType], exprs: &[Expr], profiles: &[Profile]) {
    let device = upload(batch, types);
    let mut expected: Vec<Vec<Outcome>> = Vec::new();
    for expr in exprs {
        expected.push(host::rows(expr, batch));
    }
    let text = |outcome: &Outcome| if let Outcome::Value(LiteralValue::Bytes(bytes)) = outcome { bytes.len() } else { 0 };
    // With room for longer strings.
    let longest = 5000 + 2 * expected.iter().flatten().map(text).max().unwrap_or_default();
    for profile in profiles {
        let computed = evaluate(&device, types, exprs, longest, *profile);
        for ((expr, expected), computed) in exprs.iter().zip(&expected).zip(&computed) {
            compare(batch, expr, expected, computed, *profile);
        }
    }
}

#[track_caller]
pub fn compare(batch: &RecordBatch, expr: &Expr, expected: &[Outcome], computed: &Computed, profile: Profile) {
    let describe = |row: usize| {
        let inputs: Vec<String> = batch
            .columns()
            .iter()
            .map(|column| {
                let value = format!("{:?}", values(&column.slice(row, 1))[0]);
                format!("{} {}", column.data_type(), value.chars().take(200).collect::<String>())
            })
            .collect();
        format!("{profile:?}, row {row} of {inputs:?}, {expr:?}")
    };
    let must = expected.iter().position(|outcome| matches!(outcome, Outcome::Fails));
    match (computed.failed, must) {
        (None, None) => {}
        (Some(failed), _) if (failed as usize) < expected.len() => {
            let failed = failed as usize;
            assert!(matches!(expected[failed], Outcome::Fails | Outcome::Either), "failed without need: {}", describe(failed));
            assert!(must.is_none_or(|must| failed <= must), "did not fail first at {}", describe(must.unwrap()));
        }
        (Some(failed), _) => panic!("row {failed} of {} failed: {expr:?}", expected.len()),
        (None, Some(must)) => panic!("did not fail: {}", describe(must)),
    }
    for (row, outcome) in expected.iter().enumerate() {
        if let Outcome::Value(value) = outcome {
            let got = &computed.values[row];
            assert!(same(value, got), "expected {value:?}, got {got:?}: {}", describe(row));
        }
    }
}

/// A literal expression.
pub fn lit(data_type: &DataType, value: LiteralValue) -> Expr {
    Expr::Literal(data::literal(data_type, value))
}

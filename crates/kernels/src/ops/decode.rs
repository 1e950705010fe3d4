// SPDX-License-Identifier: Apache-2.0
//! Imported dictionary columns as plain values.
//!
//! Arrow allows dictionaries that repeat values, have NULLs or have no values, and arbitrary codes
//! for NULL rows. Kernels that compare codes support none of these, and a new dictionary would need
//! the values on the host. So a first kernel makes all codes valid and computes the validity of the
//! rows, then [`ArrowLayout`] gathers the values.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use columnar::{ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Arg, Buffer, ProgramSource, Queue};

use super::launch::primitives::Primitives;
use super::launch::program::{Kernel, Program, row_loop};
use super::launch::{Launch, NamedArgs};
use super::{ArrowLayout, Options};
use crate::codegen::{CType, Params};
use crate::prelude::Section;
use crate::{Error, Result};

/// Decodes the dictionary columns of imported batches, so that all kernels can read them.
#[derive(Debug, Clone)]
pub struct Decode {
    types: Vec<ColumnType>,
    /// `None` for schemas without dictionaries.
    plan: Option<DecodePlan>,
}

#[derive(Debug, Clone)]
struct DecodePlan {
    /// Positions of the dictionary columns.
    columns: Vec<usize>,
    /// Makes codes valid: a kernel for each width.
    program: Program,
    primitives: Primitives,
    /// The dictionary columns with the types of their values, which `gather` writes.
    coded: SchemaRef,
    gather: ArrowLayout,
    options: Options,
}

impl Decode {
    /// For batches of `schema`.
    ///
    /// # Errors
    /// `Columnar` if a column's type is not supported on the device.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use arrow::array::{DictionaryArray, RecordBatch, types::Int8Type};
    /// use columnar::{Layout, download, natural_types, upload};
    /// use kernels::codegen::Profile;
    /// use kernels::ops::{Decode, Options};
    ///
    /// # futures::executor::block_on(async {
    /// let terms: DictionaryArray<Int8Type> = vec![Some("a"), None, Some("b"), Some("a")].into_iter().collect();
    /// let host = RecordBatch::try_from_iter([("term", Arc::new(terms) as _)])?;
    /// let queue = device::Context::new(device::DeviceConfig::default())?.queue()?;
    /// let batch = upload(&queue, &host.schema(), &natural_types(&host.schema())?, &[host.clone()])?;
    ///
    /// let decode = Decode::try_new(host.schema(), Options::new(Profile::Cpu))?;
    /// assert_eq!(decode.output_types()[0].layout, Layout::Offsets32);
    /// let plain = decode.run(&queue, batch).await?;
    /// assert_eq!(download(&queue, &plain).await?, host);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn try_new(schema: SchemaRef, options: Options) -> Result<Decode> {
        let mut types = columnar::natural_types(&schema)?;
        let (mut columns, mut fields, mut coded) = (vec![], vec![], vec![]);
        for (index, (ty, field)) in types.iter_mut().zip(schema.fields()).enumerate() {
            if matches!(ty.layout, Layout::List(_)) {
                let (name, data_type) = (field.name().clone(), field.data_type().clone());
                return Err(columnar::Error::Unsupported { column: name, data_type }.into());
            }
            let DataType::Dictionary(_, value) = &ty.data_type else { continue };
            let Layout::Dictionary { values, .. } = &ty.layout else { continue };
            // A dictionary may have NULLs, so the column may be nullable although its field is not.
            let mut code = ColumnType { data_type: value.as_ref().clone(), nullable: true, ..ty.clone() };
            if **values == Layout::Null {
                code.layout = Layout::Null;
            }
            (ty.layout, ty.nullable) = (values.as_ref().clone(), true);
            columns.push(index);
            fields.push(Field::new(field.name(), code.data_type.clone(), code.nullable));
            coded.push(code);
        }
        if columns.is_empty() {
            return Ok(Decode { types, plan: None });
        }
        let kernels = ["u8", "u16", "u32", "u64"].map(|element| sanitize_kernel(element, &options));
        let coded_schema = Arc::new(Schema::new(fields));
        let plan = DecodePlan {
            columns,
            program: Program::new("Decode", &options, kernels.into()),
            primitives: Primitives::new(&options),
            gather: ArrowLayout::try_new(Arc::clone(&coded_schema), coded, options.clone())?,
            coded: coded_schema,
            options,
        };
        Ok(Decode { types, plan: Some(plan) })
    }

    /// Types of the result, the same for every batch. Dictionary columns keep their data type, in
    /// the layout of plain values.
    pub fn output_types(&self) -> &[ColumnType] {
        &self.types
    }

    /// The programs, as they are compiled, for batches that need them.
    pub fn programs(&self) -> Vec<ProgramSource> {
        let Some(plan) = &self.plan else { return Vec::new() };
        [plan.program.source(), plan.primitives.source()].into_iter().chain(plan.gather.programs()).collect()
    }

    /// The batch with plain values. A code beyond its dictionary, or below 0, is NULL.
    ///
    /// # Errors
    /// `TooLarge` for more bytes of strings than their type can address; errors of the device.
    pub async fn run(&self, queue: &Queue, batch: DeviceBatch) -> Result<DeviceBatch> {
        let Some(plan) = &self.plan else { return Ok(batch) };
        let launch = Launch::load(queue, &plan.options, &plan.program, &plan.primitives).await?;
        let sanitizer = CodeSanitizer { launch };
        let mut columns = batch.columns().to_vec();
        let mut coded = Vec::with_capacity(plan.columns.len());
        for index in &plan.columns {
            let column = columns.get(*index).ok_or_else(|| Error::Internal(format!("a batch without column {index}")))?;
            coded.push(sanitizer.sanitize(column)?);
        }
        let coded = DeviceBatch::try_new(Arc::clone(&plan.coded), coded, batch.num_rows())?;
        let plain = plan.gather.run(queue, &coded).await?;
        for (index, plain) in plan.columns.iter().zip(plain.columns()) {
            let (Some(column), Some(ty)) = (columns.get_mut(*index), self.types.get(*index)) else { continue };
            let validity = plain.validity().map(|(bits, first)| (bits.clone(), first));
            let (buffers, nulls) = (plain.buffers().to_vec(), plain.null_count());
            *column = DeviceColumn::try_new(Arc::new(ty.clone()), plain.len(), buffers, validity, nulls, None)?
                .with_offset(plain.offset())?;
        }
        Ok(DeviceBatch::try_new(Arc::clone(batch.schema()), columns, batch.num_rows())?)
    }
}

/// Makes the columns that [`ArrowLayout`] can gather.
struct CodeSanitizer<'a> {
    launch: Launch<'a>,
}

impl CodeSanitizer<'_> {
    /// The column with valid codes of a dictionary without NULLs, and with the type of its values.
    fn sanitize(&self, column: &DeviceColumn) -> Result<DeviceColumn> {
        let (queue, n, ty) = (self.launch.queue, column.len(), &**column.ty());
        let (Layout::Dictionary { codes, values }, DataType::Dictionary(_, value)) = (&ty.layout, &ty.data_type) else {
            return Err(Error::Internal(format!("a column of {} without codes", ty.data_type)));
        };
        let dictionary = column.dictionary().ok_or_else(|| Error::Internal("codes without a dictionary".into()))?;
        let ty = ColumnType { data_type: value.as_ref().clone(), nullable: true, ..ty.clone() };
        if **values == Layout::Null {
            let ty = ColumnType { layout: Layout::Null, ..ty };
            return Ok(DeviceColumn::try_new(Arc::new(ty), n, vec![], None, None, None)?);
        }
        // The kernel reads unsigned codes, so a code below 0 lies above the greatest code of its
        // type.
        let most = CType::of_carrier(*codes).range().map_or(0, |(_, most)| u64::try_from(most).unwrap_or(u64::MAX));
        let known = (dictionary.len() as u64).min(most.saturating_add(1));
        let [from] = column.buffers() else { return Err(Error::Internal("codes in several buffers".into())) };
        let to = queue.alloc(n * codes.width())?;
        let valid = queue.alloc(n)?;
        if n > 0 {
            let mut named: NamedArgs<'_> = vec![
                ("from", Arg::Buffer(from)),
                ("offset", Arg::U64(column.offset() as u64)),
                ("known", Arg::U64(known)),
                ("to", Arg::Buffer(&to)),
                ("valid", Arg::Buffer(&valid)),
                ("n", Arg::U64(n as u64)),
            ];
            named.extend(validity(["nullable", "bits", "first"], column, from));
            named.extend(validity(["value_nullable", "value_bits", "value_first"], dictionary, from));
            let kernel = codes.width().trailing_zeros() as usize;
            self.launch.run(kernel, self.launch.grid(n), named)?;
        }
        let dictionary = if dictionary.is_empty() { self.placeholder(dictionary.ty())? } else { without_validity(dictionary)? };
        self.launch.primitives.column(&Arc::new(ty), n, vec![to], Some(&valid), Some(Arc::new(dictionary)))
    }

    /// A dictionary of one value that no row refers to, in place of an empty one.
    fn placeholder(&self, ty: &ColumnType) -> Result<DeviceColumn> {
        let zeros = |bytes| self.launch.queue.zeroed(bytes);
        let buffers = match &ty.layout {
            Layout::Offsets32 | Layout::Offsets64 => vec![zeros(2 * size_of::<i64>())?, self.launch.queue.alloc(0)?],
            Layout::Views => vec![zeros(size_of::<u128>())?, self.launch.queue.alloc(0)?, zeros(size_of::<u64>())?],
            Layout::Bytes(width) => vec![zeros(*width as usize)?],
            _ => vec![zeros(2 * size_of::<u128>())?],
        };
        let ty = ColumnType { nullable: false, ..ty.clone() };
        Ok(DeviceColumn::try_new(Arc::new(ty), 1, buffers, None, None, None)?)
    }
}

fn without_validity(column: &DeviceColumn) -> Result<DeviceColumn> {
    let ty = Arc::new(ColumnType { nullable: false, ..(**column.ty()).clone() });
    let values = DeviceColumn::try_new(ty, column.len(), column.buffers().to_vec(), None, None, None)?;
    Ok(values.with_offset(column.offset())?)
}

/// Kernel arguments for the validity of a column. Without validity `other` stands in for the
/// bitmap.
fn validity<'a>(
    [nullable, bits, first]: [&'static str; 3],
    column: &'a DeviceColumn,
    other: &'a Buffer,
) -> [(&'static str, Arg<'a>); 3] {
    let (at, start) = column.validity().unwrap_or((other, 0));
    [(nullable, Arg::U32(column.validity().is_some().into())), (bits, Arg::Buffer(at)), (first, Arg::U64(start as u64))]
}

/// The kernel for codes of one width.
fn sanitize_kernel(element: &str, options: &Options) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    params.named("from", &format!("const G {element} *RESTRICT"));
    params.named("to", &format!("G {element} *RESTRICT"));
    params.named("valid", "G u8 *RESTRICT");
    for name in ["bits", "value_bits"] {
        params.named(name, "const G u8 *");
    }
    for name in ["nullable", "value_nullable"] {
        params.named(name, "u32");
    }
    for name in ["offset", "first", "value_first", "known"] {
        params.named(name, "u64");
    }
    let n = params.named("n", "u64");
    let statements = format!(
        "    u64 code = from[row + offset];
    i32 ok = code < known && (!nullable || BIT(bits, row + first));
    ok = ok && (!value_nullable || BIT(value_bits, code + value_first));
    to[row] = ok ? ({element})code : 0;
    valid[row] = (u8)ok;
"
    );
    Kernel::new(format!("sanitize_codes_{element}"), params, row_loop(options.profile, "row", &n, &statements))
}

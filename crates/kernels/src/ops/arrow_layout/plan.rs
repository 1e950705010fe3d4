// SPDX-License-Identifier: Apache-2.0
//! How each column is converted, from the types alone.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use columnar::{ColumnType, DeviceColumn, Layout};

use super::validity::ValidityWork;
use super::write::{ColumnWrite, ColumnWrites, WrittenKind};
use super::{ArrowColumn, ArrowLayout, ArrowShape, ValueSource, heap};
use crate::codegen::CType;
use crate::ops::Options;
use crate::ops::launch::output::Output;
use crate::ops::launch::program::Kernel;
use crate::{Error, Result};

impl ArrowShape {
    /// Whether codes number the rows.
    pub(super) fn is_numbered(&self) -> bool {
        match self {
            ArrowShape::Numbered(_) => true,
            ArrowShape::Plain | ArrowShape::Codes(_) => false,
        }
    }

    /// The shape of a column of type `from`, and the layout of its values or codes. `layout`: the
    /// natural one of the type.
    fn of(
        field: &Field,
        from: &ColumnType,
        layout: &Layout,
        options: &Options,
        heap_bytes: usize,
    ) -> Result<(ArrowShape, Layout)> {
        Ok(match (&from.data_type, &from.layout, layout) {
            (DataType::Dictionary(_, value), Layout::Dictionary { values, .. }, Layout::Dictionary { codes, .. }) => {
                let ty = ColumnType {
                    data_type: value.as_ref().clone(),
                    nullable: **values == Layout::Null,
                    layout: values.as_ref().clone(),
                    bounds: None,
                };
                let schema = Schema::new(vec![Field::new(field.name(), ty.data_type.clone(), ty.nullable)]);
                let dictionary = ArrowLayout::with_heap_bytes(Arc::new(schema), vec![ty], options.clone(), heap_bytes)?;
                (ArrowShape::Codes(Box::new(dictionary)), Layout::Fixed(*codes))
            }
            (DataType::Dictionary(_, value), _, Layout::Dictionary { codes, .. }) => {
                (ArrowShape::Numbered(*codes), natural_layout(value)?)
            }
            _ => (ArrowShape::Plain, layout.clone()),
        })
    }
}

impl ValueSource {
    /// The source of values of type `from` for the layout `target`.
    fn of(from: &ColumnType, shape: &ArrowShape, target: &Layout) -> ValueSource {
        use Layout::{Dictionary, Offsets32, Offsets64};
        match (shape, &from.layout, target) {
            (ArrowShape::Codes(_), Dictionary { codes, .. }, Layout::Fixed(natural)) if codes == natural => ValueSource::Pass,
            (ArrowShape::Codes(_), _, _) => ValueSource::Written,
            // The view of a NULL is arbitrary, which Arrow does not allow in the values of a
            // dictionary.
            (ArrowShape::Numbered(_), Layout::Views, Layout::Views) if from.nullable => ValueSource::WrittenViews,
            (_, Layout::Views, Layout::Views) => ValueSource::Views,
            (_, from, to) if from == to => ValueSource::Pass,
            (_, Offsets32 | Offsets64, Offsets32 | Offsets64) => ValueSource::OtherOffsets,
            (_, _, Layout::Views) => ValueSource::WrittenViews,
            (_, _, Offsets32 | Offsets64) => ValueSource::Concatenated,
            _ => ValueSource::Written,
        }
    }
}

/// A column whose values kernels may write, with its target layout.
struct WritePlan<'a> {
    field: &'a Field,
    from: &'a ColumnType,
    target: &'a Layout,
    name: String,
    heap_bytes: usize,
}

impl WritePlan<'_> {
    fn write(&self, kind: WrittenKind, layout: Layout, ctype: CType) -> ColumnWrite {
        // Validity is handled apart from the values.
        let ty = ColumnType { data_type: self.from.data_type.clone(), nullable: false, layout, bounds: None };
        ColumnWrite { kind, output: Output::new(ty, ctype, &self.name) }
    }

    /// Concatenated strings.
    fn strings(&self) -> ColumnWrite {
        let write = self.write(WrittenKind::Value, Layout::Offsets64, CType::Str);
        let limit = if *self.target == Layout::Offsets64 { usize::MAX } else { self.heap_bytes };
        ColumnWrite { output: write.output.with_limit(self.field.name(), limit), ..write }
    }

    /// The output of [`ArrowLayout::main`], if it has to write one.
    fn main(&self, values: ValueSource, shape: &ArrowShape) -> Result<Option<ColumnWrite>> {
        let target = self.target;
        let write = match (values, shape, target) {
            (ValueSource::Pass | ValueSource::Views | ValueSource::OtherOffsets, _, _) => return Ok(None),
            (ValueSource::WrittenViews, _, _) => self.write(WrittenKind::View, Layout::Views, CType::I128),
            (ValueSource::Concatenated, _, _) => self.strings(),
            (ValueSource::Written, ArrowShape::Codes(_), Layout::Fixed(codes)) => {
                self.write(WrittenKind::Code, target.clone(), CType::of_carrier(*codes))
            }
            (ValueSource::Written, _, Layout::Fixed(carrier)) => {
                self.write(WrittenKind::Value, target.clone(), CType::of_carrier(*carrier))
            }
            (ValueSource::Written, _, Layout::Bits) => self.write(WrittenKind::Value, Layout::Bits, CType::Bool),
            (ValueSource::Written, _, Layout::Bytes(_)) => self.write(WrittenKind::Value, target.clone(), CType::Str),
            (ValueSource::Written, _, _) => {
                let (name, data_type, layout) = (self.field.name(), &self.from.data_type, &self.from.layout);
                return Err(Error::Internal(format!("column \"{name}\" of {data_type} in layout {layout:?}")));
            }
        };
        Ok(Some(write))
    }
}

impl ArrowColumn {
    /// Plans a column. Returns also what [`ArrowLayout::main`] has to write for it.
    pub(super) fn plan(
        field: &Field,
        index: usize,
        types: &[ColumnType],
        options: &Options,
        heap_bytes: usize,
        concat_kernels: &mut Vec<Kernel>,
    ) -> Result<(ArrowColumn, Option<ColumnWrite>)> {
        let from = types.get(index).ok_or_else(|| Error::Internal(format!("column {index} without a type")))?;
        let layout = natural_layout(&from.data_type)?;
        let (shape, target) = ArrowShape::of(field, from, &layout, options, heap_bytes)?;
        let values = ValueSource::of(from, &shape, &target);
        let keeps_bounds = match shape {
            ArrowShape::Codes(_) => true,
            ArrowShape::Plain => !matches!(from.layout, Layout::Dictionary { .. }),
            ArrowShape::Numbered(_) => false,
        };
        let bounds = from.bounds.filter(|_| keeps_bounds);
        let ty = ColumnType { data_type: from.data_type.clone(), nullable: from.nullable, layout, bounds };
        let writes = WritePlan { field, from, target: &target, name: index.to_string(), heap_bytes };
        let main = writes.main(values, &shape)?;
        let may_concatenate = match values {
            ValueSource::Views | ValueSource::WrittenViews => true,
            ValueSource::OtherOffsets => target == Layout::Offsets32,
            ValueSource::Pass | ValueSource::Written | ValueSource::Concatenated => false,
        };
        let concatenated = match may_concatenate {
            true => {
                let writes = (0..types.len()).map(|at| (at == index).then(|| writes.strings())).collect();
                Some(ColumnWrites::try_new(&format!("concat{index}"), types, writes, options, concat_kernels)?)
            }
            false => None,
        };
        Ok((ArrowColumn { name: field.name().clone(), ty: Arc::new(ty), shape, target, values, concatenated }, main))
    }

    /// Most rows that the keys of a dictionary type can number.
    pub(super) fn max_rows(&self) -> usize {
        let ArrowShape::Numbered(codes) = &self.shape else { return usize::MAX };
        let most = CType::of_carrier(*codes).range().map_or(0, |(_, most)| most);
        usize::try_from(most).map_or(usize::MAX, |most| most.saturating_add(1))
    }

    /// Fails for more rows than that.
    pub(super) fn check_rows(&self, given: &DeviceColumn) -> Result<()> {
        let limit = self.max_rows();
        if given.len() <= limit {
            return Ok(());
        }
        Err(columnar::Error::TooLarge {
            column: self.name.clone(),
            data_type: self.ty.data_type.clone(),
            what: "rows to be numbered by the dictionary's keys",
            actual: given.len(),
            limit,
        }
        .into())
    }

    /// Whether the views of the column are over several heaps in one buffer.
    pub(super) fn merges_heaps(&self, given: &DeviceColumn) -> bool {
        match (self.values, given.buffers()) {
            (ValueSource::Views, [_, heap, bases]) => !heap.is_empty() && bases.len() != size_of::<u64>(),
            _ => false,
        }
    }

    /// Whether the heap of the column is too large for its new offsets or views.
    pub(super) fn concatenates(&self, given: &DeviceColumn, heap_bytes: usize) -> bool {
        let beyond = heap(given).is_some_and(|heap| heap.len() > heap_bytes);
        beyond && self.concatenated.is_some() && (self.values != ValueSource::Views || self.merges_heaps(given))
    }

    /// The first validity bit of the result: its first element in its buffers.
    pub(super) fn first_bit(&self, given: &DeviceColumn) -> usize {
        let passes = match self.values {
            ValueSource::Pass => true,
            ValueSource::Views => !self.merges_heaps(given),
            ValueSource::OtherOffsets | ValueSource::Written | ValueSource::WrittenViews | ValueSource::Concatenated => false,
        };
        if passes && !self.shape.is_numbered() { given.offset() } else { 0 }
    }

    /// The work on the validity of a column; `None` without any.
    pub(super) fn validity_work(&self, given: &DeviceColumn) -> Option<ValidityWork> {
        let (_, first) = given.validity()?;
        if given.null_count() == Some(0) {
            return None;
        }
        let work = ValidityWork { moves: first != self.first_bit(given), counts: given.null_count().is_none() };
        (work.moves || work.counts).then_some(work)
    }
}

fn natural_layout(data_type: &DataType) -> Result<Layout> {
    let ty = ColumnType::of(data_type, true).filter(|ty| !matches!(ty.layout, Layout::List(_)));
    ty.map(|ty| ty.layout).ok_or_else(|| Error::Unsupported(format!("type {data_type} has no layout as an Arrow device array")))
}

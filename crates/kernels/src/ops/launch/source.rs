// SPDX-License-Identifier: Apache-2.0
//! The columns that the kernels of an operator read, and aliases of the same buffers with a simpler
//! type.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use columnar::{Carrier, ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Arg, Buffer};

use crate::codegen::{Params, Profile, RowRef, RowWriter};
use crate::expr::Expr;
use crate::ops::Input;
use crate::ops::join::Lookup;
use crate::{Error, Result};

/// The columns of an input, followed by aliases.
#[derive(Debug, Clone)]
pub(in crate::ops) struct Source {
    pub schema: SchemaRef,
    pub types: Vec<ColumnType>,
    pub filter: Option<Expr>,
    /// Number of columns without the aliases.
    columns: usize,
    /// The column of each alias.
    aliases: Vec<usize>,
    /// Rows at which columns of joins' build sides are read; aliases included.
    row_refs: Vec<Option<RowRef>>,
    /// The joins that find these rows, fused with the filter.
    lookup: Option<Lookup>,
}

impl Source {
    pub fn try_new(input: Input) -> Result<Source> {
        let row_refs = vec![None; input.types.len()];
        Self::with_row_refs(input, row_refs)
    }

    /// Columns of these types, without a schema of the caller.
    pub fn of_types(types: Vec<ColumnType>) -> Source {
        let fields = types.iter().map(|ty| Field::new("column", ty.data_type.clone(), ty.nullable));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let row_refs = vec![None; types.len()];
        Source { schema, columns: types.len(), types, filter: None, aliases: vec![], row_refs, lookup: None }
    }

    /// A source with columns that are read at other rows than the current one.
    pub fn with_row_refs(input: Input, row_refs: Vec<Option<RowRef>>) -> Result<Source> {
        let Input { schema, types, filter } = input;
        if schema.fields().len() != types.len() {
            return Err(Error::Internal(format!("{} types for {} columns", types.len(), schema.fields().len())));
        }
        Ok(Source { schema, columns: types.len(), types, filter, aliases: vec![], row_refs, lookup: None })
    }

    /// The columns of all sides of joins; each row is looked up where it is read.
    pub fn with_lookup(schema: SchemaRef, types: Vec<ColumnType>, lookup: Lookup) -> Result<Source> {
        let source = Self::with_row_refs(Input { schema, types, filter: None }, lookup.row_refs().to_vec())?;
        Ok(Source { lookup: Some(lookup), ..source })
    }

    /// Names and types of the columns without the aliases.
    pub fn input(&self) -> (SchemaRef, Vec<ColumnType>) {
        let fields = self.schema.fields().iter().take(self.columns).cloned().collect::<Vec<_>>();
        (Arc::new(Schema::new(fields)), self.types.iter().take(self.columns).cloned().collect())
    }

    /// A writer of C for one row of the source.
    pub fn writer<'a>(&'a self, profile: Profile, params: &'a mut Params) -> RowWriter<'a> {
        RowWriter::new(&self.types, profile, params).with_row_refs(&self.row_refs)
    }

    /// The joins that rows are looked up in.
    pub fn lookup(&self) -> Option<&Lookup> {
        self.lookup.as_ref()
    }

    /// The most build rows that a row is compared with; 1 without joins.
    pub fn max_candidates(&self) -> usize {
        self.lookup.as_ref().map_or(1, Lookup::max_candidates)
    }

    /// Appends filter and joins of the current row. Returns the C condition for the row to stay,
    /// `None` if all stay.
    ///
    /// Columns of build sides can be read afterwards. With joins, `tally0` and so on count the
    /// removed rows of each dynamic filter, and the last tally counts the rows that stay.
    pub fn write_filter(&self, writer: &mut RowWriter<'_>) -> Result<Option<String>> {
        let Some(lookup) = &self.lookup else {
            return self.filter.as_ref().map(|filter| Ok(writer.eval(filter)?.is_true())).transpose();
        };
        lookup.write(writer, &self.types, lookup.joins(), |_, _| {})?;
        writer.push(&format!("tally{} += kept;", lookup.tallies()));
        Ok(Some("kept".into()))
    }

    /// Number of the tallies of [`write_filter`](Self::write_filter): one for each dynamic filter,
    /// one for the rows that stay.
    pub fn tallies(&self) -> usize {
        self.lookup.as_ref().map_or(0, |lookup| lookup.tallies() + 1)
    }

    /// The arguments of kernels that contain [`write_filter`](Self::write_filter).
    pub fn args<'a>(&'a self, tallies: Option<&'a Buffer>) -> Vec<(&'a str, Arg<'a>)> {
        let tables = self.lookup.iter().flat_map(Lookup::args);
        tables.chain(tallies.map(|tallies| ("tallies", Arg::Buffer(tallies)))).collect()
    }

    /// Position and type of the column, if the expression is a plain column.
    pub fn plain(&self, expr: &Expr) -> Option<(usize, &ColumnType)> {
        match expr {
            Expr::Column(index) => self.types.get(*index).map(|ty| (*index, ty)),
            _ => None,
        }
    }

    /// The codes of a dictionary column, as integers.
    pub fn codes(&mut self, column: usize) -> Result<Expr> {
        let Some(Layout::Dictionary { codes, .. }) = self.types.get(column).map(|ty| &ty.layout) else {
            return Err(Error::Internal(format!("column {column} has no codes")));
        };
        let codes = *codes;
        self.alias(column, codes, integer(codes)?)
    }

    /// The views of a string column, as 128-bit integers.
    pub fn views(&mut self, column: usize) -> Result<Expr> {
        self.alias(column, Carrier::I128, DataType::Decimal128(38, 0))
    }

    /// Whether a column is NULL for rows without a match in its join.
    pub fn may_be_absent(&self, column: usize) -> bool {
        self.row_refs.get(column).and_then(Option::as_ref).is_some_and(|row_ref| row_ref.found.is_some())
    }

    /// The columns of a batch of the source, followed by those of the joins' build sides.
    pub fn columns(&self, batch: &DeviceBatch) -> Result<Vec<DeviceColumn>> {
        match &self.lookup {
            None => Ok(batch.columns().to_vec()),
            Some(lookup) => lookup.columns(batch),
        }
    }

    /// As [`columns`](Self::columns), followed by the aliases.
    pub fn bind(&self, batch: &DeviceBatch) -> Result<Vec<DeviceColumn>> {
        self.bind_columns(&self.columns(batch)?)
    }

    /// The columns, followed by the aliases. The columns of a join's side have the length of that
    /// side.
    pub fn bind_columns(&self, columns: &[DeviceColumn]) -> Result<Vec<DeviceColumn>> {
        if columns.len() != self.columns {
            return Err(Error::Internal(format!("{} columns instead of {}", columns.len(), self.columns)));
        }
        let mut bound = columns.to_vec();
        for (alias, ty) in self.aliases.iter().zip(&self.types[self.columns..]) {
            let column = columns.get(*alias).ok_or_else(|| Error::Internal(format!("a batch without column {alias}")))?;
            let validity = column.validity().map(|(bits, offset)| (bits.clone(), offset));
            let values = column.buffers().iter().take(1).cloned().collect();
            // `try_new` checks the buffers for `len` values, so the offset is set afterwards.
            let whole = DeviceColumn::try_new(Arc::new(ty.clone()), column.len(), values, validity, column.null_count(), None)?;
            bound.push(whole.with_offset(column.offset())?);
        }
        Ok(bound)
    }

    fn alias(&mut self, column: usize, carrier: Carrier, data_type: DataType) -> Result<Expr> {
        let known = self.aliases.iter().position(|alias| *alias == column);
        let index = known.unwrap_or(self.aliases.len());
        if known.is_none() {
            let from = self.types[column].clone();
            let bounds = if matches!(from.layout, Layout::Dictionary { .. }) { from.bounds } else { None };
            self.aliases.push(column);
            self.row_refs.push(self.row_refs[column].clone());
            self.types.push(ColumnType {
                data_type: data_type.clone(),
                nullable: from.nullable,
                layout: Layout::Fixed(carrier),
                bounds,
            });
            let mut fields = self.schema.fields().to_vec();
            fields.push(Arc::new(Field::new(format!("alias of {column}"), data_type, from.nullable)));
            self.schema = Arc::new(Schema::new(fields));
        }
        Ok(Expr::Column(self.columns + index))
    }
}

/// The logical type of a carrier of integers.
pub(in crate::ops) fn integer(carrier: Carrier) -> Result<DataType> {
    Ok(match carrier {
        Carrier::I8 => DataType::Int8,
        Carrier::I16 => DataType::Int16,
        Carrier::I32 => DataType::Int32,
        Carrier::I64 => DataType::Int64,
        Carrier::U8 => DataType::UInt8,
        Carrier::U16 => DataType::UInt16,
        Carrier::U32 => DataType::UInt32,
        Carrier::U64 => DataType::UInt64,
        Carrier::I128 | Carrier::I256 | Carrier::F32 | Carrier::F64 => return Err(Error::Internal(format!("{carrier:?} codes"))),
    })
}

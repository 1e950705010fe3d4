// SPDX-License-Identifier: Apache-2.0
//! A sink's input as kernels read it: the source's columns, and aliases that read the same buffers
//! as something plainer.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use columnar::{Carrier, ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Arg, Buffer};

use super::Input;
use super::join::Lookup;
use crate::codegen::{Params, Profile, RowRef, RowWriter};
use crate::expr::Expr;
use crate::{Error, Result};

/// The columns of an input, with aliases after them.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub schema: SchemaRef,
    pub types: Vec<ColumnType>,
    pub filter: Option<Expr>,
    columns: usize,
    aliases: Vec<usize>,
    /// Where columns of a join's other sides are read, aliases included.
    places: Vec<Option<RowRef>>,
    /// The joins that find these places, and the filter with them.
    lookup: Option<Lookup>,
}

impl Source {
    pub fn try_new(input: Input) -> Result<Source> {
        let places = vec![None; input.types.len()];
        Self::with_row_refs(input, places)
    }

    /// Columns of these types that nobody asks for by their logical type.
    pub fn of_types(types: Vec<ColumnType>) -> Source {
        let fields = types.iter().map(|ty| Field::new("column", ty.data_type.clone(), ty.nullable));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let places = vec![None; types.len()];
        Source { schema, columns: types.len(), types, filter: None, aliases: vec![], places, lookup: None }
    }

    /// The source of which columns are read at their places.
    pub fn with_row_refs(input: Input, places: Vec<Option<RowRef>>) -> Result<Source> {
        let Input { schema, types, filter } = input;
        if schema.fields().len() != types.len() {
            return Err(Error::Internal(format!("{} types for {} columns", types.len(), schema.fields().len())));
        }
        Ok(Source { schema, columns: types.len(), types, filter, aliases: vec![], places, lookup: None })
    }

    /// The columns of all sides of joins that each row goes through where it is read.
    pub fn with_lookup(schema: SchemaRef, types: Vec<ColumnType>, lookup: Lookup) -> Result<Source> {
        let source = Self::with_row_refs(Input { schema, types, filter: None }, lookup.places().to_vec())?;
        Ok(Source { lookup: Some(lookup), ..source })
    }

    /// A writer of rows.
    pub fn writer<'a>(&'a self, profile: Profile, params: &'a mut Params) -> RowWriter<'a> {
        RowWriter::new(&self.types, profile, params).with_row_refs(&self.places)
    }

    /// The joins that rows go through.
    pub fn lookup(&self) -> Option<&Lookup> {
        self.lookup.as_ref()
    }

    /// The most rows that a row's search looks at; 1 where there are no joins.
    pub fn meets(&self) -> usize {
        self.lookup.as_ref().map_or(1, Lookup::meets)
    }

    /// Appends what decides whether the current row stays: C that tells, `None` where all do. Behind it columns of other sides
    /// can be read. Rows that are removed, and those that stay, are counted in `tally0` and so on where there are joins.
    pub fn kept(&self, writer: &mut RowWriter<'_>) -> Result<Option<String>> {
        let Some(lookup) = &self.lookup else {
            return self.filter.as_ref().map(|filter| Ok(writer.eval(filter)?.is_true())).transpose();
        };
        lookup.write(writer, &self.types, lookup.joins(), |_, _| {})?;
        writer.push(&format!("tally{} += kept;", lookup.tallies()));
        Ok(Some("kept".into()))
    }

    /// What [`kept`](Self::kept) counts: for each dynamic filter the rows that it removes, then the rows that stay.
    pub fn tallies(&self) -> usize {
        self.lookup.as_ref().map_or(0, |lookup| lookup.tallies() + 1)
    }

    /// The arguments of kernels that call [`kept`](Self::kept).
    pub fn args<'a>(&'a self, tallies: Option<&'a Buffer>) -> Vec<(&'a str, Arg<'a>)> {
        let tables = self.lookup.iter().flat_map(Lookup::args);
        tables.chain(tallies.map(|tallies| ("tallies", Arg::Buffer(tallies)))).collect()
    }

    /// A column that is passed on as it is, by position.
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

    /// Whether a column is read only where its side has a row, and NULL elsewhere.
    pub fn may_be_absent(&self, column: usize) -> bool {
        self.places.get(column).and_then(Option::as_ref).is_some_and(|place| place.found.is_some())
    }

    /// The columns of a batch of the source, then those of the joins.
    pub fn columns(&self, batch: &DeviceBatch) -> Result<Vec<DeviceColumn>> {
        match &self.lookup {
            None => Ok(batch.columns().to_vec()),
            Some(lookup) => lookup.columns(batch),
        }
    }

    /// The same, with the aliases.
    pub fn bind(&self, batch: &DeviceBatch) -> Result<Vec<DeviceColumn>> {
        self.bind_columns(&self.columns(batch)?)
    }

    /// The columns with the aliases; of a join, each side's columns have the side's length.
    pub fn bind_columns(&self, columns: &[DeviceColumn]) -> Result<Vec<DeviceColumn>> {
        if columns.len() != self.columns {
            return Err(Error::Internal(format!("{} columns instead of {}", columns.len(), self.columns)));
        }
        let mut bound = columns.to_vec();
        for (alias, ty) in self.aliases.iter().zip(&self.types[self.columns..]) {
            let column = columns.get(*alias).ok_or_else(|| Error::Internal(format!("a batch without column {alias}")))?;
            let validity = column.validity().map(|(bits, offset)| (bits.clone(), offset));
            let values = column.buffers().iter().take(1).cloned().collect();
            // The offset comes last: a column of `len` values at it is what is checked.
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
            self.places.push(self.places[column].clone());
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
pub(super) fn integer(carrier: Carrier) -> Result<DataType> {
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

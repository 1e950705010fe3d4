// SPDX-License-Identifier: Apache-2.0
//! The column in device memory.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::DataType;
use device::{Buffer, Queue};

use crate::{ColumnType, Error, Layout, Result};

/// Bytes of the offset/length pair of a list.
const LIST_PAIR_BYTES: usize = size_of::<u64>();

/// A column in device memory. Immutable; clones and slices share the buffers.
///
/// Invariants that kernels rely on:
/// - A nullable column has a validity bitmap, any other has none. [`Layout::Null`] has no bitmap
///   and every value is NULL.
/// - A dictionary has at least one value. Its values are distinct byte strings, none is NULL.
/// - Every dictionary code is in range, also below a NULL.
/// - The elements of every list that is not NULL are in range.
/// - Other values below NULLs are undefined.
///
/// Exception: dictionaries from [`exchange::import`](crate::exchange::import()) are unchecked.
#[derive(Clone)]
pub struct DeviceColumn {
    ty: Arc<ColumnType>,
    len: usize,
    offset: usize,
    buffers: Vec<Buffer>,
    validity: Option<Buffer>,
    validity_offset: usize,
    null_count: Option<usize>,
    values: Option<Arc<DeviceColumn>>,
}

impl DeviceColumn {
    /// A column of `len` values at the start of `buffers`, in the order that [`Layout`] lists.
    ///
    /// - `validity`: an Arrow bitmap and the bit of the first row.
    /// - `values`: the dictionary, or the elements of lists.
    ///
    /// # Errors
    /// `Malformed` if
    /// - the number of buffers is wrong or one is too small for `len`,
    /// - validity or values are missing, or present against the type.
    pub fn try_new(
        ty: Arc<ColumnType>,
        len: usize,
        buffers: Vec<Buffer>,
        validity: Option<(Buffer, usize)>,
        null_count: Option<usize>,
        values: Option<Arc<DeviceColumn>>,
    ) -> Result<Self> {
        let null_count = match (&ty.layout, ty.nullable) {
            (Layout::Null, _) => Some(len),
            (_, false) => Some(0),
            (_, true) => null_count,
        };
        let (validity, validity_offset) = validity.map_or((None, 0), |(bits, offset)| (Some(bits), offset));
        let column = Self { ty, len, offset: 0, buffers, validity, validity_offset, null_count, values };
        column.check()?;
        Ok(column)
    }

    /// A column of one value of zero bytes: NULL if the type is nullable.
    pub(crate) fn blank(queue: &Queue, ty: &ColumnType) -> Result<Self> {
        let zeros =
            |widths: &[usize]| -> Result<Vec<Buffer>> { widths.iter().map(|width| Ok(queue.zeroed((*width).max(1))?)).collect() };
        let mut nested = None;
        let buffers = match &ty.layout {
            Layout::Null => vec![],
            Layout::Bits => zeros(&[4])?,
            Layout::Fixed(carrier) => zeros(&[carrier.width()])?,
            Layout::Bytes(width) => zeros(&[*width as usize])?,
            Layout::Offsets32 => zeros(&[8, 8])?,
            Layout::Offsets64 => zeros(&[16, 8])?,
            Layout::Views => zeros(&[16, 8, 8])?,
            Layout::Dictionary { codes, values } => {
                let data_type = match &ty.data_type {
                    DataType::Dictionary(_, value) => (**value).clone(),
                    other => other.clone(),
                };
                let values = ColumnType { data_type, nullable: false, layout: (**values).clone(), bounds: None };
                nested = Some(Arc::new(Self::blank(queue, &values)?));
                zeros(&[codes.width()])?
            }
            Layout::List(elements) => {
                nested = Some(Arc::new(Self::blank(queue, elements)?));
                zeros(&[LIST_PAIR_BYTES])?
            }
        };
        let nullable = ty.nullable && ty.layout != Layout::Null;
        let validity = if nullable { Some((queue.zeroed(4)?, 0)) } else { None };
        Self::try_new(Arc::new(ty.clone()), 1, buffers, validity, None, nested)
    }

    /// The same values with a nullable type: with the column's own NULLs, or all NULL.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn nullable(&self, queue: &Queue, all_null: bool) -> Result<Self> {
        if self.ty.layout == Layout::Null || !all_null && self.validity.is_some() {
            return Ok(self.clone());
        }
        let bits = queue.filled(self.len.div_ceil(32).max(1) * 4, if all_null { 0 } else { 0xff })?;
        let ty = Arc::new(ColumnType { nullable: true, ..self.ty.as_ref().clone() });
        let null_count = Some(if all_null { self.len } else { 0 });
        Ok(Self { ty, validity: Some(bits), validity_offset: 0, null_count, ..self.clone() })
    }

    /// The same column with its first value at element `offset` of the buffers.
    ///
    /// # Errors
    /// `Malformed` if the buffers are too small.
    pub fn with_offset(mut self, offset: usize) -> Result<Self> {
        self.offset = offset;
        self.check()?;
        Ok(self)
    }

    /// Type and layout, the same in every batch of a source.
    pub fn ty(&self) -> &Arc<ColumnType> {
        &self.ty
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the column has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Element of the buffers that holds the first value. Kernels add it to every row number.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Counts host memory that the device uses in place towards the limit of a pool, as long as the
    /// column lives.
    ///
    /// # Errors
    /// `OutOfMemory` at the limit of the pool.
    pub fn count_in_place(&self, pool: &device::Pool) -> Result<()> {
        for buffer in self.buffers.iter().chain(&self.validity) {
            buffer.count_in_place(pool)?;
        }
        self.values.iter().try_for_each(|values| values.count_in_place(pool))
    }

    /// Buffers in the order that [`Layout`] lists.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// The validity bitmap and the bit of the first row, for nullable columns.
    pub fn validity(&self) -> Option<(&Buffer, usize)> {
        self.validity.as_ref().map(|bits| (bits, self.validity_offset))
    }

    /// Number of NULLs, if known.
    pub fn null_count(&self) -> Option<usize> {
        self.null_count
    }

    /// The dictionary of a [`Layout::Dictionary`] column.
    pub fn dictionary(&self) -> Option<&Arc<DeviceColumn>> {
        self.values.as_ref().filter(|_| matches!(self.ty.layout, Layout::Dictionary { .. }))
    }

    /// The elements of a [`Layout::List`] column.
    pub fn elements(&self) -> Option<&Arc<DeviceColumn>> {
        self.values.as_ref().filter(|_| matches!(self.ty.layout, Layout::List(_)))
    }

    /// A zero-copy slice of `len` rows from `offset`, clamped to the column.
    #[must_use]
    pub fn slice(&self, offset: usize, len: usize) -> Self {
        let offset = offset.min(self.len);
        let len = len.min(self.len - offset);
        let null_count = match self.null_count {
            Some(0) => Some(0),
            Some(all) if all == self.len => Some(len),
            known if len == self.len => known,
            _ => None,
        };
        Self {
            len,
            offset: self.offset + offset,
            validity_offset: if self.validity.is_some() { self.validity_offset + offset } else { 0 },
            null_count,
            ..self.clone()
        }
    }

    /// The same buffers with another type.
    ///
    /// `ty` may differ in bounds, in nullability, or as a dictionary type of the same values.
    pub(crate) fn with_type(&self, ty: Arc<ColumnType>, validity: Option<Buffer>) -> Result<Self> {
        let mut column = Self { ty, ..self.clone() };
        if column.validity.is_none() {
            (column.validity, column.validity_offset) = (validity, 0);
        }
        column.check()?;
        Ok(column)
    }

    /// The same buffers as a column of another type in the same layout, where codes are plain
    /// integers without their dictionary.
    pub(crate) fn relabelled(&self, ty: Arc<ColumnType>, dictionary: Option<Arc<DeviceColumn>>) -> Result<Self> {
        let column = Self { ty, values: dictionary, ..self.clone() };
        column.check()?;
        Ok(column)
    }

    /// The same codes with a grown dictionary, which starts with the old values.
    pub(crate) fn with_dictionary(&self, dictionary: Arc<DeviceColumn>) -> Self {
        Self { values: Some(dictionary), ..self.clone() }
    }

    /// Calls `f` with every buffer: values, validity, and those of dictionary or elements.
    pub(crate) fn for_each_buffer(&self, f: &mut impl FnMut(&Buffer)) {
        self.buffers.iter().chain(&self.validity).for_each(&mut *f);
        if let Some(values) = &self.values {
            values.for_each_buffer(f);
        }
    }

    /// Device bytes of the column's rows: their share of buffers that slices share, and of heaps.
    /// Dictionaries do not count.
    pub(crate) fn row_bytes(&self) -> usize {
        let width = match &self.ty.layout {
            Layout::Null => return 0,
            Layout::Bits => return self.len.div_ceil(8) * (1 + usize::from(self.validity.is_some())),
            Layout::Fixed(carrier) | Layout::Dictionary { codes: carrier, .. } => carrier.width(),
            Layout::Bytes(width) => *width as usize,
            Layout::Offsets32 => size_of::<i32>(),
            Layout::Offsets64 => size_of::<i64>(),
            Layout::Views => 16,
            Layout::List(_) => LIST_PAIR_BYTES,
        };
        let validity = if self.validity.is_some() { self.len.div_ceil(8) } else { 0 };
        let elements = self.buffers.first().map_or(0, |first| first.len() / width.max(1)).max(1);
        let heap: usize = self.buffers.iter().skip(1).map(Buffer::len).sum();
        let nested = self.elements().map_or(0, |elements| elements.row_bytes());
        let shared = (heap + nested) as u128 * self.len.min(elements) as u128 / elements as u128;
        self.len * width + validity + shared as usize
    }

    fn check(&self) -> Result<()> {
        let fail = |what: String| Err(Error::Malformed(format!("column of {}: {what}", self.ty.data_type)));
        let expected = match &self.ty.layout {
            Layout::Null => 0,
            Layout::Bits | Layout::Fixed(_) | Layout::Bytes(_) | Layout::Dictionary { .. } | Layout::List(_) => 1,
            Layout::Offsets32 | Layout::Offsets64 => 2,
            Layout::Views => 3,
        };
        if self.buffers.len() != expected {
            return fail(format!("expected {expected} buffers, got {}", self.buffers.len()));
        }
        let end = self.offset.saturating_add(self.len);
        let least = match &self.ty.layout {
            _ if self.len == 0 => 0,
            Layout::Null => 0,
            Layout::Bits => end.div_ceil(8),
            Layout::Fixed(carrier) | Layout::Dictionary { codes: carrier, .. } => end.saturating_mul(carrier.width()),
            Layout::Bytes(width) => end.saturating_mul(*width as usize),
            Layout::Offsets32 => end.saturating_add(1).saturating_mul(4),
            Layout::Offsets64 => end.saturating_add(1).saturating_mul(8),
            Layout::Views => end.saturating_mul(16),
            Layout::List(_) => end.saturating_mul(LIST_PAIR_BYTES),
        };
        if let Some(first) = self.buffers.first()
            && first.len() < least
        {
            return fail(format!("{end} values need {least} bytes, got {}", first.len()));
        }
        let nullable = self.ty.nullable && self.ty.layout != Layout::Null;
        match &self.validity {
            None if nullable => return fail("nullable, but without validity".into()),
            Some(_) if !nullable => return fail("validity given, but not nullable".into()),
            Some(bits) if self.len > 0 && bits.len() < (self.validity_offset + self.len).div_ceil(8) => {
                return fail(format!(
                    "validity of {} rows from bit {} on needs more than {} bytes",
                    self.len,
                    self.validity_offset,
                    bits.len()
                ));
            }
            _ => {}
        }
        match (&self.ty.layout, &self.values) {
            (Layout::Dictionary { values, .. }, Some(dictionary)) if dictionary.ty.layout == **values => Ok(()),
            (Layout::Dictionary { .. }, Some(_)) => fail("dictionary in another layout than declared".into()),
            (Layout::Dictionary { .. }, None) => fail("codes without a dictionary".into()),
            (Layout::List(ty), Some(elements)) if elements.ty.as_ref() == ty.as_ref() => Ok(()),
            (Layout::List(_), Some(_)) => fail("elements of another type than declared".into()),
            (Layout::List(_), None) => fail("lists without elements".into()),
            (_, Some(_)) => fail("a dictionary, but no codes".into()),
            (_, None) => Ok(()),
        }
    }
}

impl fmt::Debug for DeviceColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceColumn")
            .field("ty", &self.ty)
            .field("len", &self.len)
            .field("offset", &self.offset)
            .field("null_count", &self.null_count)
            .finish_non_exhaustive()
    }
}

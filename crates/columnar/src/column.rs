// SPDX-License-Identifier: Apache-2.0
//! One column in device memory.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::DataType;
use device::{Buffer, Queue};

use crate::{ColumnType, Error, Layout, Result};

/// Bytes of a word of a list.
const LIST_WORD: usize = size_of::<u64>();

/// A column in device memory. Immutable; clones and slices share the buffers.
///
/// What kernels may rely on, whoever made the column:
/// - A source that is nullable has a validity bitmap in every batch, any other has none. Only
///   [`Layout::Null`] has neither: every value is NULL.
/// - Dictionary codes of NULL rows lie inside the dictionary too, a dictionary has at least one
///   value, none of its values is NULL, and no two of them have the same bytes.
/// - Words of lists that are not NULL lie among the elements.
/// - Values below NULLs are otherwise undefined.
///
/// Only the dictionaries that [`exchange::import`](crate::exchange::import()) takes over may be otherwise.
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
    /// A column of `len` values that begin at the start of `buffers` (as [`Layout`] lists them).
    /// `validity` is a bitmap, 1 where there is a value, and the bit of the first row; `values` are a dictionary's, or the elements
    /// of lists.
    ///
    /// # Errors
    /// `Malformed` where buffers are missing, superfluous or too small for `len`, and where
    /// validity or values are present against the type or missing.
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

    /// One value, all of whose bytes are zero; NULL where that is possible.
    pub(crate) fn blank(queue: &Queue, ty: &ColumnType) -> Result<Self> {
        let zeros =
            |widths: &[usize]| -> Result<Vec<Buffer>> { widths.iter().map(|width| Ok(queue.zeroed((*width).max(1))?)).collect() };
        let mut own = None;
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
                own = Some(Arc::new(Self::blank(queue, &values)?));
                zeros(&[codes.width()])?
            }
            Layout::List(elements) => {
                own = Some(Arc::new(Self::blank(queue, elements)?));
                zeros(&[LIST_WORD])?
            }
        };
        let nullable = ty.nullable && ty.layout != Layout::Null;
        let validity = if nullable { Some((queue.zeroed(4)?, 0)) } else { None };
        Self::try_new(Arc::new(ty.clone()), 1, buffers, validity, None, own)
    }

    /// The same column as one of a nullable source: with its own NULLs, or with nothing but NULLs.
    ///
    /// # Errors
    /// Those of the device.
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
    /// `Malformed` where the buffers are too small.
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

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Element of the buffers at which the first value lies; kernels add it to every row number.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The buffers that [`Layout`] lists.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// The validity bitmap and the bit of the first row, for columns of nullable sources.
    pub fn validity(&self) -> Option<(&Buffer, usize)> {
        self.validity.as_ref().map(|bits| (bits, self.validity_offset))
    }

    /// Number of NULLs, where known.
    pub fn null_count(&self) -> Option<usize> {
        self.null_count
    }

    /// The values that the codes of a [`Layout::Dictionary`] column mean.
    pub fn dictionary(&self) -> Option<&Arc<DeviceColumn>> {
        self.values.as_ref().filter(|_| matches!(self.ty.layout, Layout::Dictionary { .. }))
    }

    /// The elements that the words of a [`Layout::List`] column point at.
    pub fn elements(&self) -> Option<&Arc<DeviceColumn>> {
        self.values.as_ref().filter(|_| matches!(self.ty.layout, Layout::List(_)))
    }

    /// The rows from `offset` on, `len` of them, without a copy. What lies past the end is left out.
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

    /// The same values described by `ty`, which differs in bounds, nullability or in being a dictionary's type alone.
    pub(crate) fn with_type(&self, ty: Arc<ColumnType>, validity: Option<Buffer>) -> Result<Self> {
        let mut column = Self { ty, ..self.clone() };
        if column.validity.is_none() {
            (column.validity, column.validity_offset) = (validity, 0);
        }
        column.check()?;
        Ok(column)
    }

    /// The same codes with a dictionary that has the old values first.
    pub(crate) fn with_dictionary(&self, dictionary: Arc<DeviceColumn>) -> Self {
        Self { values: Some(dictionary), ..self.clone() }
    }

    /// Calls `f` with every buffer: values, validity, those of dictionary or elements.
    pub(crate) fn for_each_buffer(&self, f: &mut impl FnMut(&Buffer)) {
        self.buffers.iter().chain(&self.validity).for_each(&mut *f);
        if let Some(values) = &self.values {
            values.for_each_buffer(f);
        }
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
            Layout::List(_) => end.saturating_mul(LIST_WORD),
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

// SPDX-License-Identifier: Apache-2.0
//! Loads of columns in every layout.

use arrow::datatypes::DataType;
use columnar::{Carrier, Layout};

use super::params::Param;
use super::row::{RowRef, RowWriter, unsupported};
use super::value::{CType, Value};
use crate::expr::value_type;
use crate::prelude::Section;
use crate::{Error, Result};

impl RowWriter<'_> {
    /// Loads the current row of a column.
    pub(super) fn column(&mut self, column: usize) -> Result<Value> {
        let types = self.types;
        let ty = types.get(column).ok_or_else(|| Error::Internal(format!("column {column} of {} columns", types.len())))?;
        let data_type = value_type(&ty.data_type).clone();
        let Some(native) = CType::native(&data_type) else {
            return unsupported(format!("type {data_type} is not supported on the device"));
        };
        if let Some(found) = self.mark(column) {
            return Ok(Value { data_type, ctype: native, code: found, valid: None, bounds: None });
        }
        if ty.layout == Layout::Null || data_type == DataType::Null {
            return Ok(Value::null(data_type, native));
        }
        let row = self.row_of(column);
        let offset = self.params.add(Param::Offset { column }, "u64");
        let index = format!("{row} + {offset}");
        let valid = self.validity(column, ty.nullable);
        let mut value = match &ty.layout {
            Layout::Dictionary { codes, values } => self.dictionary(column, &index, valid, *codes, values, &data_type)?,
            layout => {
                let ctype = self.stored_type(layout);
                let load = self.load(layout, |buffer| Param::Data { column, buffer }, &index)?;
                let code = self.loaded(layout, ctype, &load, valid.as_deref());
                let bounds = ty.bounds.or(if narrow(ctype, native) { ctype.range() } else { None });
                Value { data_type, ctype, code, valid, bounds }
            }
        };
        let computed = match (&value.data_type, &ty.layout) {
            // Only decimals compute in a narrow carrier, of 32 bits or more.
            (DataType::Decimal128(_, _) | DataType::Decimal256(_, _), Layout::Fixed(carrier)) => match carrier.width() {
                ..4 => CType::I32,
                _ => value.ctype,
            },
            (DataType::Decimal128(_, _) | DataType::Decimal256(_, _), _) => value.ctype,
            _ => native,
        };
        if value.ctype != computed {
            value.code = value.to_ctype(computed);
            value.ctype = computed;
            let bounds = value.bounds;
            value = self.store(value);
            value.bounds = bounds;
        }
        Ok(value)
    }

    /// Loads the current row's dictionary code. The column's bounds are those of the code;
    /// different codes have different values.
    pub fn code(&mut self, column: usize) -> Result<Value> {
        let types = self.types;
        let Some(ty) = types.get(column) else {
            return Err(Error::Internal(format!("column {column} of {} columns", types.len())));
        };
        let Layout::Dictionary { codes, .. } = &ty.layout else {
            return Err(Error::Internal(format!("column {column} has no dictionary")));
        };
        let row = self.row_of(column);
        let offset = self.params.add(Param::Offset { column }, "u64");
        let load = self.load(&Layout::Fixed(*codes), |buffer| Param::Data { column, buffer }, &format!("{row} + {offset}"))?;
        let ctype = CType::of_carrier(*codes);
        let code = self.local(ctype, &load);
        let valid = self.validity(column, ty.nullable);
        let key = match &ty.data_type {
            DataType::Dictionary(key, _) => (**key).clone(),
            _ => DataType::UInt16,
        };
        Ok(Value { data_type: key, ctype, code, valid, bounds: ty.bounds.or(ctype.range()) })
    }

    /// An Arrow view of a column's string, as 128 bits; zeros for NULL. The string lies in the heap
    /// of the column or of its dictionary.
    pub fn view(&mut self, column: usize) -> Result<Value> {
        let types = self.types;
        let param = match types.get(column).map(|ty| &ty.layout) {
            Some(Layout::Offsets32 | Layout::Offsets64 | Layout::Views) => Param::Data { column, buffer: 1 },
            Some(Layout::Dictionary { values, .. }) if **values != Layout::Null => Param::DictData { column, buffer: 1 },
            _ => return Err(Error::Internal(format!("column {column} has no heap"))),
        };
        let string = self.column(column)?;
        self.params.need(Section::ViewOf);
        let heap = self.params.add(param, "const G u8 *RESTRICT");
        let code = self.local(CType::I128, CType::I128.zero());
        self.push(&format!("if ({0}) {code} = view_of({1}.p, {1}.len, {heap});", string.valid_code(), string.code));
        self.costly();
        Ok(Value { ctype: CType::I128, code, bounds: None, ..string })
    }

    /// A flag and its validity: whether a column's view has these bytes. `None` for columns without
    /// views.
    pub(super) fn equals_view(&mut self, column: usize, bytes: &[u8]) -> Result<Option<(String, Option<String>)>> {
        let Some(ty) = self.types.get(column).filter(|ty| ty.layout == Layout::Views) else { return Ok(None) };
        let valid = self.validity(column, ty.nullable);
        let index = format!("{} + {}", self.row_of(column), self.params.add(Param::Offset { column }, "u64"));
        let mut pointer = |buffer, c_type: &str| self.params.add(Param::Data { column, buffer }, c_type);
        let views = pointer(0, "const G u32 *RESTRICT");
        let (heap, bases) = (pointer(1, "const G u8 *RESTRICT"), pointer(2, "const G u64 *RESTRICT"));
        self.params.need(Section::View);
        let literal = self.params.view_of(bytes)?;
        let same = format!("view_is({views}, {heap}, {bases}, {index}, {literal})");
        // The view of a NULL may point anywhere.
        let code = self.flag(&valid.as_ref().map_or(same.clone(), |valid| format!("{valid} && {same}")));
        self.costly();
        Ok(Some((code, valid)))
    }

    /// The adjacent strings of `rows` rows of a column, from the current row on, as one string.
    pub(crate) fn string_of_rows(&mut self, column: usize, rows: &Value) -> Result<Value> {
        let plain = self.types.get(column).filter(|ty| ty.layout == Layout::Offsets64 && self.reference(column).is_none());
        let Some(data_type) = plain.map(|ty| ty.data_type.clone()).filter(|_| rows.ctype.is_integer()) else {
            return unsupported("a string of several rows of such a column is not supported on the device".to_string());
        };
        self.params.need_type(CType::Str);
        let first = self.params.add(Param::Offset { column }, "u64");
        let offsets = self.params.add(Param::Data { column, buffer: 0 }, "const G i64 *RESTRICT");
        let heap = self.params.add(Param::Data { column, buffer: 1 }, "const G u8 *RESTRICT");
        let index = self.local(CType::U64, &format!("{} + {first}", self.row_of(column)));
        let bytes = self.local(CType::I64, &format!("{offsets}[{index} + (u64){}] - {offsets}[{index}]", rows.code));
        self.fail_where(&[&format!("({bytes} >> 32)")], &None);
        let code = self.local(CType::Str, &format!("str_make({heap} + {offsets}[{index}], (u32){bytes})"));
        Ok(Value { data_type, ctype: CType::Str, code, valid: None, bounds: None })
    }

    /// Whether a column is a list.
    pub(super) fn is_list(&self, column: usize) -> bool {
        self.types.get(column).is_some_and(|ty| matches!(ty.layout, Layout::List(_)))
    }

    /// The values of `rows` rows of a column, from the current row on, as a list.
    pub(super) fn list_of_rows(&mut self, column: usize, rows: &Value, data_type: &DataType) -> Result<Value> {
        if column >= self.types.len() || !self.is_at_its_row(column) || !rows.ctype.is_integer() {
            return unsupported("a list of several rows of such a column is not supported on the device".to_string());
        }
        let view = format!("(u64)({}) | (u64){} << 32", self.row_of(column), rows.code);
        let code = self.local(CType::List, &view);
        Ok(Value { data_type: data_type.clone(), ctype: CType::List, code, valid: None, bounds: None })
    }

    /// Whether a column is read at the current row.
    pub(super) fn is_at_its_row(&self, column: usize) -> bool {
        self.reference(column).is_none()
    }

    /// A list's packed offset and length, as a number.
    pub(super) fn list_view(&mut self, column: usize) -> Result<Value> {
        if !self.is_list(column) {
            return Err(Error::Internal(format!("column {column} has no lists")));
        }
        Ok(Value { data_type: DataType::UInt64, ctype: CType::U64, bounds: None, ..self.column(column)? })
    }

    fn dictionary(
        &mut self,
        column: usize,
        index: &str,
        valid: Option<String>,
        codes: Carrier,
        values: &Layout,
        data_type: &DataType,
    ) -> Result<Value> {
        let ctype = self.stored_type(values);
        if *values == Layout::Null {
            return Ok(Value::null(data_type.clone(), ctype));
        }
        let codes = self.load(&Layout::Fixed(codes), |buffer| Param::Data { column, buffer }, index)?;
        let first = self.params.add(Param::DictOffset { column }, "u64");
        let index = self.fresh();
        let load = self.load(values, |buffer| Param::DictData { column, buffer }, &index)?;
        // The codes of NULL rows are valid as well, and no value of the dictionary is NULL.
        self.push(&format!("u64 {index} = (u64){codes} + {first};"));
        let code = self.loaded(values, ctype, &load, valid.as_deref());
        Ok(Value { data_type: data_type.clone(), ctype, code, valid, bounds: None })
    }

    /// A local for a loaded value. The view of a NULL may point anywhere.
    fn loaded(&mut self, layout: &Layout, ctype: CType, load: &str, valid: Option<&str>) -> String {
        let (Layout::Views, Some(valid)) = (layout, valid) else { return self.local(ctype, load) };
        let name = self.local(CType::Str, CType::Str.zero());
        self.push(&format!("if ({valid}) {name} = {load};"));
        self.costly();
        name
    }

    fn validity(&mut self, column: usize, nullable: bool) -> Option<String> {
        let found = self.reference(column).and_then(|reference| reference.found.clone());
        if !nullable {
            return found;
        }
        let bits = self.params.add(Param::Validity { column }, "const G u8 *RESTRICT");
        let first = self.params.add(Param::ValidityOffset { column }, "u64");
        let row = self.row_of(column);
        let bit = format!("BIT({bits}, {row} + {first})");
        Some(self.flag(&found.map_or(bit.clone(), |found| format!("{found} & {bit}"))))
    }

    fn reference(&self, column: usize) -> Option<&RowRef> {
        self.references.get(column).and_then(Option::as_ref)
    }

    /// C: the row at which a column is read.
    fn row_of(&self, column: usize) -> String {
        self.reference(column).map_or_else(|| self.row.clone(), |reference| reference.row.clone())
    }

    /// C of the mark column of a join: whether the other side has a row.
    fn mark(&self, column: usize) -> Option<String> {
        let reference = self.reference(column).filter(|reference| reference.is_mark)?;
        Some(reference.found.clone().unwrap_or_else(|| "1".into()))
    }

    /// C that loads an element of a layout other than a dictionary.
    fn load(&mut self, layout: &Layout, param: impl Fn(usize) -> Param, index: &str) -> Result<String> {
        let mut pointer = |buffer: usize, element: &str| self.params.add(param(buffer), &format!("const G {element} *RESTRICT"));
        Ok(match layout {
            Layout::Bits => format!("BIT({}, {index})", pointer(0, "u8")),
            Layout::Fixed(carrier) => format!("{}[{index}]", pointer(0, CType::of_carrier(*carrier).name())),
            Layout::Bytes(width) => format!("str_make({} + ({index}) * {width}u, {width}u)", pointer(0, "u8")),
            Layout::Offsets32 | Layout::Offsets64 => {
                let element = if *layout == Layout::Offsets32 { "i32" } else { "i64" };
                let (offsets, heap) = (pointer(0, element), pointer(1, "u8"));
                format!("str_make({heap} + {offsets}[{index}], (u32)({offsets}[{index} + 1] - {offsets}[{index}]))")
            }
            Layout::Views => {
                let (views, heap, bases) = (pointer(0, "u32"), pointer(1, "u8"), pointer(2, "u64"));
                self.params.need(Section::View);
                format!("view_str({views}, {heap}, {bases}, {index})")
            }
            Layout::List(_) => format!("{}[{index}]", pointer(0, "u64")),
            Layout::Null | Layout::Dictionary { .. } => {
                return Err(Error::Internal("a load of a layout without values".into()));
            }
        })
    }

    fn stored_type(&mut self, layout: &Layout) -> CType {
        let ctype = match layout {
            Layout::Null | Layout::Bits => CType::Bool,
            Layout::Fixed(carrier) => CType::of_carrier(*carrier),
            Layout::Bytes(_) | Layout::Offsets32 | Layout::Offsets64 | Layout::Views => CType::Str,
            Layout::List(_) => CType::List,
            Layout::Dictionary { values, .. } => return self.stored_type(values),
        };
        self.params.need_type(ctype);
        ctype
    }
}

fn narrow(ctype: CType, native: CType) -> bool {
    ctype.width() < native.width()
}

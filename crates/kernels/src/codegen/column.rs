// SPDX-License-Identifier: Apache-2.0
//! Loads: values of columns in every layout.

use arrow::datatypes::DataType;
use columnar::{Carrier, Layout};

use super::params::Param;
use super::row::{Place, RowWriter, unsupported};
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
        let place = format!("{row} + {offset}");
        let valid = self.validity(column, ty.nullable);
        let mut value = match &ty.layout {
            Layout::Dictionary { codes, values } => self.dictionary(column, &place, valid, *codes, values, &data_type)?,
            layout => {
                let ctype = self.stored_type(layout);
                let load = self.load(layout, |buffer| Param::Data { column, buffer }, &place)?;
                let code = self.loaded(layout, ctype, &load, valid.as_deref());
                let bounds = ty.bounds.or(if narrow(ctype, native) { ctype.range() } else { None });
                Value { data_type, ctype, code, valid, bounds }
            }
        };
        // Only decimals stay narrow: everything else computes in its own type.
        if value.ctype != native && !matches!(value.data_type, DataType::Decimal128(_, _) | DataType::Decimal256(_, _)) {
            value.code = value.to_ctype(native);
            value.ctype = native;
            let bounds = value.bounds;
            value = self.store(value);
            value.bounds = bounds;
        }
        Ok(value)
    }

    /// Loads the current row's code into the dictionary of a column with that layout; the column's
    /// bounds are the code's. Different codes mean different values.
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

    /// The view of a string of a column, which is NULL or lies in the heap of the column or of its dictionary: a value of
    /// 128 bits, zeros where the string is NULL.
    pub fn view(&mut self, column: usize) -> Result<Value> {
        let types = self.types;
        let param = match types.get(column).map(|ty| &ty.layout) {
            Some(Layout::Offsets32 | Layout::Offsets64 | Layout::Views) => Param::Data { column, buffer: 1 },
            Some(Layout::Dictionary { values, .. }) if **values != Layout::Null => Param::DictData { column, buffer: 1 },
            _ => return Err(Error::Internal(format!("column {column} has no heap"))),
        };
        let text = self.column(column)?;
        self.params.need(Section::ViewOf);
        let heap = self.params.add(param, "const G u8 *RESTRICT");
        let code = self.local(CType::I128, CType::I128.zero());
        self.push(&format!("if ({0}) {code} = view_of({1}.p, {1}.len, {heap});", text.valid_code(), text.code));
        self.costly();
        Ok(Value { ctype: CType::I128, code, bounds: None, ..text })
    }

    /// A flag: whether a column's view, if there is one, is of these bytes; its validity. `None` where the column has no views.
    pub(super) fn is_text(&mut self, column: usize, bytes: &[u8]) -> Result<Option<(String, Option<String>)>> {
        let Some(ty) = self.types.get(column).filter(|ty| ty.layout == Layout::Views) else { return Ok(None) };
        let valid = self.validity(column, ty.nullable);
        let place = format!("{} + {}", self.row_of(column), self.params.add(Param::Offset { column }, "u64"));
        let mut pointer = |buffer, c_type: &str| self.params.add(Param::Data { column, buffer }, c_type);
        let views = pointer(0, "const G u32 *RESTRICT");
        let (heap, bases) = (pointer(1, "const G u8 *RESTRICT"), pointer(2, "const G u64 *RESTRICT"));
        self.params.need(Section::View);
        let literal = self.params.view_text(bytes)?;
        let same = format!("view_is({views}, {heap}, {bases}, {place}, {literal})");
        // Under a NULL a view may point anywhere.
        let code = self.flag(&valid.as_ref().map_or(same.clone(), |valid| format!("{valid} && {same}")));
        self.costly();
        Ok(Some((code, valid)))
    }

    /// The texts of so many rows of a column from the current one on, which lie one after another.
    pub(crate) fn text_of_rows(&mut self, column: usize, rows: &Value) -> Result<Value> {
        let plain = self.types.get(column).filter(|ty| ty.layout == Layout::Offsets64 && self.place(column).is_none());
        let Some(data_type) = plain.map(|ty| ty.data_type.clone()).filter(|_| rows.ctype.is_integer()) else {
            return unsupported("text of several rows of such a column is not supported on the device".to_string());
        };
        self.params.need_type(CType::Str);
        let first = self.params.add(Param::Offset { column }, "u64");
        let offsets = self.params.add(Param::Data { column, buffer: 0 }, "const G i64 *RESTRICT");
        let heap = self.params.add(Param::Data { column, buffer: 1 }, "const G u8 *RESTRICT");
        let place = self.local(CType::U64, &format!("{} + {first}", self.row_of(column)));
        let bytes = self.local(CType::I64, &format!("{offsets}[{place} + (u64){}] - {offsets}[{place}]", rows.code));
        self.fail_where(&[&format!("({bytes} >> 32)")], &None);
        let code = self.local(CType::Str, &format!("str_make({heap} + {offsets}[{place}], (u32){bytes})"));
        Ok(Value { data_type, ctype: CType::Str, code, valid: None, bounds: None })
    }

    /// Whether a column has lists.
    pub(super) fn is_list(&self, column: usize) -> bool {
        self.types.get(column).is_some_and(|ty| matches!(ty.layout, Layout::List(_)))
    }

    /// The list of so many rows of a column, from the current one on.
    pub(super) fn list_of_rows(&mut self, column: usize, rows: &Value, data_type: &DataType) -> Result<Value> {
        if column >= self.types.len() || !self.is_at_its_row(column) || !rows.ctype.is_integer() {
            return unsupported("a list of several rows of such a column is not supported on the device".to_string());
        }
        let word = format!("(u64)({}) | (u64){} << 32", self.row_of(column), rows.code);
        let code = self.local(CType::List, &word);
        Ok(Value { data_type: data_type.clone(), ctype: CType::List, code, valid: None, bounds: None })
    }

    /// Whether a column is read at the row at hand.
    pub(super) fn is_at_its_row(&self, column: usize) -> bool {
        self.place(column).is_none()
    }

    /// The word of a list as a number.
    pub(super) fn list_word(&mut self, column: usize) -> Result<Value> {
        if !self.is_list(column) {
            return Err(Error::Internal(format!("column {column} has no lists")));
        }
        Ok(Value { data_type: DataType::UInt64, ctype: CType::U64, bounds: None, ..self.column(column)? })
    }

    fn dictionary(
        &mut self,
        column: usize,
        place: &str,
        valid: Option<String>,
        codes: Carrier,
        values: &Layout,
        data_type: &DataType,
    ) -> Result<Value> {
        let ctype = self.stored_type(values);
        if *values == Layout::Null {
            return Ok(Value::null(data_type.clone(), ctype));
        }
        let codes = self.load(&Layout::Fixed(codes), |buffer| Param::Data { column, buffer }, place)?;
        let first = self.params.add(Param::DictOffset { column }, "u64");
        let place = self.fresh();
        let load = self.load(values, |buffer| Param::DictData { column, buffer }, &place)?;
        // Codes below NULLs lie in the dictionary too, and no value in it is NULL.
        self.push(&format!("u64 {place} = (u64){codes} + {first};"));
        let code = self.loaded(values, ctype, &load, valid.as_deref());
        Ok(Value { data_type: data_type.clone(), ctype, code, valid, bounds: None })
    }

    /// A local for what was loaded. Under a NULL a view may point anywhere.
    fn loaded(&mut self, layout: &Layout, ctype: CType, load: &str, valid: Option<&str>) -> String {
        let (Layout::Views, Some(valid)) = (layout, valid) else { return self.local(ctype, load) };
        let name = self.local(CType::Str, CType::Str.zero());
        self.push(&format!("if ({valid}) {name} = {load};"));
        self.costly();
        name
    }

    fn validity(&mut self, column: usize, nullable: bool) -> Option<String> {
        let found = self.place(column).and_then(|place| place.found.clone());
        if !nullable {
            return found;
        }
        let bits = self.params.add(Param::Validity { column }, "const G u8 *RESTRICT");
        let first = self.params.add(Param::ValidityOffset { column }, "u64");
        let row = self.row_of(column);
        let bit = format!("BIT({bits}, {row} + {first})");
        Some(self.flag(&found.map_or(bit.clone(), |found| format!("{found} & {bit}"))))
    }

    fn place(&self, column: usize) -> Option<&Place> {
        self.places.get(column).and_then(Option::as_ref)
    }

    /// C: the row at which a column is read.
    fn row_of(&self, column: usize) -> String {
        self.place(column).map_or_else(|| self.row.clone(), |place| place.row.clone())
    }

    /// Of a column that tells whether another side has a row: that answer.
    fn mark(&self, column: usize) -> Option<String> {
        let place = self.place(column).filter(|place| place.is_mark)?;
        Some(place.found.clone().unwrap_or_else(|| "1".into()))
    }

    /// C that loads an element of a layout other than a dictionary.
    fn load(&mut self, layout: &Layout, param: impl Fn(usize) -> Param, place: &str) -> Result<String> {
        let mut pointer = |buffer: usize, element: &str| self.params.add(param(buffer), &format!("const G {element} *RESTRICT"));
        Ok(match layout {
            Layout::Bits => format!("BIT({}, {place})", pointer(0, "u8")),
            Layout::Fixed(carrier) => format!("{}[{place}]", pointer(0, CType::of_carrier(*carrier).name())),
            Layout::Bytes(width) => format!("str_make({} + ({place}) * {width}u, {width}u)", pointer(0, "u8")),
            Layout::Offsets32 | Layout::Offsets64 => {
                let element = if *layout == Layout::Offsets32 { "i32" } else { "i64" };
                let (offsets, heap) = (pointer(0, element), pointer(1, "u8"));
                format!("str_make({heap} + {offsets}[{place}], (u32)({offsets}[{place} + 1] - {offsets}[{place}]))")
            }
            Layout::Views => {
                let (views, heap, bases) = (pointer(0, "u32"), pointer(1, "u8"), pointer(2, "u64"));
                self.params.need(Section::View);
                format!("view_str({views}, {heap}, {bases}, {place})")
            }
            Layout::List(_) => format!("{}[{place}]", pointer(0, "u64")),
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

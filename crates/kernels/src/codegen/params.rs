// SPDX-License-Identifier: Apache-2.0
//! What a kernel takes from outside: columns, literals, the error word and what its sink names.

use std::sync::Arc;

use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::{DataType, i256};

use device::Arg;

use super::value::{CType, Value};
use super::verdict::Verdict;
use crate::expr::{Literal, LiteralValue};
use crate::prelude::{Section, Sections};
use crate::{Error, Result};

/// One parameter of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Param {
    /// A buffer of a column.
    Data {
        /// Position of the column in the batch.
        column: usize,
        /// Position of the buffer in the column's layout.
        buffer: usize,
    },
    /// First element of a column in its buffers.
    Offset {
        /// Position of the column in the batch.
        column: usize,
    },
    /// Validity bits of a column.
    Validity {
        /// Position of the column in the batch.
        column: usize,
    },
    /// First bit of a column in its validity bits.
    ValidityOffset {
        /// Position of the column in the batch.
        column: usize,
    },
    /// A buffer of the dictionary of a column.
    DictData {
        /// Position of the column in the batch.
        column: usize,
        /// Position of the buffer in the layout of the dictionary's values.
        buffer: usize,
    },
    /// First element of a column's dictionary in its buffers.
    DictOffset {
        /// Position of the column in the batch.
        column: usize,
    },
    /// A parameter of the column that has the elements of a column of lists.
    OfElements {
        /// Position of the column of lists in the batch.
        column: usize,
        /// The parameter, as if there were no other column.
        param: Box<Param>,
    },
    /// A word of a literal.
    Literal {
        /// Position among the kernel's literals.
        index: usize,
        /// Which word.
        part: LiteralPart,
    },
    /// Bytes of string literals and of long lists.
    LiteralHeap,
    /// What a predicate says of each value of a dictionary: of the kernel's [verdicts](Params::verdicts) that one.
    Verdicts {
        /// Position among the kernel's verdicts.
        index: usize,
    },
    /// The rules of all time zones, for text that may name any.
    Zones,
    /// Upper and lower case of all characters.
    Cases,
    /// Room for texts that a row computes: [`Params::scratch_bytes`].
    Scratch,
    /// The error word: the lowest failing row, all ones where none failed.
    Error,
    /// Whatever the sink calls so.
    Named(String),
}

impl Param {
    /// How early the argument moves to the argument table.
    fn table_rank(&self) -> u8 {
        match self {
            Param::Literal { .. } => 0,
            Param::Offset { .. } | Param::ValidityOffset { .. } | Param::DictOffset { .. } => 1,
            Param::OfElements { param, .. } => param.table_rank(),
            Param::Data { .. } | Param::Validity { .. } | Param::DictData { .. } | Param::Verdicts { .. } => 2,
            Param::LiteralHeap | Param::Zones | Param::Cases | Param::Scratch | Param::Error | Param::Named(_) => 3,
        }
    }
}

/// The words that make up a literal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LiteralPart {
    /// The value; of integers of several words the lowest.
    Value,
    /// Another word of an integer, 1 above the lowest.
    Word(usize),
    /// First byte in the heap.
    At,
    /// Length of a string, number of values of a list.
    Len,
}

/// A literal as it is passed.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Constant {
    Int(CType, i128),
    Wide(i256),
    F32(f32),
    F64(f64),
    Heap { at: u32, len: u32 },
}

/// The parameters of one kernel, in order, each once; with the sections of the prelude that its text
/// needs.
#[derive(Debug, Clone, Default)]
pub struct Params {
    params: Vec<(Param, String)>,
    /// Indices of the parameters whose arguments the kernel reads from the argument table, in the table's order.
    table: Vec<usize>,
    pub(super) constants: Vec<Constant>,
    heap: Vec<u8>,
    tables: Vec<(Arc<[i64]>, InHeap)>,
    verdicts: Vec<Verdict>,
    functions: Vec<String>,
    /// Of one item.
    scratch_bytes: usize,
    sections: Sections,
}

/// The name of the argument table, a kernel's first parameter where it has one.
const TABLE: &str = "args";

/// Bytes that an argument counts for, whatever its type.
const ARG_BYTES: usize = 8;

/// C of what lies in the heap: the address of its first element, typed, and their number.
type InHeap = (String, String);

/// The name of scratch memory among the sink's own parameters.
pub const SCRATCH: &str = "scratch";

/// Bytes that lie within a view.
const VIEW_BYTES: usize = 12;

/// Bytes that hold a text that a row computes, but for those of decimals.
pub(super) const SCRATCH_SLOT: usize = 64;

impl Params {
    /// None yet.
    pub fn new() -> Params {
        Params::default()
    }

    /// Adds a parameter of the sink's own, such as `("n", "u64")` or `("out", "G i64 *RESTRICT")`. Once
    /// for each name; gives the name back.
    pub fn named(&mut self, name: &str, c_type: &str) -> String {
        self.add(Param::Named(name.into()), c_type)
    }

    /// The error word's name. A kernel that calls this can fail.
    pub fn error(&mut self) -> String {
        self.add(Param::Error, "volatile G u64 *")
    }

    /// Whether the kernel has an error word.
    pub fn can_fail(&self) -> bool {
        self.params.iter().any(|(param, _)| *param == Param::Error)
    }

    /// Marks a section of the prelude as needed.
    pub fn need(&mut self, section: Section) {
        self.sections.need(section);
    }

    /// Marks what values of a C type need.
    pub fn need_type(&mut self, ctype: CType) {
        match ctype {
            CType::I128 => self.need(Section::I128),
            CType::I256 => self.need(Section::I256),
            CType::F32 | CType::F64 => self.need(Section::Float),
            CType::Str | CType::Text => self.need(Section::Str),
            _ => self.need(Section::Base),
        }
    }

    /// The sections needed so far.
    pub fn sections(&self) -> &Sections {
        &self.sections
    }

    /// The parameters in order.
    pub fn iter(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().map(|(param, _)| param)
    }

    /// The predicates that another kernel computes of dictionaries before this one runs.
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }

    /// Adds a verdict; its position among the kernel's own.
    pub(super) fn verdict(&mut self, verdict: Verdict) -> usize {
        self.verdicts.push(verdict);
        self.verdicts.len() - 1
    }

    /// Texts of functions that the kernel calls.
    pub fn functions(&self) -> &[String] {
        &self.functions
    }

    /// Adds a function, unless it is there.
    pub(crate) fn function(&mut self, text: String) {
        if !self.functions.contains(&text) {
            self.functions.push(text);
        }
    }

    /// Adds the parameters of a function over the elements of a column's lists, and what its text needs; their names.
    pub(super) fn of_elements(&mut self, column: usize, function: &Params) -> Vec<String> {
        self.sections.extend(&function.sections);
        function.functions.iter().for_each(|text| self.function(text.clone()));
        let params = function.params.iter();
        let add = |(param, c_type): &(Param, String)| {
            let param = Box::new(param.clone());
            self.add(Param::OfElements { column, param }, c_type)
        };
        params.map(add).collect()
    }

    /// The list between a kernel's parentheses.
    pub fn declaration(&self) -> String {
        let table = (!self.table.is_empty()).then(|| format!("const G u64 *RESTRICT {TABLE}"));
        let passed = self.params.iter().enumerate().filter(|(index, _)| !self.table.contains(index));
        let passed = passed.map(|(_, (param, c_type))| declared(c_type, &name(param)));
        table.into_iter().chain(passed).collect::<Vec<_>>().join(", ")
    }

    /// Statements that read the arguments of the table, for the beginning of the kernel's body.
    pub(crate) fn table_reads(&self) -> String {
        let read = |(slot, index): (usize, &usize)| {
            let (param, c_type) = &self.params[*index];
            let value = match c_type.as_str() {
                "f32" => format!("BITS_F32({TABLE}[{slot}])"),
                "f64" => format!("BITS_F64({TABLE}[{slot}])"),
                _ => format!("({}){TABLE}[{slot}]", c_type.trim_end_matches("RESTRICT")),
            };
            format!("  {} = {value};\n", declared(c_type, &name(param)))
        };
        self.table.iter().enumerate().map(read).collect()
    }

    /// Bytes of the arguments, each rounded up to 8: what a device's limit is compared with.
    pub fn bytes(&self) -> usize {
        let passed = self.params.len() - self.table.len() + usize::from(!self.table.is_empty());
        passed * ARG_BYTES
    }

    /// Moves arguments to the argument table until the others have at most `limit` bytes: first constants, then
    /// where columns begin, then buffers, which compilers know less of when they come from memory.
    pub(crate) fn limit_bytes(&mut self, limit: usize) {
        if self.bytes() <= limit {
            return;
        }
        let excess = self.params.len() + 1 - limit / ARG_BYTES;
        let mut order: Vec<usize> = (0..self.params.len()).collect();
        order.sort_by_key(|index| self.params[*index].0.table_rank());
        self.table = order.into_iter().take(excess).collect();
    }

    /// Takes the arguments of the table out of those of all parameters, which are in their order.
    pub(crate) fn split_table<'a>(&self, args: Vec<Arg<'a>>) -> (Vec<Arg<'a>>, Vec<Arg<'a>>) {
        let table = self.table.iter().map(|index| args[*index]).collect();
        let passed = args.into_iter().enumerate().filter(|(index, _)| !self.table.contains(index));
        (table, passed.map(|(_, arg)| arg).collect())
    }

    /// Bytes of string literals and lists, aligned; `None` where no parameter takes them.
    pub fn literal_heap(&self) -> Option<Buffer> {
        self.iter().any(|param| *param == Param::LiteralHeap).then(|| {
            let mut bytes = MutableBuffer::with_capacity(self.heap.len().max(16));
            bytes.extend_from_slice(&self.heap);
            bytes.resize(self.heap.len().max(16), 0);
            bytes.into()
        })
    }

    /// Bytes of scratch memory that a launch of so many items needs, 0 where the kernel takes none.
    ///
    /// Texts that a row computes lie there until the item's next row: a sink copies their bytes in
    /// the same row, and keeps no pointer.
    pub fn scratch_bytes(&self, items: usize) -> usize {
        self.scratch_bytes * items
    }

    /// C for a pointer to a new place of so many bytes in scratch memory, the item's own.
    pub(super) fn scratch(&mut self, bytes: usize) -> String {
        let scratch = self.add(Param::Scratch, "G u8 *");
        let before = self.scratch_bytes;
        self.scratch_bytes += bytes;
        format!("{scratch} + (u64){before} * GSZ() + GID() * {bytes}")
    }

    /// The name of the rules of all time zones.
    pub(super) fn zones(&mut self) -> String {
        self.add(Param::Zones, "const G u32 *RESTRICT")
    }

    /// The name of the cases of all characters.
    pub(super) fn cases(&mut self) -> String {
        self.add(Param::Cases, "const G u32 *RESTRICT")
    }

    /// Adds a parameter if it is new; its name.
    pub(super) fn add(&mut self, param: Param, c_type: &str) -> String {
        let name = name(&param);
        if !self.params.iter().any(|(known, _)| *known == param) {
            self.params.push((param, c_type.into()));
        }
        name
    }

    fn constant(&mut self, constant: Constant) -> usize {
        self.constants.push(constant);
        self.constants.len() - 1
    }

    /// A literal as a value. Never shared between two literals: equal ones of one query may differ in
    /// the next, and its text must not.
    pub(super) fn literal(&mut self, literal: &Literal) -> Result<Value> {
        let data_type = literal.data_type.clone();
        let ctype = CType::native(&data_type)
            .ok_or_else(|| Error::Unsupported(format!("type {data_type} is not supported on the device")))?;
        let mut ctype = ctype;
        self.need_type(ctype);
        let mut bounds = None;
        let code = match &literal.value {
            LiteralValue::Null => return Ok(Value::null(data_type, ctype)),
            LiteralValue::Bool(value) => self.word(Constant::Int(CType::Bool, *value as i128), "i32"),
            LiteralValue::Int(value) if matches!(data_type, DataType::Interval(_)) => {
                let [low, high] = self.words(Constant::Int(ctype, *value));
                format!("i128_make({low}, {high})")
            }
            LiteralValue::Int(value) => {
                bounds = Some(class(*value));
                // A decimal that fits goes in 64 bits; which ones do is part of the bounds' class.
                ctype = match ctype {
                    CType::I128 | CType::I256 if value.unsigned_abs() < 1 << 63 => CType::I64,
                    CType::I256 => CType::I128,
                    other => other,
                };
                match ctype {
                    CType::I128 => {
                        let [low, high] = self.words(Constant::Int(ctype, *value));
                        format!("i128_make({low}, {high})")
                    }
                    CType::I64 => self.word(Constant::Int(ctype, *value), "i64"),
                    CType::U64 => self.word(Constant::Int(ctype, *value), "u64"),
                    CType::U8 | CType::U16 | CType::U32 => self.word(Constant::Int(CType::U32, *value), "u32"),
                    CType::I8 | CType::I16 | CType::I32 => self.word(Constant::Int(CType::I32, *value), "i32"),
                    _ => return Err(mismatch(literal)),
                }
            }
            LiteralValue::Wide(value) if ctype == CType::I256 => {
                let words: [String; 4] = self.words(Constant::Wide(**value));
                format!("i256_make({})", words.join(", "))
            }
            LiteralValue::Wide(_) => return Err(mismatch(literal)),
            LiteralValue::Float(value) => match ctype {
                CType::F32 => self.word(Constant::F32(*value as f32), "f32"),
                CType::F64 => self.word(Constant::F64(*value), "f64"),
                _ => return Err(mismatch(literal)),
            },
            LiteralValue::Bytes(bytes) if ctype == CType::Str => self.text(bytes)?,
            // Its elements are a column of their own, which has no others.
            LiteralValue::List(elements) if ctype == CType::List => {
                self.word(Constant::Int(CType::U64, (elements.len() as i128) << 32), "u64")
            }
            LiteralValue::Bytes(_) | LiteralValue::List(_) => return Err(mismatch(literal)),
        };
        // A class may reach beyond the type.
        let bounds = bounds.zip(ctype.range()).map(|((low, high), (least, most))| (low.max(least), high.min(most)));
        Ok(Value { data_type, ctype, code, valid: None, bounds })
    }

    /// C for a string whose bytes go to the heap.
    pub(super) fn text(&mut self, bytes: &[u8]) -> Result<String> {
        let at = self.heap_place(1)?;
        self.heap.extend_from_slice(bytes);
        let len = u32::try_from(bytes.len())
            .map_err(|_| Error::Unsupported("a literal of 4 GiB is not supported on the device".into()))?;
        let (heap, at, len) = self.heap_constant(at, len);
        Ok(format!("str_make({heap} + {at}, {len})"))
    }

    /// C for where a string lies in the heap as a view would have it: its length, then its first bytes, zeros behind them where
    /// they are fewer than 12. All of its bytes follow.
    pub(super) fn view_text(&mut self, bytes: &[u8]) -> Result<String> {
        let at = self.heap_place(4)?;
        let len = u32::try_from(bytes.len())
            .map_err(|_| Error::Unsupported("a literal of 4 GiB is not supported on the device".into()))?;
        let mut view = [0; 16];
        view[..4].copy_from_slice(&len.to_le_bytes());
        let shown = bytes.len().min(VIEW_BYTES);
        view[4..4 + shown].copy_from_slice(&bytes[..shown]);
        self.heap.extend_from_slice(&view);
        self.heap.extend_from_slice(bytes);
        let (heap, at, _) = self.heap_constant(at, len);
        Ok(format!("{heap} + {at}"))
    }

    /// A sorted list of literals in the heap, as elements of `ctype`; the C of its first element's
    /// address, typed, and of its length. Strings are pairs of u32, place and length.
    pub(super) fn list(&mut self, ctype: CType, literals: &[&Literal]) -> Result<InHeap> {
        let mut count = 0;
        let at;
        if ctype == CType::Str {
            let mut values: Vec<&[u8]> = Vec::new();
            for literal in literals {
                match &literal.value {
                    LiteralValue::Bytes(bytes) => values.push(bytes),
                    _ => return Err(mismatch(literal)),
                }
            }
            values.sort_unstable();
            values.dedup();
            let mut places = Vec::new();
            for value in values {
                let place = self.heap_place(1)?;
                self.heap.extend_from_slice(value);
                places.push((place, u32::try_from(value.len()).map_err(|_| Error::Internal("a literal of 4 GiB".into()))?));
            }
            at = self.heap_place(4)?;
            for (place, len) in places {
                self.heap.extend_from_slice(&place.to_le_bytes());
                self.heap.extend_from_slice(&len.to_le_bytes());
                count += 1;
            }
        } else {
            let mut values: Vec<i256> = Vec::new();
            for literal in literals {
                let value = match (&literal.value, ctype) {
                    (LiteralValue::Bool(value), _) => *value as i128,
                    (LiteralValue::Int(value), _) => *value,
                    (LiteralValue::Wide(value), CType::I256) => {
                        values.push(**value);
                        continue;
                    }
                    (LiteralValue::Float(value), CType::F32) => (*value as f32).to_bits() as i128,
                    (LiteralValue::Float(value), CType::F64) => value.to_bits() as i128,
                    _ => return Err(mismatch(literal)),
                };
                values.push(i256::from_i128(value));
            }
            values.sort_unstable();
            values.dedup();
            let width = ctype.width();
            at = self.heap_place(width)?;
            for value in values {
                self.heap.extend_from_slice(&value.to_le_bytes()[..width]);
                count += 1;
            }
        }
        let element = match ctype {
            CType::Str => "u32",
            CType::F32 => "u32",
            CType::F64 => "u64",
            other => other.name(),
        };
        let (heap, at, len) = self.heap_constant(at, count);
        Ok((format!("((const G {element} *)({heap} + {at}))"), len))
    }

    /// A table that is no literal, but part of a type: once in the heap, however often it is asked for.
    /// The C of its first word's address and of its length.
    pub(super) fn table(&mut self, words: &Arc<[i64]>) -> Result<InHeap> {
        if let Some((_, names)) = self.tables.iter().find(|(known, _)| Arc::ptr_eq(known, words)) {
            return Ok(names.clone());
        }
        let at = self.heap_place(8)?;
        self.heap.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        let len = u32::try_from(words.len()).map_err(|_| Error::Internal("a table of 4 GiB".into()))?;
        let (heap, at, len) = self.heap_constant(at, len);
        let names = (format!("((const G i64 *)({heap} + {at}))"), len);
        self.tables.push((Arc::clone(words), names.clone()));
        Ok(names)
    }

    fn word(&mut self, constant: Constant, c_type: &str) -> String {
        let index = self.constant(constant);
        self.add(Param::Literal { index, part: LiteralPart::Value }, c_type)
    }

    /// A constant of several words.
    fn words<const N: usize>(&mut self, constant: Constant) -> [String; N] {
        let index = self.constant(constant);
        std::array::from_fn(|word| {
            let part = if word == 0 { LiteralPart::Value } else { LiteralPart::Word(word) };
            self.add(Param::Literal { index, part }, "u64")
        })
    }

    fn heap_place(&mut self, align: usize) -> Result<u32> {
        self.heap.resize(self.heap.len().next_multiple_of(align), 0);
        u32::try_from(self.heap.len())
            .map_err(|_| Error::Unsupported("literals of more than 4 GiB are not supported on the device".into()))
    }

    fn heap_constant(&mut self, at: u32, len: u32) -> (String, String, String) {
        let index = self.constant(Constant::Heap { at, len });
        let heap = self.add(Param::LiteralHeap, "const G u8 *RESTRICT");
        let at = self.add(Param::Literal { index, part: LiteralPart::At }, "u32");
        let len = self.add(Param::Literal { index, part: LiteralPart::Len }, "u32");
        (heap, at, len)
    }
}

/// C that declares a variable or parameter.
fn declared(c_type: &str, name: &str) -> String {
    let space = if c_type.ends_with('*') { "" } else { " " };
    format!("{c_type}{space}{name}")
}

/// Bounds of a literal: coarse, so that another constant seldom makes another text.
fn class(value: i128) -> (i128, i128) {
    let bits = 128 - value.unsigned_abs().leading_zeros();
    let rounded = match bits {
        0 => return (0, 0),
        1..=4 => 4,
        5..=8 => 8,
        9..=16 => 16,
        17..=32 => 32,
        33..=48 => 48,
        49..=63 => 63,
        _ => 127,
    };
    let most = if rounded == 127 { i128::MAX } else { (1 << rounded) - 1 };
    match value {
        i128::MIN => (i128::MIN, -1),
        _ if value < 0 => (-most, -1),
        _ => (1, most),
    }
}

fn mismatch(literal: &Literal) -> Error {
    Error::Internal(format!("literal of type {} holds {:?}", literal.data_type, literal.value))
}

fn name(param: &Param) -> String {
    match param {
        Param::Data { column, buffer } => format!("c{column}_{buffer}"),
        Param::Offset { column } => format!("c{column}_off"),
        Param::Validity { column } => format!("c{column}_v"),
        Param::ValidityOffset { column } => format!("c{column}_voff"),
        Param::DictData { column, buffer } => format!("d{column}_{buffer}"),
        Param::DictOffset { column } => format!("d{column}_off"),
        Param::OfElements { column, param } => format!("e{column}_{}", name(param)),
        Param::Literal { index, part: LiteralPart::Value } => format!("l{index}"),
        Param::Literal { index, part: LiteralPart::Word(word) } => format!("l{index}_w{word}"),
        Param::Literal { index, part: LiteralPart::At } => format!("l{index}_at"),
        Param::Literal { index, part: LiteralPart::Len } => format!("l{index}_len"),
        Param::LiteralHeap => "lits".into(),
        Param::Verdicts { index } => format!("said{index}"),
        Param::Zones => "zones".into(),
        Param::Cases => "cases".into(),
        Param::Scratch => SCRATCH.into(),
        Param::Error => "err".into(),
        Param::Named(name) => name.clone(),
    }
}

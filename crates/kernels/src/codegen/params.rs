// SPDX-License-Identifier: Apache-2.0
//! Parameters of a kernel: columns, literals, the error flag, and those that its sink names.

use std::sync::Arc;

use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::{DataType, i256};

use device::{Arg, Parameter};

use super::Profile;
use super::dictionary_predicate::DictionaryPredicate;
use super::value::{CType, Value};
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
    /// A buffer of a column's dictionary.
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
    /// A parameter of the elements of a list column.
    OfElements {
        /// Position of the list column in the batch.
        column: usize,
        /// The parameter in a batch of the elements only.
        param: Box<Param>,
    },
    /// A part of a literal.
    Literal {
        /// Position among the kernel's literals.
        index: usize,
        /// The part.
        part: LiteralPart,
    },
    /// Bytes of string literals and long `IN` lists.
    LiteralHeap,
    /// The table of one of the kernel's [dictionary predicates](Params::dictionary_predicates).
    DictionaryPredicate {
        /// Position among them.
        index: usize,
    },
    /// The rules of all time zones, for strings that name one.
    Zones,
    /// Upper and lower case of all characters.
    Cases,
    /// Scratch memory for strings that a row computes: [`Params::scratch_bytes`].
    Scratch,
    /// The error flag: the lowest failing row, or all ones.
    Error,
    /// A parameter of the sink.
    Named(String),
}

impl Param {
    /// Rank in the order of arguments that move to the argument table.
    fn table_rank(&self) -> u8 {
        match self {
            Param::Literal { .. } => 0,
            Param::Offset { .. } | Param::ValidityOffset { .. } | Param::DictOffset { .. } => 1,
            Param::OfElements { param, .. } => param.table_rank(),
            Param::Data { .. } | Param::Validity { .. } | Param::DictData { .. } | Param::DictionaryPredicate { .. } => 2,
            Param::LiteralHeap | Param::Zones | Param::Cases | Param::Scratch | Param::Error | Param::Named(_) => 3,
        }
    }
}

/// Parts of a literal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LiteralPart {
    /// The value; of wide integers the lowest 64 bits.
    Value,
    /// Another 64-bit word of a wide integer, from 1.
    Word(usize),
    /// Offset of the first byte in the heap.
    At,
    /// Length of a string, or number of values of a list.
    Len,
}

/// A literal as an argument.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Constant {
    Int(CType, i128),
    Wide(i256),
    F32(f32),
    F64(f64),
    Heap { at: u32, len: u32 },
}

/// The distinct parameters of a kernel in order, and the sections of the prelude that it needs.
#[derive(Debug, Clone, Default)]
pub struct Params {
    params: Vec<(Param, String)>,
    /// Positions of the parameters whose arguments are in the argument table, in the table's order.
    table: Vec<usize>,
    pub(super) constants: Vec<Constant>,
    heap: Vec<u8>,
    tables: Vec<(Arc<[i64]>, InHeap)>,
    dictionary_predicates: Vec<DictionaryPredicate>,
    functions: Vec<String>,
    /// Per work-item.
    scratch_bytes: usize,
    sections: Sections,
}

/// Name of the argument table, the first parameter of a kernel that has one.
const TABLE: &str = "args";

/// Line of a body before which no read of the argument table counts.
pub(crate) const NEXT_ROW: &str = "    /* next row */\n";

/// Bytes of an argument of any type.
const ARG_BYTES: usize = 8;

/// C of an array in the heap: the typed address of its first element, and its length.
type InHeap = (String, String);

/// Name of scratch memory among the sink's parameters.
pub const SCRATCH: &str = "scratch";

/// Bytes that an Arrow view holds inline.
const VIEW_BYTES: usize = 12;

/// Bytes of a string that a row computes; decimals take more.
pub(super) const SCRATCH_SLOT: usize = 64;

impl Params {
    /// No parameters yet.
    pub fn new() -> Params {
        Params::default()
    }

    /// Adds a parameter of the sink, such as `("n", "u64")` or `("out", "G i64 *RESTRICT")`, unless
    /// it is known; its name.
    pub fn named(&mut self, name: &str, c_type: &str) -> String {
        self.add(Param::Named(name.into()), c_type)
    }

    /// Name of the error flag. A kernel that calls this can fail.
    pub fn error(&mut self) -> String {
        self.add(Param::Error, "volatile G u64 *")
    }

    /// Whether the kernel has an error flag.
    pub fn can_fail(&self) -> bool {
        self.params.iter().any(|(param, _)| *param == Param::Error)
    }

    /// Flags a section of the prelude as needed.
    pub fn need(&mut self, section: Section) {
        self.sections.need(section);
    }

    /// Flags the section of a C type as needed.
    pub fn need_type(&mut self, ctype: CType) {
        match ctype {
            CType::I128 => self.need(Section::I128),
            CType::I256 => self.need(Section::I256),
            CType::F32 | CType::F64 => self.need(Section::Float),
            CType::Str | CType::ComposedString => self.need(Section::Str),
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

    /// Predicates whose tables other kernels compute before this one runs.
    pub fn dictionary_predicates(&self) -> &[DictionaryPredicate] {
        &self.dictionary_predicates
    }

    /// Adds a predicate; its position.
    pub(super) fn add_dictionary_predicate(&mut self, predicate: DictionaryPredicate) -> usize {
        self.dictionary_predicates.push(predicate);
        self.dictionary_predicates.len() - 1
    }

    /// Sources of functions that the kernel calls.
    pub fn functions(&self) -> &[String] {
        &self.functions
    }

    /// Adds a function, unless it is known.
    pub(crate) fn function(&mut self, source: String) {
        if !self.functions.contains(&source) {
            self.functions.push(source);
        }
    }

    /// Adds parameters and sections of a function over the elements of a list column; the names.
    pub(super) fn of_elements(&mut self, column: usize, function: &Params) -> Vec<String> {
        self.sections.extend(&function.sections);
        function.functions.iter().for_each(|source| self.function(source.clone()));
        let params = function.params.iter();
        let add = |(param, c_type): &(Param, String)| {
            let param = Box::new(param.clone());
            self.add(Param::OfElements { column, param }, c_type)
        };
        params.map(add).collect()
    }

    /// The parameter list of the kernel.
    pub fn declaration(&self) -> String {
        let table = (!self.table.is_empty()).then(|| format!("const G u64 *RESTRICT {TABLE}"));
        let passed = self.params.iter().enumerate().filter(|(index, _)| !self.table.contains(index));
        let passed = passed.map(|(_, (param, c_type))| declared(c_type, &name(param)));
        table.into_iter().chain(passed).collect::<Vec<_>>().join(", ")
    }

    /// The parameters that the driver passes, in order.
    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        let table = (!self.table.is_empty()).then_some(Parameter::Memory);
        let passed = self.params.iter().enumerate().filter(|(index, _)| !self.table.contains(index));
        table.into_iter().chain(passed.map(|(_, (_, c_type))| parameter(c_type))).collect()
    }

    /// The names of the parameters, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        self.params.iter().map(|(param, _)| name(param))
    }

    /// A kernel's body with the reads of the table's arguments.
    ///
    /// They are locals in the cpu profile. In the gpu profile they are macros, read again for each
    /// row: there are more than registers, so that locals would be spilled.
    pub(crate) fn with_table(&self, body: &str, profile: Profile) -> String {
        if self.table.is_empty() {
            return body.replace(NEXT_ROW, "");
        }
        let (mut begin, mut end) = (String::new(), String::new());
        for (slot, index) in self.table.iter().enumerate() {
            let (param, c_type) = &self.params[*index];
            let value = match c_type.as_str() {
                "f32" => format!("BITS_F32({TABLE}[{slot}])"),
                "f64" => format!("BITS_F64({TABLE}[{slot}])"),
                _ => format!("(({}){TABLE}[{slot}])", c_type.trim_end_matches("RESTRICT")),
            };
            let name = name(param);
            match profile {
                Profile::Cpu => begin.push_str(&format!("  {} = {value};\n", declared(c_type, &name))),
                Profile::Gpu => {
                    begin.push_str(&format!("#define {name} {value}\n"));
                    end.push_str(&format!("#undef {name}\n"));
                }
            }
        }
        let forget = match profile {
            Profile::Cpu => String::new(),
            Profile::Gpu => format!("    FORGET({TABLE});\n"),
        };
        format!("{begin}{}{end}", body.replace(NEXT_ROW, &forget))
    }

    /// Bytes of the arguments, each rounded up to 8, to compare with the device's limit.
    pub fn bytes(&self) -> usize {
        let passed = self.params.len() - self.table.len() + usize::from(!self.table.is_empty());
        passed * ARG_BYTES
    }

    /// Moves arguments to the argument table until the others have at most `limit` bytes. The order
    /// is constants, offsets, buffers, because compilers optimize loaded buffers less.
    pub(crate) fn limit_bytes(&mut self, limit: usize) {
        if self.bytes() <= limit {
            return;
        }
        let excess = self.params.len() + 1 - limit / ARG_BYTES;
        let mut order: Vec<usize> = (0..self.params.len()).collect();
        order.sort_by_key(|index| self.params[*index].0.table_rank());
        self.table = order.into_iter().take(excess).collect();
    }

    /// The same parameters, all in the argument table: those that were there, then the others.
    pub(crate) fn all_in_table(&self) -> Params {
        let passed = (0..self.params.len()).filter(|index| !self.table.contains(index));
        Params { table: self.table.iter().copied().chain(passed).collect(), ..self.clone() }
    }

    /// Splits the arguments of all parameters into those of the table and the others.
    pub(crate) fn split_table<'a>(&self, args: Vec<Arg<'a>>) -> (Vec<Arg<'a>>, Vec<Arg<'a>>) {
        let table = self.table.iter().map(|index| args[*index]).collect();
        let passed = args.into_iter().enumerate().filter(|(index, _)| !self.table.contains(index));
        (table, passed.map(|(_, arg)| arg).collect())
    }

    /// Aligned bytes of string literals and lists; `None` for a kernel without them.
    pub fn literal_heap(&self) -> Option<Buffer> {
        self.iter().any(|param| *param == Param::LiteralHeap).then(|| {
            let mut bytes = MutableBuffer::with_capacity(self.heap.len().max(16));
            bytes.extend_from_slice(&self.heap);
            bytes.resize(self.heap.len().max(16), 0);
            bytes.into()
        })
    }

    /// Bytes of scratch memory that a launch of so many work-items needs; 0 for a kernel without
    /// it.
    ///
    /// Scratch memory holds the computed strings of a row until the work-item's next row. A sink
    /// copies their bytes within the row and keeps no pointer.
    pub fn scratch_bytes(&self, work_items: usize) -> usize {
        self.scratch_bytes * work_items
    }

    /// C of a pointer to new scratch memory of so many bytes, private to the work-item.
    pub(super) fn scratch(&mut self, bytes: usize) -> String {
        let scratch = self.add(Param::Scratch, "G u8 *");
        let before = self.scratch_bytes;
        self.scratch_bytes += bytes;
        format!("{scratch} + (u64){before} * GSZ() + GID() * {bytes}")
    }

    /// Name of the rules of all time zones.
    pub(super) fn zones(&mut self) -> String {
        self.add(Param::Zones, "const G u32 *RESTRICT")
    }

    /// Name of the case table.
    pub(super) fn cases(&mut self) -> String {
        self.add(Param::Cases, "const G u32 *RESTRICT")
    }

    /// Adds a parameter unless it is known; its name.
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

    /// A literal as a value. Equal literals do not share a parameter: they may differ in the next
    /// query, whose kernel source must be the same.
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
                bounds = Some(coarse_bounds(*value));
                // A decimal that fits takes 64 bits. The bounds, hence the kernel, tell whether it
                // does.
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
            LiteralValue::Bytes(bytes) if ctype == CType::Str => self.string(bytes)?,
            // The elements are the only values of their column.
            LiteralValue::List(elements) if ctype == CType::List => {
                self.word(Constant::Int(CType::U64, (elements.len() as i128) << 32), "u64")
            }
            LiteralValue::Bytes(_) | LiteralValue::List(_) => return Err(mismatch(literal)),
        };
        // Coarse bounds may exceed the type.
        let bounds = bounds.zip(ctype.range()).map(|((low, high), (least, most))| (low.max(least), high.min(most)));
        Ok(Value { data_type, ctype, code, valid: None, bounds })
    }

    /// C of a string whose bytes go to the heap.
    pub(super) fn string(&mut self, bytes: &[u8]) -> Result<String> {
        let at = self.heap_end(1)?;
        self.heap.extend_from_slice(bytes);
        let len = u32::try_from(bytes.len())
            .map_err(|_| Error::Unsupported("a literal of 4 GiB is not supported on the device".into()))?;
        let (heap, at, len) = self.heap_constant(at, len);
        Ok(format!("str_make({heap} + {at}, {len})"))
    }

    /// C of the address of a string in the heap. An Arrow view precedes its bytes, with up to 12 of
    /// them inline and zero-padded.
    pub(super) fn view_of(&mut self, bytes: &[u8]) -> Result<String> {
        let at = self.heap_end(4)?;
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

    /// C of the address of bytes in the heap, a multiple of 8.
    pub(super) fn block(&mut self, bytes: &[u8]) -> Result<String> {
        let at = self.heap_end(8)?;
        self.heap.extend_from_slice(bytes);
        let len = u32::try_from(bytes.len()).map_err(|_| Error::Internal("a block of 4 GiB".into()))?;
        let (heap, at, _) = self.heap_constant(at, len);
        Ok(format!("{heap} + {at}"))
    }

    /// A sorted `IN` list in the heap, as elements of `ctype`. Strings are pairs of u32: offset and
    /// length.
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
            let mut slices = Vec::new();
            for value in values {
                let at = self.heap_end(1)?;
                self.heap.extend_from_slice(value);
                slices.push((at, u32::try_from(value.len()).map_err(|_| Error::Internal("a literal of 4 GiB".into()))?));
            }
            at = self.heap_end(4)?;
            for (offset, len) in slices {
                self.heap.extend_from_slice(&offset.to_le_bytes());
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
            at = self.heap_end(width)?;
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

    /// A table that belongs to a type, such as a time zone's; the heap has it once.
    pub(super) fn table(&mut self, words: &Arc<[i64]>) -> Result<InHeap> {
        if let Some((_, names)) = self.tables.iter().find(|(known, _)| Arc::ptr_eq(known, words)) {
            return Ok(names.clone());
        }
        let at = self.heap_end(8)?;
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

    /// A constant of several 64-bit words.
    fn words<const N: usize>(&mut self, constant: Constant) -> [String; N] {
        let index = self.constant(constant);
        std::array::from_fn(|word| {
            let part = if word == 0 { LiteralPart::Value } else { LiteralPart::Word(word) };
            self.add(Param::Literal { index, part }, "u64")
        })
    }

    fn heap_end(&mut self, align: usize) -> Result<u32> {
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

/// A parameter of a C type.
fn parameter(c_type: &str) -> Parameter {
    let bits = c_type.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    match bits.parse::<usize>() {
        Ok(bits) => Parameter::Value(bits / 8),
        Err(_) => Parameter::Memory,
    }
}

/// Coarse bounds of a literal, so that few constants need another kernel.
fn coarse_bounds(value: i128) -> (i128, i128) {
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
        Param::DictionaryPredicate { index } => format!("predicate{index}"),
        Param::Zones => "zones".into(),
        Param::Cases => "cases".into(),
        Param::Scratch => SCRATCH.into(),
        Param::Error => "err".into(),
        Param::Named(name) => name.clone(),
    }
}

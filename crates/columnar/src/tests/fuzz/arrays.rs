// SPDX-License-Identifier: Apache-2.0
//! Small random arrays of every type of Arrow, also nested.

use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, BinaryViewBuilder, StringViewBuilder, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, IntervalUnit, Schema, UnionFields, UnionMode};
use arrow_device::schema;
use rand::Rng;
use rand::rngs::StdRng;

use super::super::data::{Nulls, array as plain_array, plain_types, string};

/// Levels of nested types.
const MAX_DEPTH: usize = 3;

/// Draws types, and arrays of them.
pub(super) struct Generator {
    leaves: Vec<DataType>,
}

impl Generator {
    pub(super) fn new() -> Self {
        use DataType::{Float16, Interval, Utf8, Utf8View};
        let mut leaves = plain_types();
        leaves.extend([Float16, Interval(IntervalUnit::YearMonth), Interval(IntervalUnit::DayTime)]);
        leaves.push(Interval(IntervalUnit::MonthDayNano));
        // Strings have the most to lie about.
        leaves.extend([Utf8, Utf8View].into_iter().cycle().take(16));
        Self { leaves }
    }

    /// The field of an array of any type.
    pub(super) fn any(&self, rng: &mut StdRng) -> Field {
        self.field(0, 0, rng)
    }

    /// The field of a record batch.
    pub(super) fn batch(&self, rng: &mut StdRng) -> Field {
        let columns: Fields = (0..rng.random_range(0..4)).map(|index| self.field(index, 0, rng)).collect();
        schema::batch_field(&Schema::new(columns))
    }

    /// A few values.
    pub(super) fn values(&self, field: &Field, rng: &mut StdRng) -> ArrayRef {
        let len = rng.random_range(0..12);
        self.of_field(field, len, rng)
    }

    fn field(&self, index: usize, depth: usize, rng: &mut StdRng) -> Field {
        let name = ["", "x", "größe", "a long name with spaces"][rng.random_range(0..4)];
        let field = Field::new(format!("{name}{index}"), self.data_type(depth, rng), rng.random_bool(0.8));
        match rng.random_range(0..8) {
            0 => field.with_metadata([("unit".to_string(), "µm".to_string())].into()),
            _ => field,
        }
    }

    fn data_type(&self, depth: usize, rng: &mut StdRng) -> DataType {
        use DataType::*;
        let kind = if depth >= MAX_DEPTH { 0 } else { rng.random_range(0..28) };
        let mut item = || Arc::new(self.field(0, depth + 1, rng));
        match kind {
            16 | 17 => List(item()),
            18 => LargeList(item()),
            19 => ListView(item()),
            20 => LargeListView(item()),
            21 => FixedSizeList(item(), rng.random_range(0..4)),
            22 => Struct((0..rng.random_range(0..4)).map(|index| self.field(index, depth + 1, rng)).collect()),
            23 => {
                let key = Field::new("key", self.leaf(rng), false);
                let entries = Struct(Fields::from(vec![key, self.field(1, depth + 1, rng)]));
                Map(Arc::new(Field::new("entries", entries, false)), rng.random())
            }
            24 => {
                let mode = if rng.random() { UnionMode::Sparse } else { UnionMode::Dense };
                let members =
                    (0..rng.random_range(1..4)).map(|index| (index as i8 * 5, Arc::new(self.field(index, depth + 1, rng))));
                Union(members.collect::<UnionFields>(), mode)
            }
            25 => {
                let ends = [Int16, Int32, Int64][rng.random_range(0..3)].clone();
                let values = self.data_type(depth + 1, rng);
                RunEndEncoded(Arc::new(Field::new("run_ends", ends, false)), Arc::new(Field::new("values", values, true)))
            }
            26 | 27 => {
                let key = [Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64][rng.random_range(0..8)].clone();
                let value = if rng.random_bool(0.8) { self.leaf(rng) } else { self.data_type(depth + 1, rng) };
                Dictionary(Box::new(key), Box::new(value))
            }
            _ => self.leaf(rng),
        }
    }

    fn leaf(&self, rng: &mut StdRng) -> DataType {
        self.leaves[rng.random_range(0..self.leaves.len())].clone()
    }

    fn of_field(&self, field: &Field, len: usize, rng: &mut StdRng) -> ArrayRef {
        let nulls = if field.is_nullable() { nulls_of(rng) } else { Nulls::None };
        self.array(field.data_type(), len, nulls, rng)
    }

    /// An array, which may be a slice.
    fn array(&self, data_type: &DataType, len: usize, nulls: Nulls, rng: &mut StdRng) -> ArrayRef {
        let (before, after) = if rng.random_bool(0.3) { (rng.random_range(0..10), rng.random_range(0..3)) } else { (0, 0) };
        self.whole(data_type, before + len + after, nulls, rng).slice(before, len)
    }

    fn whole(&self, data_type: &DataType, len: usize, nulls: Nulls, rng: &mut StdRng) -> ArrayRef {
        let valid: Option<NullBuffer> = match nulls {
            Nulls::None => None,
            Nulls::Some => Some((0..len).map(|_| rng.random_bool(0.7)).collect::<BooleanBuffer>().into()),
            Nulls::All => Some(NullBuffer::new_null(len)),
        };
        let (mut buffers, mut children) = (vec![], vec![]);
        match data_type {
            DataType::List(item) | DataType::Map(item, _) => self.lists(4, item, len, &mut buffers, &mut children, rng),
            DataType::LargeList(item) => self.lists(8, item, len, &mut buffers, &mut children, rng),
            DataType::ListView(item) => self.list_views(4, item, len, &mut buffers, &mut children, rng),
            DataType::LargeListView(item) => self.list_views(8, item, len, &mut buffers, &mut children, rng),
            DataType::FixedSizeList(item, size) => children.push(self.of_field(item, len * *size as usize, rng)),
            DataType::Struct(fields) => children.extend(fields.iter().map(|field| self.of_field(field, len, rng))),
            DataType::Union(members, mode) => {
                let picks: Vec<usize> = (0..len).map(|_| rng.random_range(0..members.len())).collect();
                let ids: Vec<i8> = members.iter().map(|(id, _)| id).collect();
                buffers.push(Buffer::from_vec(picks.iter().map(|pick| ids[*pick]).collect()));
                let child_len = if *mode == UnionMode::Sparse { len } else { rng.random_range(1..6) };
                if *mode == UnionMode::Dense {
                    // The format wants the values of each member in order.
                    let mut ends: Vec<i64> = (0..len).map(|_| rng.random_range(0..child_len as i64)).collect();
                    ends.sort_unstable();
                    buffers.push(integers(4, ends));
                }
                children.extend(members.iter().map(|(_, field)| self.of_field(field, child_len, rng)));
            }
            DataType::RunEndEncoded(ends, values) => return self.runs(data_type, ends, values, len, rng),
            DataType::Dictionary(key, value) => {
                let count = rng.random_range(1..6);
                let codes = (0..len).map(|_| rng.random_range(0..count as i64));
                buffers.push(integers(key.primitive_width().unwrap(), codes.collect::<Vec<_>>()));
                let nulls = if nulls == Nulls::None { Nulls::None } else { nulls_of(rng) };
                children.push(self.array(value, count, nulls, rng));
            }
            // Small blocks make several buffers.
            DataType::Utf8View => {
                let mut views = StringViewBuilder::new().with_fixed_block_size(64);
                (0..len).for_each(|row| views.append_option(is_valid(&valid, row).then(|| string(rng))));
                return Arc::new(views.finish());
            }
            DataType::BinaryView => {
                let mut views = BinaryViewBuilder::new().with_fixed_block_size(64);
                (0..len).for_each(|row| views.append_option(is_valid(&valid, row).then(|| string(rng).into_bytes())));
                return Arc::new(views.finish());
            }
            plain => return plain_array(plain, len, nulls, rng),
        }
        let valid = valid.filter(|_| !matches!(data_type, DataType::Union(_, _)));
        built(data_type, len, valid, buffers, &children)
    }

    fn lists(
        &self,
        width: usize,
        item: &Field,
        len: usize,
        buffers: &mut Vec<Buffer>,
        children: &mut Vec<ArrayRef>,
        rng: &mut StdRng,
    ) {
        let mut end = rng.random_range(0..2);
        let mut offsets = vec![end];
        for _ in 0..len {
            end += rng.random_range(0..4);
            offsets.push(end);
        }
        buffers.push(integers(width, offsets));
        children.push(self.of_field(item, end as usize + rng.random_range(0..2), rng));
    }

    fn list_views(
        &self,
        width: usize,
        item: &Field,
        len: usize,
        buffers: &mut Vec<Buffer>,
        children: &mut Vec<ArrayRef>,
        rng: &mut StdRng,
    ) {
        let count = rng.random_range(0..8);
        let offsets: Vec<i64> = (0..len).map(|_| rng.random_range(0..=count)).collect();
        let sizes: Vec<i64> = offsets.iter().map(|offset| rng.random_range(0..=count - offset)).collect();
        buffers.extend([integers(width, offsets), integers(width, sizes)]);
        children.push(self.of_field(item, count as usize, rng));
    }

    fn runs(&self, data_type: &DataType, ends: &FieldRef, values: &FieldRef, len: usize, rng: &mut StdRng) -> ArrayRef {
        let (mut run_ends, mut end) = (vec![], 0);
        while end < len as i64 {
            end += rng.random_range(1..4);
            run_ends.push(end);
        }
        let count = run_ends.len();
        let width = ends.data_type().primitive_width().unwrap();
        let run_ends = built(ends.data_type(), count, None, vec![integers(width, run_ends)], &[]);
        let values = self.of_field(values, count, rng);
        built(data_type, len, None, vec![], &[run_ends, values])
    }
}

fn is_valid(valid: &Option<NullBuffer>, row: usize) -> bool {
    valid.as_ref().is_none_or(|valid| valid.is_valid(row))
}

fn built(data_type: &DataType, len: usize, valid: Option<NullBuffer>, buffers: Vec<Buffer>, children: &[ArrayRef]) -> ArrayRef {
    let children = children.iter().map(|child| child.to_data()).collect();
    let data =
        ArrayData::builder(data_type.clone()).len(len).nulls(valid).buffers(buffers).child_data(children).align_buffers(true);
    make_array(data.build().unwrap())
}

/// Integers of `width` bytes.
fn integers(width: usize, values: impl IntoIterator<Item = i64>) -> Buffer {
    values.into_iter().flat_map(|value| value.to_le_bytes().into_iter().take(width)).collect::<Vec<u8>>().into()
}

fn nulls_of(rng: &mut StdRng) -> Nulls {
    [Nulls::None, Nulls::Some, Nulls::Some, Nulls::All][rng.random_range(0..4)]
}

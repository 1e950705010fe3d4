// SPDX-License-Identifier: Apache-2.0
//! Helpers of the unit tests: an array of every type, and a counting release callback.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::types::{Int8Type, Int16Type, Int32Type, Int64Type, IntervalDayTime, IntervalMonthDayNano, UInt16Type};
use arrow::array::*;
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, TimeUnit, UnionFields, i256};
use arrow::ffi::FFI_ArrowArray;

use crate::ffi::FFI_ArrowDeviceArray;

/// Arrays of four or more elements of every type that a schema can have.
pub(crate) fn samples() -> Vec<ArrayRef> {
    let ints: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None, Some(3), Some(-4), Some(5)]));
    let longs: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3), Some(4), Some(5)]));
    let strings = vec![Some("a"), None, Some(""), Some("a string of more than twelve bytes"), Some("ü")];
    let utf8: ArrayRef = Arc::new(StringArray::from(strings.clone()));
    let bytes: Vec<Option<&[u8]>> = strings.iter().map(|string| string.map(str::as_bytes)).collect();
    let (precision, scale) = (7, 2);

    let mut samples: Vec<ArrayRef> = vec![
        Arc::new(NullArray::new(5)),
        Arc::new(BooleanArray::from(vec![Some(true), None, Some(false), Some(true), Some(true)])),
        Arc::new(Date32Array::from(vec![Some(-1), None, Some(0), Some(20_000)])),
        Arc::new(
            Decimal32Array::from(vec![Some(1), None, Some(-3), Some(4)]).with_precision_and_scale(precision, scale).unwrap(),
        ),
        Arc::new(
            Decimal64Array::from(vec![Some(1), None, Some(-3), Some(4)]).with_precision_and_scale(precision, scale).unwrap(),
        ),
        Arc::new(Decimal128Array::from(vec![Some(1), None, Some(-3), Some(4)]).with_precision_and_scale(15, -2).unwrap()),
        Arc::new(Decimal256Array::from(vec![Some(i256::ONE), None, Some(i256::MIN), Some(i256::MAX)])),
        Arc::new(IntervalYearMonthArray::from(vec![Some(1), None, Some(-3), Some(4)])),
        Arc::new(IntervalDayTimeArray::from(vec![IntervalDayTime::new(1, 2); 4])),
        Arc::new(IntervalMonthDayNanoArray::from(vec![IntervalMonthDayNano::new(1, 2, 3); 4])),
        Arc::new(
            FixedSizeBinaryArray::try_from_sparse_iter_with_size(
                [Some(b"ab"), None, Some(b"cd"), Some(b"ef")].iter().map(|v| v.map(|v| &v[..])),
                2,
            )
            .unwrap(),
        ),
        utf8.clone(),
        Arc::new(LargeStringArray::from(strings.clone())),
        Arc::new(StringViewArray::from(strings)),
        Arc::new(BinaryArray::from(bytes.clone())),
        Arc::new(LargeBinaryArray::from(bytes.clone())),
        Arc::new(BinaryViewArray::from(bytes)),
        Arc::new(DictionaryArray::<Int8Type>::from_iter([Some("a"), None, Some("b"), Some("a")])),
        Arc::new(DictionaryArray::<UInt16Type>::from_iter([Some("a"), Some("c"), Some("b"), Some("a")])),
    ];
    use TimeUnit::*;
    for data_type in [
        DataType::Int8,
        DataType::UInt8,
        DataType::Int16,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Time32(Second),
        DataType::Time32(Millisecond),
    ] {
        samples.push(cast(&ints, &data_type).unwrap());
    }
    for data_type in [
        DataType::Date64,
        DataType::Time64(Microsecond),
        DataType::Time64(Nanosecond),
        DataType::Duration(Second),
        DataType::Duration(Nanosecond),
        DataType::Timestamp(Millisecond, None),
        DataType::Timestamp(Microsecond, Some("Europe/Zurich".into())),
    ] {
        samples.push(cast(&longs, &data_type).unwrap());
    }
    samples.push(Arc::new(UInt16Array::from(vec![1, 2, 3, u16::MAX])));
    samples.push(Arc::new(UInt32Array::from(vec![1, 2, 3, u32::MAX])));
    samples.push(Arc::new(UInt64Array::from(vec![1, 2, 3, u64::MAX])));
    samples.extend(nested(&ints, &utf8));
    samples.extend([ints, longs]);
    samples
}

fn nested(ints: &ArrayRef, utf8: &ArrayRef) -> Vec<ArrayRef> {
    let item = |array: &ArrayRef| Arc::new(Field::new("item", array.data_type().clone(), true));
    let nulls = || Some(NullBuffer::from(vec![true, false, true, true]));
    let lengths = || OffsetBuffer::from_lengths([2, 0, 1, 2]);
    let list = ListArray::new(item(utf8), lengths(), utf8.clone(), nulls());
    let offsets = ScalarBuffer::from(vec![3, 0, 1, 0]);
    let sizes = ScalarBuffer::from(vec![2, 0, 1, 2]);
    let wide = |numbers: &ScalarBuffer<i32>| numbers.iter().map(|number| i64::from(*number)).collect::<ScalarBuffer<i64>>();
    let fixed = ints.slice(0, 4);

    let fields = vec![Field::new("i", DataType::Int32, true), Field::new("s", DataType::Utf8, true)];
    let rows = StructArray::new(fields.into(), vec![ints.slice(1, 4), utf8.slice(1, 4)], nulls());
    let mut map = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
    for (key, value) in [("a", Some(1)), ("b", None), ("c", Some(3))] {
        map.keys().append_value(key);
        map.values().append_option(value);
        map.append(key != "b").unwrap();
    }
    map.append(true).unwrap();

    let members = [(0, Arc::new(Field::new("i", DataType::Int32, true))), (5, Arc::new(Field::new("s", DataType::Utf8, true)))];
    let members: UnionFields = members.into_iter().collect();
    let ids = ScalarBuffer::from(vec![0i8, 5, 5, 0]);
    let sparse = UnionArray::try_new(members.clone(), ids.clone(), None, vec![ints.slice(1, 4), utf8.slice(0, 4)]).unwrap();
    let value_offsets = ScalarBuffer::from(vec![0, 3, 1, 4]);
    let dense = UnionArray::try_new(members, ids, Some(value_offsets), vec![ints.clone(), utf8.clone()]).unwrap();
    let values = StringArray::from(vec![Some("x"), None, Some("y")]);
    let run_ends16 = RunArray::<Int16Type>::try_new(&Int16Array::from(vec![2, 3, 6]), &values).unwrap();
    let run_ends64 = RunArray::<Int64Type>::try_new(&Int64Array::from(vec![2, 3, 6]), &values).unwrap();
    let dictionary =
        DictionaryArray::<Int32Type>::new(Int32Array::from(vec![Some(0), None, Some(2), Some(1)]), Arc::new(rows.clone()));

    vec![
        Arc::new(LargeListArray::new(item(ints), OffsetBuffer::from_lengths([0, 3, 1, 1]), ints.clone(), None)),
        Arc::new(ListViewArray::new(item(utf8), offsets.clone(), sizes.clone(), utf8.clone(), nulls())),
        Arc::new(LargeListViewArray::new(item(utf8), wide(&offsets), wide(&sizes), utf8.clone(), nulls())),
        Arc::new(FixedSizeListArray::new(item(&fixed), 1, fixed.clone(), nulls())),
        Arc::new(ListArray::new(
            Arc::new(Field::new("lists", list.data_type().clone(), true)),
            OffsetBuffer::from_lengths([1, 2, 0, 1]),
            Arc::new(list.clone()),
            None,
        )),
        Arc::new(list),
        Arc::new(map.finish()),
        Arc::new(sparse),
        Arc::new(dense),
        Arc::new(run_ends16),
        Arc::new(run_ends64),
        Arc::new(dictionary),
        Arc::new(rows),
    ]
}

/// A copy of the buffer that starts one byte past an aligned address.
pub(crate) fn misaligned(buffer: &Buffer) -> Buffer {
    let mut bytes = vec![0u8];
    bytes.extend(buffer.as_slice());
    Buffer::from_vec(bytes).slice(1)
}

/// Counts the releases of an array.
#[derive(Clone, Default)]
pub(crate) struct Releases(Arc<AtomicUsize>);

impl Releases {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// A guard that counts one release on drop.
    pub(crate) fn token(&self) -> ReleaseToken {
        ReleaseToken(self.clone())
    }

    /// The same array, with a counting release callback.
    pub(crate) fn counted(&self, array: FFI_ArrowDeviceArray) -> FFI_ArrowDeviceArray {
        let FFI_ArrowArray { length, null_count, offset, n_buffers, n_children, buffers, children, dictionary, .. } = array.array;
        let FFI_ArrowDeviceArray { device_id, device_type, sync_event, reserved, .. } = array;
        let private = Box::new((array, self.clone()));
        let array = FFI_ArrowArray {
            length,
            null_count,
            offset,
            n_buffers,
            n_children,
            buffers,
            children,
            dictionary,
            release: Some(release),
            private_data: Box::into_raw(private).cast(),
        };
        FFI_ArrowDeviceArray { array, device_id, device_type, sync_event, reserved }
    }
}

unsafe extern "C" fn release(array: *mut FFI_ArrowArray) {
    // SAFETY: made by `counted`, released once.
    let private = unsafe {
        (*array).release = None;
        Box::from_raw((*array).private_data.cast::<(FFI_ArrowDeviceArray, Releases)>())
    };
    private.1.0.fetch_add(1, Ordering::SeqCst);
}

/// The guard of [`Releases::token`].
pub(crate) struct ReleaseToken(Releases);

impl Drop for ReleaseToken {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Panics when it drops.
pub(crate) struct PanicOnDrop;

impl Drop for PanicOnDrop {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

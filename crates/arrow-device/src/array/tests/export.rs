// SPDX-License-Identifier: Apache-2.0
//! The content of exported structs, and the time of their release.

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::thread;

use arrow::datatypes::{DataType, Field};
use arrow::ffi::FFI_ArrowArray;

use crate::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use crate::testing::{PanicOnDrop, Releases};
use crate::{ArrayExport, Error};

fn column(releases: &Releases) -> ArrayExport {
    ArrayExport::new(4).buffers(vec![null(), NonNull]).owner(Box::new(releases.token()))
}

/// A device address; never dereferenced.
#[allow(non_upper_case_globals)]
const NonNull: *const std::ffi::c_void = std::ptr::without_provenance(0x1000);

fn export(array: ArrayExport) -> FFI_ArrowDeviceArray {
    array.export(ArrowDeviceType::CUDA, 1, null_mut()).unwrap()
}

#[test]
fn r19_r36_every_field_is_written() {
    let (mut event, releases) = (7u64, Releases::default());
    let event = (&raw mut event).cast();
    let mut out = MaybeUninit::<FFI_ArrowDeviceArray>::uninit();
    // SAFETY: a local output; all its bytes are set.
    unsafe { out.as_mut_ptr().cast::<u8>().write_bytes(0xab, size_of::<FFI_ArrowDeviceArray>()) };
    let array = column(&releases).offset(2).null_count(Some(1));
    // SAFETY: the output is a local.
    unsafe { array.export_into(ArrowDeviceType::CUDA, 3, event, out.as_mut_ptr()).unwrap() };
    // SAFETY: written above.
    let out = unsafe { out.assume_init() };
    let FFI_ArrowArray {
        length,
        null_count,
        offset,
        n_buffers,
        n_children,
        buffers,
        children,
        dictionary,
        release,
        private_data,
    } = out.array;
    assert_eq!((length, null_count, offset, n_buffers, n_children), (4, 1, 2, 2, 0));
    assert!(!buffers.is_null() && children.is_null() && dictionary.is_null() && release.is_some() && !private_data.is_null());
    assert_eq!((out.device_type, out.device_id, out.sync_event, out.reserved), (ArrowDeviceType::CUDA, 3, event, [0; 3]));
    drop(out);
    assert_eq!(releases.count(), 1);
}

#[test]
fn r27_a_null_output_is_an_error() {
    let releases = Releases::default();
    // SAFETY: null is allowed.
    let error = unsafe { column(&releases).export_into(ArrowDeviceType::CUDA, 0, null_mut(), null_mut()) }.unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
    assert_eq!(releases.count(), 1);
}

#[test]
fn r22_devices_without_events_get_none() {
    let mut event = 1u64;
    for device in [ArrowDeviceType::CPU, ArrowDeviceType::VPI, ArrowDeviceType::WEBGPU, ArrowDeviceType::HEXAGON] {
        let error = column(&Releases::default()).export(device, -1, (&raw mut event).cast()).unwrap_err();
        assert_eq!(error.to_string(), format!("export to {device}: this device type has no events to wait on"));
        column(&Releases::default()).export(device, -1, null_mut()).unwrap();
    }
}

#[test]
fn r34_minus_one_only_on_request() {
    assert_eq!(export(column(&Releases::default())).array.null_count, 0);
    assert_eq!(export(column(&Releases::default()).null_count(None)).array.null_count, -1);
}

#[test]
fn impossible_counts_are_errors() {
    let fails = |array: ArrayExport| array.export(ArrowDeviceType::CUDA, 0, null_mut()).unwrap_err().to_string();
    assert_eq!(fails(ArrayExport::new(2).null_count(Some(3))), "export: 3 of 2 elements cannot be null");
    assert_eq!(fails(ArrayExport::new(usize::MAX)), format!("export: length {} and offset 0 overflow", usize::MAX));
    let child = ArrayExport::new(1).offset(i64::MAX as usize);
    assert!(fails(ArrayExport::new(1).children(vec![child])).ends_with("overflow"));
}

#[test]
fn r29_release_frees_the_tree_wherever_the_struct_is() {
    let releases = Releases::default();
    let dictionary = column(&releases).dictionary(column(&releases));
    let batch = ArrayExport::batch(4, vec![column(&releases), dictionary]).unwrap().owner(Box::new(releases.token()));
    // Moved bitwise to the heap, and to another thread.
    let moved = Box::new(export(batch));
    assert_eq!((moved.array.n_children, moved.array.offset, moved.array.null_count), (2, 0, 0));
    thread::spawn(move || drop(moved)).join().unwrap();
    assert_eq!(releases.count(), 4);
}

#[test]
fn r29_moved_out_children_outlive_their_parent() {
    let (mine, yours, root) = (Releases::default(), Releases::default(), Releases::default());
    let batch = ArrayExport::batch(4, vec![column(&mine), column(&yours)]).unwrap().owner(Box::new(root.token()));
    let exported = export(batch);
    // SAFETY: the export has two children; the consumer moves the first out.
    let child = unsafe { FFI_ArrowArray::from_raw(*exported.array.children) };
    drop(exported);
    assert_eq!((mine.count(), yours.count()), (0, 1));
    // The root's owner may hold the event's cell, and the memory of all columns.
    assert_eq!(root.count(), 0);
    // SAFETY: the table of a live child.
    assert_eq!(unsafe { *child.buffers.add(1) }, NonNull);
    drop(child);
    assert_eq!((mine.count(), root.count()), (1, 1));
}

#[test]
fn r30_release_runs_once_and_accepts_null() {
    let releases = Releases::default();
    let mut exported = export(column(&releases));
    let release = exported.array.release.unwrap();
    // SAFETY: live, then released, then null; the callback accepts all three.
    unsafe {
        release(&mut exported.array);
        release(&mut exported.array);
        release(null_mut());
    }
    assert!(exported.is_released() && exported.array.private_data.is_null());
    drop(exported);
    assert_eq!(releases.count(), 1);
}

#[test]
fn r30_a_panic_in_an_owner_stays_inside() {
    let releases = Releases::default();
    let child = ArrayExport::new(4).buffers(vec![null(), NonNull]).owner(Box::new(PanicOnDrop));
    let exported = export(ArrayExport::batch(4, vec![column(&releases), child]).unwrap());
    drop(exported);
    assert_eq!(releases.count(), 1);
}

#[test]
fn r33_columns_of_unequal_lengths_are_refused() {
    let error = ArrayExport::batch(5, vec![column(&Releases::default())]).err().unwrap();
    assert_eq!(error.to_string(), "export of column 0: expected 5 rows, got 4");
}

#[test]
fn r28_an_export_can_be_checked_against_its_type() {
    let check = |array: ArrayExport, data_type| {
        let field = Field::new("x", data_type, true);
        // SAFETY: none of the types are views.
        unsafe { array.export_as(&field, ArrowDeviceType::CUDA, 0, null_mut()) }
    };
    let releases = Releases::default();
    check(column(&releases), DataType::Int64).unwrap();
    assert_eq!(releases.count(), 1);
    let error = check(column(&releases), DataType::Utf8).unwrap_err();
    assert_eq!(error.to_string(), "array \"x\" (Utf8): expected 3 buffers, got 2");
    assert!(matches!(error, Error::Invalid(_)));
    assert_eq!(releases.count(), 2);
}

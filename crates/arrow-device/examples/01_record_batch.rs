// SPDX-License-Identifier: Apache-2.0
//! Round trip of a record batch in host memory through the C structs, without a copy.
//!
//! `cargo run -p arrow-device --example 01_record_batch`

use std::error::Error;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::ffi::FFI_ArrowSchema;
use arrow_device::ffi::FFI_ArrowDeviceArray;
use arrow_device::{ImportedArray, cpu, schema};

fn main() -> Result<(), Box<dyn Error>> {
    let cities: ArrayRef = Arc::new(StringArray::from(vec![Some("Bern"), None, Some("Oslo")]));
    let people: ArrayRef = Arc::new(Int64Array::from(vec![134_000, 7, 709_000]));
    let batch = RecordBatch::try_from_iter([("city", cities), ("people", people)])?;

    // The consumer provides both structs, the producer fills them.
    let (mut array, mut schema) = (FFI_ArrowDeviceArray::empty(), FFI_ArrowSchema::empty());
    produce(&batch, &mut array, &mut schema)?;

    // SAFETY: the schema comes from this crate's export.
    let schema = unsafe { schema::import_schema(schema)? };
    // SAFETY: the array comes from this crate's export.
    let imported = unsafe { ImportedArray::import_from_raw(&mut array, &schema::batch_field(&schema))? };
    println!("{} rows on {} {}", imported.len(), imported.device_type(), imported.device_id());

    let back = cpu::import_batch(imported)?;
    assert_eq!(back, batch);
    assert_eq!(back.column(1).to_data().buffers()[0].as_ptr(), batch.column(1).to_data().buffers()[0].as_ptr());
    println!("the same memory: {:?}", back.column(0));
    Ok(())
}

fn produce(batch: &RecordBatch, array: &mut FFI_ArrowDeviceArray, schema: &mut FFI_ArrowSchema) -> arrow_device::Result<()> {
    *schema = schema::export_schema(&batch.schema())?;
    *array = cpu::export_batch(batch)?;
    Ok(())
}

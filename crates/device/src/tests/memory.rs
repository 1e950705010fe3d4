// SPDX-License-Identifier: Apache-2.0
//! Buffers and values: uploads, copies, fills and reads.

use super::*;
use crate::{Error, Scalar};

#[test]
fn sizes_around_groups_and_chunks_come_back() -> Result<()> {
    let context = context();
    let queue = context.queue()?;
    for n in [0u64, 1, 255, 256, 257, 131_073, 600_000] {
        let x = queue.alloc(n as usize * 8)?;
        queue.write(&x, 0, &numbers(0..n))?;
        add(&queue, &x, 5)?;
        add(&queue, &x, 2)?;
        let bytes = block_on(queue.read(&x, 0..x.len()))?;
        assert!(to_numbers(&bytes).into_iter().eq(7..n + 7), "{n} numbers");
    }
    Ok(())
}

#[test]
fn values_of_every_type_come_back() -> Result<()> {
    fn check<T: Scalar + PartialEq + std::fmt::Debug>(queue: &Queue, values: [T; 5]) -> Result<()> {
        let up = queue.upload_values(values.to_vec())?;
        assert_eq!((up.len(), up.buffer().len()), (5, 5 * size_of::<T>()));
        assert_eq!(block_on(queue.read_values(&up, 0..5))?, values);
        assert_eq!(block_on(queue.read_values(&up, 2..4))?, values[2..4]);
        let written = queue.alloc_values::<T>(7)?;
        queue.write_values(&written, 1, &values)?;
        assert_eq!(block_on(queue.read_values(&written, 1..6))?, values);
        assert!(matches!(queue.write_values(&written, 3, &values), Err(Error::Range { .. })));
        assert!(matches!(block_on(queue.read_values(&written, 3..8)), Err(Error::Range { .. })));
        assert!(queue.upload_values(Vec::<T>::new())?.is_empty());
        assert!(queue.alloc_values::<T>(usize::MAX).is_err());
        Ok(())
    }
    let queue = context().queue()?;
    check(&queue, [0u8, 1, 2, 3, u8::MAX])?;
    check(&queue, [0i8, 1, -2, i8::MIN, i8::MAX])?;
    check(&queue, [0u16, 1, 2, 3, u16::MAX])?;
    check(&queue, [0i16, 1, -2, i16::MIN, i16::MAX])?;
    check(&queue, [0u32, 1, 2, 3, u32::MAX])?;
    check(&queue, [0i32, 1, -2, i32::MIN, i32::MAX])?;
    check(&queue, [0u64, 1, 2, 3, u64::MAX])?;
    check(&queue, [0i64, 1, -2, i64::MIN, i64::MAX])?;
    check(&queue, [0f32, -1.5, f32::MIN_POSITIVE, f32::NEG_INFINITY, f32::MAX])?;
    check(&queue, [0f64, -1.5, f64::MIN_POSITIVE, f64::NEG_INFINITY, f64::MAX])
}

#[test]
fn copies_and_fills_keep_their_order() -> Result<()> {
    let queue = context().queue()?;
    let (a, b) = (queue.filled(1 << 20, 7)?, queue.zeroed(1 << 20)?);
    queue.copy(&a, 0, &b, 16, 1000)?;
    queue.fill(&a, 0, 1 << 20, 9)?;
    queue.fill(&b, 20, 3, 1)?;
    queue.write(&b, 1020, &[2, 3])?;
    let bytes = block_on(queue.read(&b, 0..1030))?;
    let expected = |index: usize| match index {
        20..23 => 1,
        1020 => 2,
        1021 => 3,
        16..1016 => 7,
        _ => 0,
    };
    assert!(bytes.iter().enumerate().all(|(index, byte)| *byte == expected(index)));
    assert!(matches!(queue.copy(&b, 0, &b, 10, 11), Err(Error::Range { .. })));
    assert!(matches!(queue.fill(&b, 1 << 20, 1, 0), Err(Error::Range { .. })));
    assert!(matches!(block_on(queue.read(&b, 5..(1 << 20) + 1)), Err(Error::Range { .. })));
    Ok(())
}

#[test]
fn upload_of_shared_memory_is_not_copied() -> Result<()> {
    let Some(context) = sharing() else { return Ok(()) };
    let queue = context.queue()?;
    let bytes = numbers(0..1000);
    // A slice of a column may start inside an allocation.
    let slice = bytes.slice(8..800);
    let buffer = queue.upload(slice.clone())?;
    assert_eq!(buffer.raw().host, slice.as_ptr() as usize);
    assert_eq!(context.pool().in_use(), 0);
    assert_eq!(context.counters().bytes_up, 792);
    let read = block_on(queue.read(&buffer, 8..24))?;
    assert_eq!(read.as_ptr() as usize, slice.as_ptr() as usize + 8);
    assert_eq!(to_numbers(&read), [2, 3]);
    Ok(())
}

#[test]
fn shared_memory_is_not_written() -> Result<()> {
    let Some(context) = sharing() else { return Ok(()) };
    let queue = context.queue()?;
    let host = numbers(0..100);
    let x = queue.upload(host.clone())?;
    let y = queue.zeroed(800)?;
    let written = [queue.write(&x, 0, &[1]), queue.fill(&x, 0, 8, 1), queue.copy(&y, 0, &x, 0, 8)];
    let errors = written.map(|result| result.unwrap_err().to_string());
    let reason = "its memory belongs to another library, which only allows reads";
    assert_eq!(errors, ["write", "fill", "copy"].map(|call| format!("{call}: {reason}")));
    assert_eq!(host, numbers(0..100));
    Ok(())
}

#[test]
fn read_of_shared_memory_is_not_copied() -> Result<()> {
    let Some(context) = sharing() else { return Ok(()) };
    let queue = context.queue()?;
    let x = queue.zeroed(1 << 20)?;
    add(&queue, &x, 3)?;
    let bytes = block_on(queue.read(&x, 16..1 << 20))?;
    assert_eq!(bytes.as_ptr() as usize, x.raw().host + 16);
    // The bytes keep the memory alive.
    drop(x);
    let others: Vec<Buffer> = (0..4).map(|_| queue.filled(1 << 20, 0)).collect::<Result<_>>()?;
    block_on(queue.finish())?;
    assert!(others.iter().all(|other| other.raw().host + 16 != bytes.as_ptr() as usize));
    assert!(to_numbers(&bytes).into_iter().all(|number| number == 3));
    Ok(())
}

#[test]
fn copied_memory_overlaps_in_chunks_and_comes_back() -> Result<()> {
    let plan = FaultPlan::masking(|info| info.unified_memory = false);
    let context = under(&plan);
    let queue = context.queue()?;
    // More than the limit of uploads in flight.
    let bytes = numbers(0..40 << 17);
    let x = queue.upload(bytes.clone())?;
    assert_eq!(x.raw().host, 0);
    add(&queue, &x, 1)?;
    let read = block_on(queue.read(&x, 8..x.len()))?;
    assert!(to_numbers(&read).into_iter().eq(2..(40 << 17) + 1));
    Ok(())
}

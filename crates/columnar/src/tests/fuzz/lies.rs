// SPDX-License-Identifier: Apache-2.0
//! Lies about arrays and schemas, and the promises that a liar must keep.

use arrow_device::{ArrayView, BufferKind, ImportedArray, cpu, metadata, schema};
use rand::rngs::StdRng;
use rand::{Rng, RngCore};

use super::producer::{Alive, Bytes, Node, Schema, Slot, integer};

/// Limit of a buffer in bytes. Lies that need more are taken back.
const MAX_BYTES: usize = 1 << 14;

/// Formats of every kind, and some that are none.
const FORMATS: [&str; 66] = [
    "n",
    "b",
    "c",
    "C",
    "s",
    "S",
    "i",
    "I",
    "l",
    "L",
    "e",
    "f",
    "g",
    "z",
    "Z",
    "vz",
    "u",
    "U",
    "vu",
    "d:38,10",
    "d:9,2,32",
    "d:18,2,64",
    "d:76,10,256",
    "d:99,1",
    "d:0,0",
    "d:5",
    "d:x,y",
    "d:10,-200",
    "w:0",
    "w:3",
    "w:-1",
    "w:70000",
    "w:",
    "tdD",
    "tdm",
    "tts",
    "ttm",
    "ttu",
    "ttn",
    "tss:",
    "tsm:UTC",
    "tsn:+99:99",
    "tsu:no/where",
    "tDs",
    "tDn",
    "tiM",
    "tiD",
    "tin",
    "+l",
    "+L",
    "+vl",
    "+vL",
    "+w:0",
    "+w:2",
    "+w:-3",
    "+w:999999999",
    "+s",
    "+m",
    "+r",
    "+ud:0,1",
    "+us:0,5,10",
    "+us:",
    "+ud:0,0",
    "+us:-1,300",
    "",
    "?",
];

/// Tells one lie about the schema.
pub(super) fn about_schema(root: &mut Schema, rng: &mut StdRng) {
    let mut count = 0;
    root.visit(&mut |_| count += 1);
    let target = rng.random_range(0..count);
    let mut index = 0;
    root.visit(&mut |schema| {
        if index == target {
            lie_about_schema(schema, index == 0, rng);
        }
        index += 1;
    });
}

fn lie_about_schema(schema: &mut Schema, is_root: bool, rng: &mut StdRng) {
    match rng.random_range(0..14) {
        0..3 => schema.format = Some(FORMATS[rng.random_range(0..FORMATS.len())].into()),
        3 => edit(schema.format.get_or_insert_default(), rng),
        4 => schema.format = None,
        5 => schema.name = [None, Some(vec![]), Some(vec![0xff, 0xfe])][rng.random_range(0..3)].clone(),
        6 => edit(schema.name.get_or_insert_default(), rng),
        7 => schema.flags = number(schema.flags, rng),
        8 => schema.n_children = count(schema.n_children, rng),
        9 => schema.has_children = false,
        10 | 11 => lie_about_children(&mut schema.children, &mut schema.n_children, rng),
        12 => {
            let mut values = schema.clone();
            values.dictionary = Slot::Null;
            schema.dictionary = slot(&schema.dictionary, values, rng);
        }
        _ if !is_root && rng.random() => schema.is_released = true,
        _ => {
            let mut lie = schema.metadata.clone().unwrap_or_else(|| metadata::encode([("key", "value")]).unwrap());
            for _ in 0..rng.random_range(1..4) {
                edit_word(&mut lie, rng);
            }
            // Metadata has no length of its own, so one that reaches further is no lie to detect.
            let is_cut = metadata::decode_slice(&lie).is_err_and(|error| error.to_string().contains("bytes expected at byte"));
            schema.metadata = (!is_cut).then_some(lie);
        }
    }
}

/// Tells one lie about the array.
pub(super) fn about_array(root: &mut Node, rng: &mut StdRng) {
    let mut count = 0;
    root.visit(&mut |_| count += 1);
    let target = rng.random_range(0..count);
    let mut index = 0;
    root.visit(&mut |node| {
        if index == target {
            lie_about_array(node, index == 0, rng);
        }
        index += 1;
    });
}

fn lie_about_array(node: &mut Node, is_root: bool, rng: &mut StdRng) {
    match rng.random_range(0..24) {
        0..2 => node.length = number(node.length, rng),
        2 => node.offset = number(node.offset, rng),
        3 => node.null_count = number(node.null_count, rng),
        4 => node.n_buffers = count(node.n_buffers, rng),
        5 => node.n_children = count(node.n_children, rng),
        6 if rng.random() => node.has_buffers = false,
        6 => node.has_children = false,
        7..9 => lie_about_children(&mut node.children, &mut node.n_children, rng),
        9 => {
            let mut values = node.clone();
            values.dictionary = Slot::Null;
            node.dictionary = slot(&node.dictionary, values, rng);
        }
        10 if !is_root => node.is_released = true,
        _ if node.buffers.is_empty() => node.length = number(node.length, rng),
        kind => {
            let index = rng.random_range(0..node.buffers.len());
            match kind {
                11 => node.buffers[index] = None,
                12 => {
                    let other = rng.random_range(0..node.buffers.len());
                    node.buffers.swap(index, other);
                }
                13 => node.buffers.truncate(index),
                14 => node.buffers.push(node.buffers[index].clone()),
                15 => node.buffers[index].get_or_insert_default().is_misaligned = true,
                16 => node.buffers[index].get_or_insert_default().bytes.clear(),
                _ => edit_word(&mut node.buffers[index].get_or_insert_default().bytes, rng),
            }
        }
    }
}

fn lie_about_children<T: Clone>(children: &mut Vec<Slot<T>>, count: &mut i64, rng: &mut StdRng) {
    if children.is_empty() {
        return;
    }
    let (index, other) = (rng.random_range(0..children.len()), rng.random_range(0..children.len()));
    match rng.random_range(0..5) {
        0 => children[index] = Slot::Null,
        1 => children[index] = Slot::Misaligned,
        2 => children.swap(index, other),
        3 => {
            children.remove(index);
            *count = children.len() as i64;
        }
        _ => {
            children.insert(other, children[index].clone());
            *count = children.len() as i64;
        }
    }
}

fn slot<T: Clone>(old: &Slot<T>, new: T, rng: &mut StdRng) -> Slot<T> {
    match (old, rng.random_range(0..3)) {
        (_, 0) => Slot::Misaligned,
        (Slot::To(_), 1) => Slot::Null,
        _ => Slot::To(Box::new(new)),
    }
}

/// A number near the old one, or one that is too large for any memory.
fn number(old: i64, rng: &mut StdRng) -> i64 {
    match rng.random_range(0..14) {
        0..3 => old.wrapping_add(1),
        3..6 => old.wrapping_sub(1),
        6 => 0,
        7 => 1,
        8 => -1,
        9 => rng.random_range(-3..30),
        10 => i64::MIN,
        11 => i64::MAX,
        12 => 1 << rng.random_range(61..63),
        _ => i64::MAX.wrapping_sub(old),
    }
}

/// A number near the old one, or one that no table has.
fn count(old: i64, rng: &mut StdRng) -> i64 {
    [old.wrapping_add(1), old.wrapping_sub(1), old.wrapping_add(2), 0, 1, -1, i64::MAX, i64::MIN, 1 << 33][rng.random_range(0..9)]
}

fn edit(text: &mut Vec<u8>, rng: &mut StdRng) {
    let at = rng.random_range(0..=text.len());
    match rng.random_range(0..3) {
        0 if at < text.len() => drop(text.remove(at)),
        1 if at < text.len() => text[at] = rng.random(),
        _ => text.insert(at, b"0123456789:,-+lsu\xff\xc3"[rng.random_range(0..19)]),
    }
}

/// Changes a byte, or an integer of one of the usual widths.
fn edit_word(bytes: &mut [u8], rng: &mut StdRng) {
    let width = [1, 4, 8, 16][rng.random_range(0..4)];
    let words = bytes.len() / width;
    if words == 0 {
        return;
    }
    let at = rng.random_range(0..words) * width;
    let word = &mut bytes[at..at + width];
    match rng.random_range(0..5) {
        0 => rng.fill_bytes(word),
        1 => word[rng.random_range(0..width)] = rng.random(),
        2 => word.fill([0, 0xff, 0x7f, 0x80][rng.random_range(0..4)]),
        // Part of a view: its length, its prefix, the index of its buffer, its offset.
        3 if width == 16 => {
            let part = rng.random_range(0..4) * 4;
            word[part..part + 4].copy_from_slice(&rng.random_range(-1i32..20).to_le_bytes());
        }
        _ => {
            let mut value = [0; 16];
            value[..width].copy_from_slice(word);
            let value = i128::from_le_bytes(value).wrapping_add(rng.random_range(-4..8));
            word.copy_from_slice(&value.to_le_bytes()[..width]);
        }
    }
}

/// Extends buffers to the sizes promised by lengths, offsets and types, which an importer cannot
/// check. Lies that promise too much are taken back.
pub(super) fn keep_promises(schema: &Schema, node: &mut Node, rng: &mut StdRng) {
    // The lengths of variadic buffers are read first, one for each buffer beyond the third.
    node.visit(&mut |node| {
        let (count, last) = (node.n_buffers.wrapping_sub(3), node.n_buffers.wrapping_sub(1));
        if (1..60).contains(&count)
            && let Some(Some(lengths)) = node.buffers.get_mut(last as usize)
        {
            extend(lengths, count as usize * 8, rng);
        }
    });
    let alive = Alive::default();
    let described = schema.export(&alive);
    // SAFETY: the schema keeps what its producer must.
    let Ok(field) = (unsafe { schema::field(&described) }) else { return };
    loop {
        // SAFETY: the import reads no buffers but the lengths above.
        let imported = unsafe { ImportedArray::import(cpu::as_cpu_array(node.export(&alive)), &field) };
        let Ok(imported) = imported else { return };
        if !keep(&imported.view(), node, rng) {
            return;
        }
    }
}

/// Returns whether anything changed.
fn keep(view: &ArrayView<'_>, node: &mut Node, rng: &mut StdRng) -> bool {
    let mut changed = false;
    for (index, buffer) in view.buffers().enumerate() {
        let Some(Some(actual)) = node.buffers.get(index) else { continue };
        let actual = actual.bytes.len();
        let last_offset = |node: &Node| {
            let BufferKind::Offsets(width) = view.buffer(1)?.kind else { return None };
            let last = (view.len() + view.offset()) * width;
            let offsets = &node.buffers.get(1)?.as_ref()?.bytes;
            Some((last..last + width, usize::try_from(integer(offsets.get(last..last + width)?)).unwrap_or(0)))
        };
        let (promised, range) = match buffer.len_bytes {
            Some(promised) => (promised, None),
            None => last_offset(node).map_or((0, None), |(range, promised)| (promised, Some(range))),
        };
        if promised <= actual {
            continue;
        }
        changed = true;
        if promised <= MAX_BYTES {
            if let Some(Some(buffer)) = node.buffers.get_mut(index) {
                extend(buffer, promised, rng);
            }
            continue;
        }
        let truth = actual.to_le_bytes();
        let (table, range) = match (buffer.kind, range) {
            (BufferKind::Bytes, Some(range)) => (1, range),
            (BufferKind::Variadic, _) => (view.num_buffers() - 1, (index - 2) * 8..(index - 1) * 8),
            _ => {
                (node.length, node.offset) = (0, 0);
                return true;
            }
        };
        let Some(Some(numbers)) = node.buffers.get_mut(table) else { continue };
        let width = range.len();
        numbers.bytes[range].copy_from_slice(&truth[..width]);
    }
    for (child, slot) in view.children().zip(&mut node.children) {
        changed |= slot.get_mut().is_some_and(|node| keep(&child, node, rng));
    }
    if let (Some(values), Some(node)) = (view.dictionary(), node.dictionary.get_mut()) {
        changed |= keep(&values, node, rng);
    }
    changed
}

fn extend(buffer: &mut Bytes, len: usize, rng: &mut StdRng) {
    let filler = [0, 0xff, 1][rng.random_range(0..3)];
    if buffer.bytes.len() < len {
        buffer.bytes.resize(len, filler);
    }
}

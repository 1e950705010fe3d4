// SPDX-License-Identifier: Apache-2.0
//! Predicates that a program's kernels ask of dictionaries: computed once for each dictionary that a run meets.

use std::sync::{Arc, Weak};

use columnar::{ColumnType, DeviceColumn};
use device::{Arg, Buffer, Queue};
use parking_lot::Mutex;

use super::Options;
use super::program::{Kernel, Loaded, for_rows, spread};
use crate::expr::Expr;
use crate::{Error, Result};

/// The predicates of a program, each with a kernel of its own behind the others.
#[derive(Debug, Clone)]
pub(super) struct Verdicts {
    options: Options,
    predicates: Vec<Arc<Predicate>>,
    /// For each kernel of the program, of which column's dictionary it asks which predicate.
    asked: Vec<Vec<(usize, usize)>>,
}

/// A predicate over the values of a dictionary.
#[derive(Debug)]
struct Predicate {
    expr: Expr,
    values: ColumnType,
    kernel: usize,
}

/// What a queue has computed, of which predicate and dictionary: as long as there is such a dictionary.
#[derive(Debug, Default)]
struct Known(Mutex<Vec<Answer>>);

#[derive(Debug)]
struct Answer {
    predicate: Arc<Predicate>,
    dictionary: Weak<DeviceColumn>,
    verdicts: Buffer,
}

impl Verdicts {
    /// What `kernels` ask; kernels that answer are added to them.
    pub fn of(kernels: &mut Vec<Kernel>, options: &Options) -> Verdicts {
        let mut predicates: Vec<Arc<Predicate>> = Vec::new();
        let (mut asked, mut answering) = (Vec::with_capacity(kernels.len()), Vec::new());
        for kernel in &*kernels {
            let verdicts = kernel.params.verdicts().iter().map(|verdict| {
                let is_known = |known: &Arc<Predicate>| known.expr == verdict.predicate && known.values == verdict.values;
                let index = predicates.iter().position(is_known).unwrap_or_else(|| {
                    let (expr, values) = (verdict.predicate.clone(), verdict.values.clone());
                    predicates.push(Arc::new(Predicate { expr, values, kernel: kernels.len() + answering.len() }));
                    let mut params = verdict.params.clone();
                    let (n, verdicts) = (params.named("n", "u64"), params.named("verdicts", "G u8 *RESTRICT"));
                    let statements = format!("{}    {verdicts}[row] = {};\n", verdict.statements, verdict.byte);
                    let body = for_rows(options.profile, "row", &n, &statements);
                    answering.push(Kernel::new(format!("verdict_{}", answering.len()), params, body));
                    predicates.len() - 1
                });
                (verdict.column, index)
            });
            asked.push(verdicts.collect());
        }
        kernels.append(&mut answering);
        Verdicts { options: options.clone(), predicates, asked }
    }

    /// What the dictionaries of a batch have to say to a kernel.
    pub fn for_kernel(&self, program: &Loaded<'_>, queue: &Queue, kernel: usize, batch: &[DeviceColumn]) -> Result<Vec<Buffer>> {
        let asked = self.asked.get(kernel).map_or(&[][..], Vec::as_slice);
        let each = asked.iter().map(|(column, predicate)| {
            let dictionary = batch.get(*column).and_then(DeviceColumn::dictionary);
            let dictionary = dictionary.ok_or_else(|| Error::Internal(format!("column {column} has no dictionary")))?;
            self.of_dictionary(program, queue, &self.predicates[*predicate], dictionary)
        });
        each.collect()
    }

    fn of_dictionary(
        &self,
        program: &Loaded<'_>,
        queue: &Queue,
        predicate: &Arc<Predicate>,
        dictionary: &Arc<DeviceColumn>,
    ) -> Result<Buffer> {
        let known = queue.extension::<Known>();
        let of_dictionary = Arc::downgrade(dictionary);
        let is_known = |known: &&Answer| Arc::ptr_eq(&known.predicate, predicate) && known.dictionary.ptr_eq(&of_dictionary);
        if let Some(known) = known.0.lock().iter().find(is_known) {
            return Ok(known.verdicts.clone());
        }
        let values = dictionary.len();
        let verdicts = queue.alloc(values)?;
        if values > 0 {
            let named = vec![("n", Arg::U64(values as u64)), ("verdicts", Arg::Buffer(&verdicts))];
            let grid = spread(queue, &self.options, values);
            program.launch_on(queue, predicate.kernel, grid, &[DeviceColumn::clone(dictionary)], None, named)?;
        }
        let mut known = known.0.lock();
        known.retain(|known| known.dictionary.strong_count() > 0);
        known.push(Answer { predicate: Arc::clone(predicate), dictionary: of_dictionary, verdicts: verdicts.clone() });
        Ok(verdicts)
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Predicates over dictionary columns: evaluated once for each value of a dictionary, then looked
//! up by code.

use std::sync::{Arc, Weak};

use columnar::{ColumnType, DeviceColumn};
use device::{Arg, Buffer, Queue};
use parking_lot::Mutex;

use super::program::{Kernel, Loaded, grid_for, row_loop};
use crate::expr::Expr;
use crate::ops::Options;
use crate::{Error, Result};

/// The dictionary predicates of a program, each with a kernel that evaluates it.
#[derive(Debug, Clone)]
pub(in crate::ops) struct DictionaryPredicates {
    options: Options,
    predicates: Vec<Arc<ValuePredicate>>,
    /// For each kernel of the program, the columns and the numbers of the predicates that it looks
    /// up.
    lookups: Vec<Vec<(usize, usize)>>,
}

/// A predicate over the values of a dictionary.
#[derive(Debug)]
struct ValuePredicate {
    expr: Expr,
    values: ColumnType,
    /// Position of the kernel that evaluates it.
    kernel: usize,
}

/// The tables that a queue has computed. A table goes with its dictionary.
#[derive(Debug, Default)]
struct PredicateCache(Mutex<Vec<PredicateTable>>);

/// The results of a predicate, a byte for each value of a dictionary.
#[derive(Debug)]
struct PredicateTable {
    predicate: Arc<ValuePredicate>,
    dictionary: Weak<DeviceColumn>,
    results: Buffer,
}

impl DictionaryPredicates {
    /// The predicates that `kernels` look up. Appends the kernels that evaluate them.
    pub fn of(kernels: &mut Vec<Kernel>, options: &Options) -> DictionaryPredicates {
        let mut predicates: Vec<Arc<ValuePredicate>> = Vec::new();
        let (mut lookups, mut evaluating) = (Vec::with_capacity(kernels.len()), Vec::new());
        for kernel in &*kernels {
            let columns = kernel.params.dictionary_predicates().iter().map(|lookup| {
                let is_known = |known: &Arc<ValuePredicate>| known.expr == lookup.predicate && known.values == lookup.values;
                let index = predicates.iter().position(is_known).unwrap_or_else(|| {
                    let (expr, values) = (lookup.predicate.clone(), lookup.values.clone());
                    predicates.push(Arc::new(ValuePredicate { expr, values, kernel: kernels.len() + evaluating.len() }));
                    let mut params = lookup.params.clone();
                    let (n, results) = (params.named("n", "u64"), params.named("results", "G u8 *RESTRICT"));
                    let statements = format!("{}    {results}[row] = {};\n", lookup.statements, lookup.byte);
                    let body = row_loop(options.profile, "row", &n, &statements);
                    evaluating.push(Kernel::new(format!("dictionary_predicate_{}", evaluating.len()), params, body));
                    predicates.len() - 1
                });
                (lookup.column, index)
            });
            lookups.push(columns.collect());
        }
        kernels.append(&mut evaluating);
        DictionaryPredicates { options: options.clone(), predicates, lookups }
    }

    /// The results that a kernel looks up, for the dictionaries of a batch.
    pub fn for_kernel(&self, program: &Loaded<'_>, queue: &Queue, kernel: usize, batch: &[DeviceColumn]) -> Result<Vec<Buffer>> {
        let lookups = self.lookups.get(kernel).map_or(&[][..], Vec::as_slice);
        let each = lookups.iter().map(|(column, predicate)| {
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
        predicate: &Arc<ValuePredicate>,
        dictionary: &Arc<DeviceColumn>,
    ) -> Result<Buffer> {
        let cache = queue.extension::<PredicateCache>();
        let of_dictionary = Arc::downgrade(dictionary);
        let is_cached =
            |table: &&PredicateTable| Arc::ptr_eq(&table.predicate, predicate) && table.dictionary.ptr_eq(&of_dictionary);
        if let Some(table) = cache.0.lock().iter().find(is_cached) {
            return Ok(table.results.clone());
        }
        let values = dictionary.len();
        let results = queue.alloc(values)?;
        if values > 0 {
            let named = vec![("n", Arg::U64(values as u64)), ("results", Arg::Buffer(&results))];
            let grid = grid_for(queue, &self.options, values);
            program.launch_on(queue, predicate.kernel, grid, &[DeviceColumn::clone(dictionary)], None, named)?;
        }
        let mut tables = cache.0.lock();
        tables.retain(|table| table.dictionary.strong_count() > 0);
        tables.push(PredicateTable { predicate: Arc::clone(predicate), dictionary: of_dictionary, results: results.clone() });
        Ok(results)
    }
}

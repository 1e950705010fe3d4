// SPDX-License-Identifier: Apache-2.0
//! Plans a [`GroupBy`]: from keys and aggregates to kernels.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use columnar::ColumnType;

use super::kernels::GroupKernels;
use super::key::{GroupKey, KeyOutput};
use super::var_width_min_max::VarWidthMinMax;
use super::{GroupBy, GroupMode, KernelIndices, Occupancy, private};
use crate::codegen::{CType, Params, Profile};
use crate::expr::{Aggregate, AggregateFunction, Expr, value_type};
use crate::function::Function;
use crate::ops::accumulate::{Accumulators, StateUse};
use crate::ops::join::FusedJoins;
use crate::ops::launch::output::Output;
use crate::ops::launch::primitives::Primitives;
use crate::ops::launch::program::Program;
use crate::ops::launch::projection::{Projection, Rows};
use crate::ops::launch::source::Source;
use crate::ops::select::Select;
use crate::ops::{Input, MAX_ROWS, Options};
use crate::{Error, Result};

/// Values of the keys' range for each row, at most, of groups that are array indexes.
const VALUES_PER_ROW: usize = 4;
/// Most keys that leave room for the arguments of a filter.
const MAX_KEYS_BESIDE_FILTER: usize = 4;

impl GroupBy {
    /// Aggregates the rows that pass the input's filter by `keys`; without keys, all of them.
    ///
    /// # Errors
    /// `Unsupported` if an expression, key or aggregate is not supported on the device.
    pub fn try_new(
        input: Input,
        keys: Vec<(Expr, Field)>,
        aggregates: Vec<(Aggregate, Field)>,
        options: Options,
    ) -> Result<GroupBy> {
        Self::planned(input, keys, aggregates, false, options)
    }

    /// With `distinct` the last key is the value of a DISTINCT.
    pub(super) fn planned(
        input: Input,
        keys: Vec<(Expr, Field)>,
        aggregates: Vec<(Aggregate, Field)>,
        distinct: bool,
        options: Options,
    ) -> Result<GroupBy> {
        let mut source = Source::try_new(input.clone())?;
        let (group_keys, expressions) = plan_keys(&mut source, &keys, distinct, &options)?;
        let mode = choose_mode(&group_keys, &aggregates, &options);
        let aggregates: Vec<(Aggregate, Field)> =
            aggregates.into_iter().map(|(aggregate, field)| (aggregate.plain(), field)).collect();
        let computed = |expr: &Expr| !matches!(expr, Expr::Column(_));
        let wide_keys = mode.stores_keys() && keys.iter().any(|(expr, _)| computed(expr));
        let extreme_arguments = aggregates.iter().any(|(aggregate, _)| {
            let mut computed = aggregate.arguments.iter().filter(|argument| computed(argument));
            aggregate.function.row().family.selects_value()
                && computed.any(|argument| {
                    let mut params = Params::new();
                    let value = source.writer(options.profile, &mut params).eval(argument);
                    matches!(value, Ok(value) if value.ctype == CType::Str || value.ctype.is_wide())
                })
        });
        // Two kernels read each row, so a filter runs once before them. Nor is there room for the
        // arguments of many keys and of a filter.
        let filtered = !mode.is_dense()
            && input.filter.is_some()
            && (options.profile == Profile::Cpu || keys.len() > MAX_KEYS_BESIDE_FILTER);
        if wide_keys || extreme_arguments || filtered {
            return materialize(input, keys, aggregates, distinct, options);
        }
        build(Planned { source, input, keys, group_keys, expressions, mode, aggregates }, options)
    }

    /// Aggregates the output of joins, fused with them: joined rows are not written. `keys` and
    /// `aggregates` are over the joins' output. `None` if several kernels would search each row, so
    /// that writing the joined rows is better.
    ///
    /// # Errors
    /// `Unsupported` if an expression, key or aggregate is not supported on the device.
    pub fn over_joins(
        joined: &FusedJoins,
        keys: &[(Expr, Field)],
        aggregates: &[(Aggregate, Field)],
        options: Options,
    ) -> Result<Option<GroupBy>> {
        let mut source = joined.source().clone();
        let keys = keys.iter().map(|(expr, field)| Ok((joined.over(expr)?, field.clone()))).collect::<Result<Vec<_>>>()?;
        let aggregates = aggregates.iter().map(|(aggregate, field)| Ok((joined.aggregate(aggregate)?.plain(), field.clone())));
        let aggregates = aggregates.collect::<Result<Vec<_>>>()?;
        let (group_keys, expressions) = plan_keys(&mut source, &keys, false, &options)?;
        let mode = choose_mode(&group_keys, &aggregates, &options);
        let grouped = aggregates.iter().any(|(aggregate, _)| aggregate.groups_values());
        if grouped || !mode.is_dense() {
            return Ok(None);
        }
        let input = Input { schema: source.schema.clone(), types: source.types.clone(), filter: None };
        let group = build(Planned { source, input, keys, group_keys, expressions, mode, aggregates }, options)?;
        let one = group.extremes.is_empty() && group.feeds.iter().all(|feed| feed.updates.len() == 1);
        Ok(one.then_some(group))
    }
}

/// Plans keys. With `distinct` the last one is the value of a DISTINCT.
fn plan_keys(
    source: &mut Source,
    keys: &[(Expr, Field)],
    distinct: bool,
    options: &Options,
) -> Result<(Vec<GroupKey>, Vec<Expr>)> {
    let planned = keys.iter().enumerate().map(|(index, (expr, field))| {
        // The values of a DISTINCT feed other states. A dictionary of them would serve nothing.
        let alone = keys.len() == 1 && !distinct;
        let distinct = distinct && index + 1 == keys.len();
        GroupKey::plan(source, index, expr, field, distinct, alone, options)
    });
    Ok(planned.collect::<Result<Vec<_>>>()?.into_iter().unzip())
}

/// Most groups that are array indexes.
///
/// On GPUs they are a few for each row. To write and to read an empty state takes less time than to
/// find a row's group in a hash table. Keys of fact tables often come in order, so that rows nearby
/// have states nearby.
fn most_dense_groups(aggregates: &[(Aggregate, Field)], options: &Options) -> usize {
    // After each batch the winners of all groups are copied.
    let has_winners = aggregates.iter().any(|(aggregate, field)| {
        let is_word = field.data_type().primitive_width().is_some_and(|width| width <= size_of::<u64>());
        aggregate.function.row().family.selects_value() && !is_word
    });
    // Two words for each aggregate. Small data of tests and models has memory to spare, so the
    // threshold's divisor leaves this limit alone.
    let state_bytes = size_of::<u64>() * 2 * aggregates.len().max(1);
    let fitting = (options.dense_bytes / state_bytes).min(MAX_ROWS);
    let most = match options.profile {
        Profile::Gpu if !has_winners => options.dense_groups.max(options.grouped_rows.saturating_mul(VALUES_PER_ROW)),
        Profile::Cpu | Profile::Gpu => options.dense_groups,
    };
    most.min(fitting)
}

/// Chooses how rows find their groups.
fn choose_mode(keys: &[GroupKey], aggregates: &[(Aggregate, Field)], options: &Options) -> GroupMode {
    let groups = keys.iter().try_fold(1u64, |groups, key| groups.checked_mul(key.span()?));
    if let Some(groups) = groups
        && groups <= most_dense_groups(aggregates, options) as u64
    {
        return GroupMode::Dense { groups: groups as usize };
    }
    let Some(bits) = keys.iter().try_fold(0u32, |bits, key| Some(bits + key.bits()?)) else { return GroupMode::Wide };
    let nulls = keys.iter().filter(|key| key.nullable).count() as u32;
    match keys {
        [key] => GroupMode::Inline { null_slot: key.nullable },
        _ if bits + nulls <= 64 => GroupMode::Inline { null_slot: false },
        _ => GroupMode::Wide,
    }
}

/// An aggregation over a [`Select`] that materializes keys and arguments as columns.
fn materialize(
    input: Input,
    keys: Vec<(Expr, Field)>,
    aggregates: Vec<(Aggregate, Field)>,
    distinct: bool,
    options: Options,
) -> Result<GroupBy> {
    let schema = input.schema.clone();
    let mut outputs: Vec<(Expr, Field)> = Vec::new();
    let mut column = |expr: Expr, data_type: DataType| {
        let known = outputs.iter().position(|(known, field)| *known == expr && *field.data_type() == data_type);
        Expr::Column(known.unwrap_or_else(|| {
            outputs.push((expr, Field::new(format!("c{}", outputs.len()), data_type, true)));
            outputs.len() - 1
        }))
    };
    let keys = keys.into_iter().map(|(expr, field)| (column(expr, field.data_type().clone()), field)).collect::<Vec<_>>();
    let mut over = Vec::with_capacity(aggregates.len());
    for (mut aggregate, field) in aggregates {
        if aggregate.arguments.is_empty() {
            aggregate.filter = aggregate.filter.map(|filter| column(filter, DataType::Boolean));
        } else {
            let filter = aggregate.filter.take();
            for argument in &mut aggregate.arguments {
                let data_type = argument.data_type(&schema)?;
                let value = match &filter {
                    None => argument.clone(),
                    // NULL for rows that the filter removes: aggregates skip it.
                    Some(filter) => {
                        let data_type = value_type(&data_type).clone();
                        Expr::Case { branches: vec![(filter.clone(), argument.clone())], otherwise: None, data_type }
                    }
                };
                let data_type = value.data_type(&schema)?;
                *argument = column(value, data_type);
            }
        }
        over.push((aggregate, field));
    }
    let select = Select::try_new(input, outputs, options.clone())?;
    let input = Input { schema: select.schema().clone(), types: select.output_types().to_vec(), filter: None };
    let mut source = Source::try_new(input.clone())?;
    let (group_keys, expressions) = plan_keys(&mut source, &keys, distinct, &options)?;
    let mode = choose_mode(&group_keys, &over, &options);
    let group = build(Planned { source, input, keys, group_keys, expressions, mode, aggregates: over }, options)?;
    // Inner aggregations read the same columns.
    Ok(GroupBy { materialized: Some(Box::new(select)), ..group })
}

/// The parts that an aggregation is built of.
struct Planned {
    source: Source,
    input: Input,
    /// The keys as they were given.
    keys: Vec<(Expr, Field)>,
    group_keys: Vec<GroupKey>,
    /// The expressions that kernels evaluate for the keys.
    expressions: Vec<Expr>,
    mode: GroupMode,
    aggregates: Vec<(Aggregate, Field)>,
}

/// An inner aggregation of distinct values, and its result as a source.
struct DistinctFeed {
    value: Expr,
    filter: Option<Expr>,
    is_sketch: bool,
    groups: GroupBy,
    source: Source,
}

/// The states of the aggregates, and the inner aggregations that feed some of them.
fn plan_states(planned: &Planned, private: bool, options: &Options) -> Result<(Accumulators, Occupancy, Vec<DistinctFeed>)> {
    let Planned { source, keys, group_keys, mode, aggregates, .. } = planned;
    let is_dense = mode.is_dense();
    let has_bits = match mode {
        GroupMode::Dense { groups } => !private && groups * size_of::<u64>() > options.shared_bytes,
        GroupMode::Inline { .. } | GroupMode::Wide => false,
    };
    let usage = StateUse { atomic: !private, grouped: !group_keys.is_empty() && (!is_dense || has_bits) };
    let mut accumulators = Accumulators { keyed: !group_keys.is_empty(), ..Accumulators::default() };
    let occupancy = match is_dense && !group_keys.is_empty() {
        _ if has_bits => Occupancy::Bits,
        true => Occupancy::Count(accumulators.count_rows(0)),
        false => Occupancy::Count(0),
    };
    let mut distincts: Vec<DistinctFeed> = Vec::new();
    for (aggregate, _) in aggregates {
        if !aggregate.groups_values() {
            accumulators.plan(aggregate, source, 0, usage)?;
            continue;
        }
        let [argument] = aggregate.arguments.as_slice() else {
            return Err(Error::Unsupported(format!(
                "{:?}(DISTINCT) of several columns is not supported on the device",
                aggregate.function
            )));
        };
        let is_sketch = aggregate.function.row().family.is_sketch();
        let same =
            |known: &DistinctFeed| (&known.value, &known.filter, known.is_sketch) == (argument, &aggregate.filter, is_sketch);
        let index = match distincts.iter().position(same) {
            Some(known) => known,
            None => {
                let groups = inner_groups(&planned.input, keys, aggregate, argument, options)?;
                let over = Input { schema: groups.schema().clone(), types: groups.output_types().to_vec(), filter: None };
                let (value, filter) = (argument.clone(), aggregate.filter.clone());
                distincts.push(DistinctFeed { value, filter, is_sketch, groups, source: Source::try_new(over)? });
                distincts.len() - 1
            }
        };
        // A sketch aggregates the ranks, whose column follows that of the registers.
        let value = Expr::Column(keys.len() + usize::from(is_sketch));
        let over = Aggregate { arguments: vec![value], filter: None, distinct: false, ..aggregate.clone() };
        accumulators.plan(&over, &distincts[index].source, index + 1, StateUse { grouped: false, ..usage })?;
    }
    Ok((accumulators, occupancy, distincts))
}

/// The stores of MIN and MAX of values that exceed a state slot.
fn plan_extremes(accumulators: &Accumulators, source: &Source, options: &Options) -> Result<Vec<VarWidthMinMax>> {
    let extremes = accumulators.states.iter().enumerate();
    let extremes = extremes.filter(|(_, state)| state.kind.refers_to_row()).map(|(index, state)| {
        let mut params = Params::new();
        let argument = state.argument()?;
        Ok(VarWidthMinMax::new(index, source.writer(options.profile, &mut params).eval(argument)?.ctype))
    });
    extremes.collect()
}

fn build(planned: Planned, options: Options) -> Result<GroupBy> {
    let private = private(&options);
    let (accumulators, occupancy, distincts) = plan_states(&planned, private, &options)?;
    let Planned { source, keys, group_keys, expressions, mode, aggregates, .. } = planned;
    let extremes = plan_extremes(&accumulators, &source, &options)?;
    let mut group = GroupKernels { options: options.clone(), mode, occupancy, keys: group_keys, accumulators, extremes, private };

    let mut kernels = vec![group.grow_kernel(), group.insert_kernel(), group.occupied_kernel()];
    let indices = KernelIndices { grow: 0, insert: 1, occupied: 2 };
    let mut feeds = vec![group.feed(0, source, expressions, &mut kernels)?];
    let mut inner = Vec::with_capacity(distincts.len());
    for (index, DistinctFeed { groups, mut source, .. }) in distincts.into_iter().enumerate() {
        let fields = keys.iter().enumerate().map(|(key, (_, field))| (Expr::Column(key), field.clone())).collect::<Vec<_>>();
        let (_, expressions) = plan_keys(&mut source, &fields, false, &options)?;
        feeds.push(group.feed(index + 1, source, expressions, &mut kernels)?);
        inner.push(groups);
    }
    let mut extremes = std::mem::take(&mut group.extremes);
    for extreme in &mut extremes {
        group.winner_kernels(extreme, &feeds[0].source, &mut kernels)?;
    }
    group.extremes = extremes;

    let fields: Vec<Field> =
        keys.iter().map(|(_, field)| field).chain(aggregates.iter().map(|(_, field)| field)).cloned().collect();
    let outputs = outputs(&group, &aggregates)?;
    let types: Vec<ColumnType> = group
        .keys
        .iter()
        .map(|key| key.ty().clone())
        .chain(outputs[group.keys.len()..].iter().flatten().map(|output| (*output.ty).clone()))
        .collect();
    let compacted = group.mode.is_dense() && !group.keys.is_empty();
    let results = Projection::try_new("group", &group, outputs, compacted, &options, &mut kernels)?;
    Ok(GroupBy {
        materialized: None,
        schema: Arc::new(Schema::new(fields)),
        types,
        primitives: Primitives::new(&options),
        program: Program::new("GroupBy", &options, kernels),
        options,
        mode: group.mode,
        occupancy: group.occupancy,
        keys: group.keys,
        accumulators: group.accumulators,
        extremes: group.extremes,
        private,
        feeds,
        distincts: inner,
        results,
        kernels: indices,
    })
}

/// The columns of the result kernels: keys that are not stored, then aggregates.
fn outputs(group: &GroupKernels, aggregates: &[(Aggregate, Field)]) -> Result<Vec<Option<Output>>> {
    let mut outputs = Vec::with_capacity(group.keys.len() + aggregates.len());
    for key in &group.keys {
        outputs.push(match (&group.mode, &key.output) {
            (GroupMode::Wide, KeyOutput::Dictionary(codes)) => Some(codes.clone()),
            (GroupMode::Wide, KeyOutput::Plain | KeyOutput::Codes(_)) => None,
            (GroupMode::Dense { .. } | GroupMode::Inline { .. }, _) => Some(key.store.clone()),
        });
    }
    for (index, (_, field)) in aggregates.iter().enumerate() {
        let mut params = Params::new();
        let value = group.value(&mut group.writer(&mut params), group.keys.len() + index)?;
        outputs.push(Some(Output::of(&value, field.data_type(), &format!("r{index}"))?));
    }
    Ok(outputs)
}

/// The inner aggregation for an aggregate of distinct values: a group for each combination of keys
/// and value. For a sketch, a group for each combination of keys and register, with the rank of the
/// register. Rows with a NULL value are left out.
fn inner_groups(input: &Input, keys: &[(Expr, Field)], of: &Aggregate, value: &Expr, options: &Options) -> Result<GroupBy> {
    let known = Expr::Not(Arc::new(Expr::IsNull(Arc::new(value.clone()))));
    let conditions = input.filter.iter().chain(&of.filter).cloned().chain([known]).collect();
    let inner = Input { filter: Some(Expr::And(conditions)), ..input.clone() };
    let of_hash = |function, data_type| Expr::Call { function, arguments: vec![value.clone()], data_type };
    let (value, aggregates) = if of.function.row().family.is_sketch() {
        let rank = Aggregate {
            function: AggregateFunction::Max,
            arguments: vec![of_hash(Function::SketchRank, DataType::UInt8)],
            filter: None,
            distinct: false,
            data_type: DataType::UInt8,
        };
        let register = of_hash(Function::SketchRegister, DataType::UInt16);
        (register, vec![(rank, Field::new("rank", DataType::UInt8, true))])
    } else {
        (value.clone(), vec![])
    };
    let mut inner_keys: Vec<(Expr, Field)> = keys
        .iter()
        .enumerate()
        .map(|(index, (expr, field))| (expr.clone(), field.clone().with_name(format!("k{index}"))))
        .collect();
    let data_type = value.data_type(&input.schema)?;
    inner_keys.push((value, Field::new("value", data_type, true)));
    GroupBy::planned(inner, inner_keys, aggregates, true, options.clone())
}

// SPDX-License-Identifier: Apache-2.0
//! From keys and aggregates to the kernels of a [`GroupBy`].

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use columnar::ColumnType;

use super::draft::Draft;
use super::key::{Form, Key};
use super::var_width_min_max::VarWidthMinMax;
use super::{GroupBy, Kernels, Mode, private};
use crate::codegen::{CType, Params, Profile};
use crate::expr::{Aggregate, AggregateFunction, Expr, value_type};
use crate::function::Function;
use crate::ops::accumulate::{Accumulators, StateKind, StateUse};
use crate::ops::join::Joined;
use crate::ops::output::Output;
use crate::ops::primitives::Primitives;
use crate::ops::program::Program;
use crate::ops::project::{Projection, Rows};
use crate::ops::select::Select;
use crate::ops::source::Source;
use crate::ops::{Input, Options};
use crate::{Error, Result};

/// Keys that leave room for a filter's arguments.
const FEW_KEYS: usize = 4;

impl GroupBy {
    /// Aggregates the rows that pass the input's filter by `keys`; without keys, all of them.
    ///
    /// # Errors
    /// `Unsupported` where an expression, key or aggregate is not supported on the device.
    pub fn try_new(
        input: Input,
        keys: Vec<(Expr, Field)>,
        aggregates: Vec<(Aggregate, Field)>,
        options: Options,
    ) -> Result<GroupBy> {
        Self::planned(input, keys, aggregates, false, options)
    }

    /// The aggregation; `distinct`: the last key is the value of a DISTINCT.
    fn planned(
        input: Input,
        keys: Vec<(Expr, Field)>,
        aggregates: Vec<(Aggregate, Field)>,
        distinct: bool,
        options: Options,
    ) -> Result<GroupBy> {
        let mut source = Source::try_new(input.clone())?;
        let planned = plan_keys(&mut source, &keys, distinct, &options)?;
        let mode = choose(&planned.0, &options);
        let aggregates: Vec<(Aggregate, Field)> =
            aggregates.into_iter().map(|(aggregate, field)| (aggregate.plain(), field)).collect();
        let computed = |expr: &Expr| !matches!(expr, Expr::Column(_));
        let wide_keys = matches!(mode, Mode::Wide) && keys.iter().any(|(expr, _)| computed(expr));
        let best_arguments = aggregates.iter().any(|(aggregate, _)| {
            use AggregateFunction::{AnyValue, Max, Min};
            let mut computed = aggregate.arguments.iter().filter(|argument| computed(argument));
            matches!(aggregate.function, Min | Max | AnyValue)
                && computed.any(|argument| {
                    let mut params = Params::new();
                    let value = source.writer(options.profile, &mut params).eval(argument);
                    matches!(value, Ok(value) if value.ctype == CType::Str || value.ctype.is_wide())
                })
        });
        // Two kernels look at each row, one of them with a branch for each: they had better see the survivors alone. Nor is
        // there room for the arguments of many keys and of a filter.
        let filtered = !matches!(mode, Mode::Dense { .. })
            && input.filter.is_some()
            && (options.profile == Profile::Cpu || keys.len() > FEW_KEYS);
        if wide_keys || best_arguments || filtered {
            return materialised(input, keys, aggregates, distinct, options);
        }
        build(source, input, keys, planned, mode, aggregates, options)
    }

    /// Aggregates what joins give, `keys` and `aggregates` being over their output: each row goes through the joins where it is
    /// aggregated, and is never written. `None` where it had better be, since several kernels would look at each row.
    ///
    /// # Errors
    /// `Unsupported` where an expression, key or aggregate is not supported on the device.
    pub fn over_joins(
        joined: &Joined,
        keys: &[(Expr, Field)],
        aggregates: &[(Aggregate, Field)],
        options: Options,
    ) -> Result<Option<GroupBy>> {
        let mut source = joined.source().clone();
        let keys = keys.iter().map(|(expr, field)| Ok((joined.over(expr)?, field.clone()))).collect::<Result<Vec<_>>>()?;
        let aggregates = aggregates.iter().map(|(aggregate, field)| Ok((joined.aggregate(aggregate)?.plain(), field.clone())));
        let aggregates = aggregates.collect::<Result<Vec<_>>>()?;
        let planned = plan_keys(&mut source, &keys, false, &options)?;
        let mode = choose(&planned.0, &options);
        let grouped = aggregates.iter().any(|(aggregate, _)| aggregate.groups_values());
        if grouped || !matches!(mode, Mode::Dense { .. }) {
            return Ok(None);
        }
        let input = Input { schema: source.schema.clone(), types: source.types.clone(), filter: None };
        let group = build(source, input, keys, planned, mode, aggregates, options)?;
        let one = group.bests.is_empty() && group.feeds.iter().all(|feed| feed.updates.len() == 1);
        Ok(one.then_some(group))
    }
}

/// Plans keys; `distinct`: the last one is the value of a DISTINCT.
fn plan_keys(source: &mut Source, keys: &[(Expr, Field)], distinct: bool, options: &Options) -> Result<(Vec<Key>, Vec<Expr>)> {
    let planned = keys.iter().enumerate().map(|(index, (expr, field))| {
        let distinct = distinct && index + 1 == keys.len();
        Key::plan(source, index, expr, field, distinct, keys.len() == 1, options)
    });
    Ok(planned.collect::<Result<Vec<_>>>()?.into_iter().unzip())
}

/// The way to a group number.
fn choose(keys: &[Key], options: &Options) -> Mode {
    let groups = keys.iter().try_fold(1u64, |groups, key| groups.checked_mul(key.span()?));
    if let Some(groups) = groups
        && groups <= options.dense_groups as u64
    {
        return Mode::Dense { groups: groups as usize };
    }
    let Some(bits) = keys.iter().try_fold(0u32, |bits, key| Some(bits + key.bits()?)) else { return Mode::Wide };
    let nulls = keys.iter().filter(|key| key.nullable).count() as u32;
    match keys {
        [key] => Mode::Inline { null_slot: key.nullable },
        _ if bits + nulls <= 64 => Mode::Inline { null_slot: false },
        _ => Mode::Wide,
    }
}

/// An aggregation over a [`Select`] that computes keys and arguments, so that they are columns.
fn materialised(
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
                    // NULL where the filter leaves the row out: aggregates pass over it.
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
    let before = Select::try_new(input, outputs, options.clone())?;
    let input = Input { schema: before.schema().clone(), types: before.output_types().to_vec(), filter: None };
    let mut source = Source::try_new(input.clone())?;
    let planned = plan_keys(&mut source, &keys, distinct, &options)?;
    let mode = choose(&planned.0, &options);
    let mut group = build(source, input, keys, planned, mode, over, options)?;
    // Inner aggregations read the same columns.
    group.before = Some(Box::new(before));
    Ok(group)
}

fn build(
    source: Source,
    input: Input,
    keys: Vec<(Expr, Field)>,
    (planned, expressions): (Vec<Key>, Vec<Expr>),
    mode: Mode,
    aggregates: Vec<(Aggregate, Field)>,
    options: Options,
) -> Result<GroupBy> {
    let private = private(&options);
    let usage = StateUse { atomic: !private, grouped: !planned.is_empty() && !matches!(mode, Mode::Dense { .. }) };
    let mut accumulators = Accumulators { keyed: !planned.is_empty(), ..Accumulators::default() };
    let occupied = match (&mode, planned.is_empty()) {
        (Mode::Dense { .. }, false) => accumulators.count_rows(0),
        _ => 0,
    };
    let mut distincts = Vec::new();
    let mut inners: Vec<(Expr, Option<Expr>, bool, Source)> = Vec::new();
    for (aggregate, _) in &aggregates {
        if !aggregate.groups_values() {
            accumulators.plan(aggregate, &source, 0, usage)?;
            continue;
        }
        let [argument] = aggregate.arguments.as_slice() else {
            return Err(Error::Unsupported(format!(
                "{:?}(DISTINCT) of several columns is not supported on the device",
                aggregate.function
            )));
        };
        let sketched = aggregate.function == AggregateFunction::ApproxDistinct;
        let same = (argument, &aggregate.filter, sketched);
        let feed = match inners.iter().position(|(argument, filter, sketched, _)| (argument, filter, *sketched) == same) {
            Some(known) => known,
            None => {
                let inner = inner_groups(&input, &keys, aggregate, argument, &options)?;
                let over = Input { schema: inner.schema().clone(), types: inner.output_types().to_vec(), filter: None };
                inners.push((argument.clone(), aggregate.filter.clone(), sketched, Source::try_new(over)?));
                distincts.push(inner);
                inners.len() - 1
            }
        };
        // A sketch is of the ranks, which lie behind the registers.
        let value = Expr::Column(keys.len() + usize::from(sketched));
        let over = Aggregate { arguments: vec![value], filter: None, distinct: false, ..aggregate.clone() };
        accumulators.plan(&over, &inners[feed].3, feed + 1, StateUse { grouped: false, ..usage })?;
    }
    let bests = accumulators
        .states
        .iter()
        .enumerate()
        .filter(|(_, state)| matches!(state.kind, StateKind::VarWidthMin | StateKind::VarWidthMax))
        .map(|(index, state)| {
            let mut params = Params::new();
            let argument = state.argument()?;
            Ok(VarWidthMinMax::new(index, source.writer(options.profile, &mut params).eval(argument)?.ctype))
        })
        .collect::<Result<Vec<_>>>()?;
    let mut draft = Draft { options: options.clone(), mode, keys: planned, accumulators, bests, private };

    let mut kernels = vec![draft.grow_kernel(), draft.insert_kernel(), draft.seal_kernel(), draft.occupied_kernel(occupied)];
    let numbers = Kernels { grow: 0, insert: 1, seal: 2, occupied: 3 };
    let mut feeds = vec![draft.feed(0, source, expressions, &mut kernels)?];
    for (index, (.., mut source)) in inners.into_iter().enumerate() {
        let fields = keys.iter().enumerate().map(|(key, (_, field))| (Expr::Column(key), field.clone())).collect::<Vec<_>>();
        let (_, expressions) = plan_keys(&mut source, &fields, false, &options)?;
        feeds.push(draft.feed(index + 1, source, expressions, &mut kernels)?);
    }
    let mut bests = std::mem::take(&mut draft.bests);
    for best in &mut bests {
        draft.winner_kernels(best, &feeds[0].source, &mut kernels)?;
    }
    draft.bests = bests;

    let fields: Vec<Field> =
        keys.iter().chain(&[]).map(|(_, field)| field.clone()).chain(aggregates.iter().map(|(_, field)| field.clone())).collect();
    let mut outputs = Vec::with_capacity(fields.len());
    for key in &draft.keys {
        outputs.push(match (&draft.mode, &key.form) {
            (Mode::Wide, Form::Dictionary(codes)) => Some(codes.clone()),
            (Mode::Wide, _) => None,
            _ => Some(key.store.clone()),
        });
    }
    for (index, (_, field)) in aggregates.iter().enumerate() {
        let at = draft.keys.len() + index;
        let mut params = Params::new();
        let mut writer = draft.writer(&mut params);
        let value = draft.value(&mut writer, at)?;
        outputs.push(Some(Output::of(&value, field.data_type(), &format!("r{index}"))?));
    }
    let types: Vec<ColumnType> = draft
        .keys
        .iter()
        .map(|key| key.ty().clone())
        .chain(outputs[draft.keys.len()..].iter().flatten().map(|output| (*output.ty).clone()))
        .collect();
    let compacted = matches!(draft.mode, Mode::Dense { .. }) && !draft.keys.is_empty();
    let results = Projection::try_new("group", &draft, outputs, compacted, &options, &mut kernels)?;
    Ok(GroupBy {
        before: None,
        schema: Arc::new(Schema::new(fields)),
        types,
        primitives: Primitives::try_new(&options)?,
        program: Program::try_new("GroupBy", &options, kernels)?,
        options,
        mode: draft.mode,
        keys: draft.keys,
        accumulators: draft.accumulators,
        bests: draft.bests,
        private,
        feeds,
        distincts,
        results,
        kernels: numbers,
    })
}

/// The inner aggregation of an aggregate that looks at each value once: a group for each set of keys and value; of a sketch, for
/// each set of keys and register, with the register's rank. Rows whose value is NULL are left out.
fn inner_groups(input: &Input, keys: &[(Expr, Field)], of: &Aggregate, value: &Expr, options: &Options) -> Result<GroupBy> {
    let known = Expr::Not(Box::new(Expr::IsNull(Box::new(value.clone()))));
    let conditions = input.filter.iter().chain(&of.filter).cloned().chain([known]).collect();
    let inner = Input { filter: Some(Expr::And(conditions)), ..input.clone() };
    let of_hash = |function, data_type| Expr::Call { function, arguments: vec![value.clone()], data_type };
    let (value, aggregates) = match of.function {
        AggregateFunction::ApproxDistinct => {
            let rank = Aggregate {
                function: AggregateFunction::Max,
                arguments: vec![of_hash(Function::SketchRank, DataType::UInt8)],
                filter: None,
                distinct: false,
                data_type: DataType::UInt8,
            };
            let register = of_hash(Function::SketchRegister, DataType::UInt16);
            (register, vec![(rank, Field::new("rank", DataType::UInt8, true))])
        }
        _ => (value.clone(), vec![]),
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

// SPDX-License-Identifier: Apache-2.0
//! A broad sample of programs: every type, expression, cast, aggregate and kind of key.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, new_empty_array};
use arrow::compute::kernels::numeric;
use arrow::datatypes::{DataType, Field, IntervalUnit, Schema, SchemaRef, TimeUnit};
use columnar::{Carrier, ColumnType, Layout};
use kernels::codegen::Profile;
use kernels::expr::{Aggregate, AggregateFamily, AggregateFunction, ArithmeticOp, CompareOp, Expr, Literal, LiteralValue};
use kernels::function::{self, ArgumentType, DatePart, Function, Granularity, InexactFunction, ResultType};
use kernels::ops::{ArrowLayout, Concat, Decode, Gather, GroupBy, Input, NullStripping, Options, Reduce, Select, Sort, SortKey};
use kernels::ops::{Frame, FrameBound, FrameUnits, NullTreatment, Quantile, Window, WindowCall, WindowFunction};
use kernels::support::{supports, supports_aggregate, supports_cast, supports_output};

/// A program.
pub struct Sample {
    /// Its operator and types.
    pub name: String,
    /// The source: prelude and kernels.
    pub text: String,
}

/// Programs of a few types with another work-group size than the profile's.
pub fn sized_programs(work_group_size: u32) -> Vec<Sample> {
    let options = Options { work_group_size, compaction_tile_rows: 32 * work_group_size, ..Options::new(Profile::Gpu) };
    let mut sampler = Sampler { options, seen: HashSet::new(), samples: Vec::new() };
    for data_type in [DataType::Int64, DataType::Float64, DataType::Utf8View] {
        sampler.aggregates(&data_type);
        sampler.keys(&data_type);
        sampler.sort(&data_type);
        sampler.window(&data_type);
    }
    sampler.queries();
    sampler.samples
}

/// Programs of one profile, without duplicates.
pub fn programs(profile: Profile) -> Vec<Sample> {
    let mut sampler = Sampler { options: Options::new(profile), seen: HashSet::new(), samples: Vec::new() };
    for data_type in types() {
        sampler.expressions(&data_type);
        sampler.casts(&data_type);
        sampler.aggregates(&data_type);
        sampler.keys(&data_type);
        sampler.arrow_layout(&data_type);
        sampler.decode(&data_type);
        sampler.rows(&data_type);
        sampler.null_stripping(&data_type);
        sampler.sort(&data_type);
        sampler.window(&data_type);
    }
    sampler.resident();
    sampler.wide();
    sampler.queries();
    sampler.samples
}

/// Every supported type, at least once per layout.
pub fn types() -> Vec<DataType> {
    use DataType::*;
    use TimeUnit::*;
    let zone = |name: &str| Some(Arc::from(name));
    let dictionary = |key, value| Dictionary(Box::new(key), Box::new(value));
    vec![
        Boolean,
        Int8,
        Int16,
        Int32,
        Int64,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
        Float32,
        Float64,
        Decimal32(9, 2),
        Decimal64(18, 4),
        Decimal128(15, 2),
        Decimal128(38, 10),
        Decimal256(60, 10),
        Date32,
        Date64,
        Time32(Second),
        Time32(Millisecond),
        Time64(Microsecond),
        Time64(Nanosecond),
        Timestamp(Second, None),
        Timestamp(Millisecond, None),
        Timestamp(Microsecond, zone("+02:00")),
        Timestamp(Nanosecond, None),
        Timestamp(Nanosecond, zone("UTC")),
        Timestamp(Nanosecond, zone("Europe/Berlin")),
        Duration(Second),
        Duration(Millisecond),
        Duration(Microsecond),
        Duration(Nanosecond),
        Interval(IntervalUnit::MonthDayNano),
        Utf8,
        LargeUtf8,
        Utf8View,
        Binary,
        LargeBinary,
        BinaryView,
        FixedSizeBinary(5),
        dictionary(Int32, Utf8),
        dictionary(UInt8, LargeUtf8),
        dictionary(Int16, Utf8View),
        dictionary(Int64, Int32),
        dictionary(UInt16, Decimal128(15, 2)),
        Null,
    ]
}

/// Calls of every function with arguments of this type, supported or not. Overloads of a row are
/// called as the row says; functions with a generator are listed here.
fn calls(value: &DataType, a: &Expr, b: &Expr) -> Vec<Expr> {
    let overloads =
        Function::PLAIN.iter().flat_map(|function| function.row().overloads.iter().map(|overload| (*function, overload)));
    let mut all: Vec<Expr> =
        overloads.filter_map(|(function, overload)| overload_call(function, overload.arguments, value, a, b)).collect();
    all.extend(generator_calls(value, a, b));
    for function in InexactFunction::ALL {
        all.push(call(Function::Inexact(*function), [a.clone(), b.clone()][..function.arity()].to_vec(), value));
    }
    for part in ["year", "isoyear", "week", "doy", "dow", "month", "hour", "second", "ms"] {
        let part = DatePart::parse(part).unwrap();
        all.push(call(Function::DatePart(part), vec![a.clone()], &DataType::Int32));
    }
    all.push(call(Function::DatePart(DatePart::Nanosecond), vec![a.clone()], &DataType::Int64));
    all.push(call(Function::DatePart(DatePart::Epoch), vec![a.clone()], &DataType::Float64));
    for granularity in ["second", "hour", "week", "month", "quarter", "year"] {
        all.push(call(Function::DateTrunc(Granularity::parse(granularity).unwrap()), vec![a.clone()], value));
    }
    all
}

fn call(function: Function, arguments: Vec<Expr>, data_type: &DataType) -> Expr {
    Expr::Call { function, arguments, data_type: data_type.clone() }
}

fn int(number: i128) -> Expr {
    Expr::Literal(Literal { data_type: DataType::Int64, value: LiteralValue::Int(number) })
}

/// A call of an overload: its first argument is a column of the type, others are columns or
/// integers. `None` if no argument has the type.
fn overload_call(function: Function, arguments: &[ArgumentType], value: &DataType, a: &Expr, b: &Expr) -> Option<Expr> {
    let takes = |argument: &ArgumentType| match argument {
        ArgumentType::String => value.is_string(),
        ArgumentType::Int64 => *value == DataType::Int64,
        ArgumentType::Float => value.is_floating(),
        ArgumentType::Float64 => *value == DataType::Float64,
        ArgumentType::WideNumber | ArgumentType::Number => value.is_numeric(),
    };
    let mut columns = [a, b].into_iter().cycle();
    let argument = |argument: &ArgumentType| match argument {
        ArgumentType::Int64 if *value != DataType::Int64 => Some(int(2)),
        other => takes(other).then(|| columns.next().cloned())?,
    };
    let values = arguments.iter().map(argument).collect::<Option<Vec<_>>>()?;
    let data_type = match function.row().result {
        ResultType::Boolean => DataType::Boolean,
        ResultType::Integer if *value == DataType::LargeUtf8 => DataType::Int64,
        ResultType::Integer => DataType::Int32,
        ResultType::ShortString => DataType::Utf8,
        ResultType::Slice | ResultType::NewString | ResultType::Argument | ResultType::Generated => value.clone(),
    };
    takes(arguments.first()?).then(|| call(function, values, &data_type))
}

/// Calls of functions with a hand-written generator, and of functions within others.
fn generator_calls(value: &DataType, a: &Expr, b: &Expr) -> Vec<Expr> {
    use Function::*;
    let text = |text: &str| Expr::Literal(Literal { data_type: value.clone(), value: LiteralValue::Bytes(text.into()) });
    let (a, b) = (|| a.clone(), || b.clone());
    let number = if *value == DataType::LargeUtf8 { DataType::Int64 } else { DataType::Int32 };
    let digits = || Expr::Cast { expr: Expr::IsNull(b().into()).into(), to: DataType::Int64, checked: true };
    let both = || call(ConcatOperator, vec![a(), b()], value);
    let mut all = vec![
        call(SplitPart, vec![a(), text(","), int(-2)], value),
        call(Concat, vec![a(), text("-"), b()], value),
        call(ConcatOperator, vec![call(Upper, vec![a()], value), b()], value),
        Expr::Compare { op: CompareOp::Lt, left: both().into(), right: call(ConcatWs, vec![text("-"), b(), a()], value).into() },
        Expr::Case {
            branches: vec![(Expr::IsNull(a().into()), call(Repeat, vec![b(), int(3)], value))],
            otherwise: Some(call(Upper, vec![a()], value).into()),
            data_type: value.clone(),
        },
        call(ConcatWs, vec![text(","), a(), b()], value),
        call(Round, vec![a(), int(-1)], value),
        call(Round, vec![a(), int(1)], value),
        call(Trunc, vec![a(), int(1)], value),
        call(Round, vec![a(), digits()], value),
        call(Trunc, vec![a(), digits()], value),
        call(
            Log,
            vec![Expr::Literal(Literal { data_type: DataType::Float64, value: LiteralValue::Float(2.0) }), a()],
            &DataType::Float64,
        ),
        call(IntervalField(function::IntervalField::Nanos { negated: true }), vec![a()], &DataType::Int64),
        Expr::Like { ignores_case: false, expr: both().into(), pattern: text("a%_b").into() },
        call(Gcd, vec![a(), b()], value),
        call(Lcm, vec![a(), b()], value),
        call(Nanvl, vec![a(), b()], value),
        call(Greatest, vec![a(), b()], value),
        call(Least, vec![a(), b(), a()], value),
        call(SketchRegister, vec![a()], &DataType::UInt16),
        call(SketchRank, vec![a()], &DataType::UInt8),
        call(DateBin { months: false }, vec![a(), int(900_000_000_000), int(0)], value),
        call(DateBin { months: true }, vec![a(), int(3), int(0)], value),
        call(ToDate, vec![a(), text("%d/%m/%Y"), text("%A, %d %b %G-W%V-%u (%j %q) %C%y %U %W %g")], &DataType::Date32),
        call(
            ToTimestamp,
            vec![a(), text("%F %T%.f%z"), text("%m/%d/%Y %I:%M %p"), text("%+"), text("%s%.3f %z"), text("%F %9f %#z")],
            &DataType::Timestamp(TimeUnit::Nanosecond, None),
        ),
        call(AddInterval { checked: true }, vec![a(), int(1), int(-2), int(3)], value),
        call(StringOfRows, vec![a(), int(2)], value),
        call(ListOfRows, vec![a(), int(2)], &DataType::new_list(value.clone(), true)),
    ];
    all.extend([CharacterLength, OctetLength, BitLength].map(|function| call(function, vec![both()], &number)));
    all.extend([Abs, Floor, Ceil, Round, Trunc, Degrees, Radians].map(|function| call(function, vec![a()], value)));
    all
}

/// Every function is supported with arguments of one of the types, so that the gates compile it.
#[test]
fn every_function_is_sampled() {
    let mut missing: HashSet<&str> = Function::NAMES.iter().copied().collect();
    // `rows` samples the functions of lists.
    let of_lists = [Function::ListLength, Function::ListView, Function::ListKey { nulls_first: false }];
    for function in of_lists {
        missing.remove(function.row().name);
    }
    for data_type in types() {
        let input = input(&data_type);
        for expr in calls(value_type(&data_type), &Expr::Column(0), &Expr::Column(1)) {
            if let Expr::Call { function, .. } = &expr
                && supports_output(&expr, &input.schema).is_ok()
            {
                missing.remove(function.row().name);
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}

struct Sampler {
    options: Options,
    seen: HashSet<String>,
    samples: Vec<Sample>,
}

/// Expressions per program: enough to share work, few enough to find one that spills.
const OUTPUTS: usize = 8;

impl Sampler {
    fn add(&mut self, name: &str, programs: Vec<String>) {
        for (part, text) in programs.into_iter().enumerate() {
            // A projection of plain columns has no kernel.
            if text.contains("KERNEL void") && self.seen.insert(text.clone()) {
                self.samples.push(Sample { name: format!("{name} [{part}]"), text });
            }
        }
    }

    fn select(&mut self, name: &str, input: &Input, outputs: Vec<Expr>) {
        let fields = outputs.into_iter().map(|expr| {
            let data_type = expr.data_type(&input.schema).unwrap();
            (expr, Field::new("out", data_type, true))
        });
        let select = Select::try_new(input.clone(), fields.collect(), self.options.clone());
        self.add(name, select.unwrap_or_else(|error| panic!("{name}: {error}")).programs());
    }

    fn reduce(&mut self, name: &str, input: &Input, aggregates: Vec<Aggregate>) {
        let aggregates = aggregates.into_iter().map(output).collect();
        let reduce = Reduce::try_new(input.clone(), aggregates, self.options.clone());
        self.add(name, reduce.unwrap_or_else(|error| panic!("{name}: {error}")).programs());
    }

    fn group(&mut self, name: &str, input: &Input, keys: Vec<Expr>, aggregates: Vec<Aggregate>) -> GroupBy {
        let keys = keys.into_iter().map(|expr| {
            let data_type = expr.data_type(&input.schema).unwrap();
            (expr, Field::new("key", data_type, true))
        });
        let aggregates = aggregates.into_iter().map(output).collect();
        let group = GroupBy::try_new(input.clone(), keys.collect(), aggregates, self.options.clone());
        let group = group.unwrap_or_else(|error| panic!("{name}: {error}"));
        self.add(name, group.programs());
        group
    }

    /// More columns, keys and aggregates than registers hold, of all types. Most arguments are in
    /// the argument table in half of the programs.
    fn wide(&mut self) {
        let types: Vec<ColumnType> =
            types().iter().cycle().take(2 * types().len()).map(|ty| ColumnType::of(ty, true).unwrap()).collect();
        let columns: Vec<Expr> = (0..types.len()).map(Expr::Column).collect();
        let numbers = columns.iter().zip(&types).filter_map(|(column, ty)| Some((column.clone(), sum_type(&ty.data_type)?)));
        let sums: Vec<Aggregate> = numbers
            .flat_map(|(column, sum)| {
                let Expr::Column(index) = column else { return vec![] };
                let max = aggregate(AggregateFunction::Max, Some(column.clone()), types[index].data_type.clone());
                vec![aggregate(AggregateFunction::Sum, Some(column), sum), max]
            })
            .collect();
        let none = Expr::And(columns.iter().map(|column| Expr::IsNull(Arc::new(column.clone()))).collect());
        for filter in [None, Some(none)] {
            let input = Input { schema: schema(&types), types: types.clone(), filter };
            for max_arg_bytes in [self.options.max_arg_bytes, 1024] {
                let own = std::mem::replace(&mut self.options.max_arg_bytes, max_arg_bytes);
                self.select("all types", &input, columns.clone());
                self.group("group by all types", &input, columns.clone(), sums.clone());
                self.reduce("aggregates of all types", &input, sums.clone());
                self.options.max_arg_bytes = own;
            }
        }
    }

    /// All expressions over one type, with and without a filter.
    fn expressions(&mut self, data_type: &DataType) {
        let input = input(data_type);
        let value = value_type(data_type);
        let (a, b, flag) = (Expr::Column(0), Expr::Column(1), Expr::Column(3));
        let constant = || Expr::Literal(some_literal(value));
        let mut exprs = vec![
            a.clone(),
            b.clone(),
            flag.clone(),
            Expr::IsNull(a.clone().into()),
            Expr::Coalesce(vec![a.clone(), b.clone(), constant()]),
            Expr::Case {
                branches: vec![(flag.clone(), a.clone()), (Expr::IsNull(b.clone().into()), constant())],
                otherwise: Some(b.clone().into()),
                data_type: value.clone(),
            },
            Expr::Negate(a.clone().into()),
            Expr::TotalOrder(a.clone().into()),
        ];
        use CompareOp::*;
        for op in [Eq, NotEq, Lt, LtEq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom] {
            exprs.push(Expr::Compare { op, left: a.clone().into(), right: b.clone().into() });
            exprs.push(Expr::Compare { op, left: a.clone().into(), right: constant().into() });
        }
        for (count, negated) in [(1, false), (3, true), (100, false)] {
            let list = (0..count).map(|at| literal(value, at)).collect();
            exprs.push(Expr::InList { expr: a.clone().into(), list, negated });
        }
        let pattern = |text: &str| Expr::Literal(Literal { data_type: value.clone(), value: LiteralValue::Bytes(text.into()) });
        for pattern in [b.clone(), pattern("a"), pattern("a%"), pattern("%a"), pattern("%a%"), pattern("a_%b")] {
            for ignores_case in [false, true] {
                exprs.push(Expr::Like { ignores_case, expr: a.clone().into(), pattern: pattern.clone().into() });
            }
        }
        if *data_type == DataType::Boolean {
            exprs.push(Expr::Not(a.clone().into()));
            exprs.push(Expr::And(vec![a.clone(), b.clone(), flag.clone()]));
            exprs.push(Expr::Or(vec![a.clone(), Expr::Not(b.clone().into()), flag.clone()]));
            exprs.extend([Some(true), Some(false), None].map(|truth| Expr::IsTruth(a.clone().into(), truth)));
        }
        exprs.extend(arithmetic(value, &a, &b));
        exprs.extend(calls(value, &a, &b));
        exprs.retain(|expr| supports_output(expr, &input.schema).is_ok());
        for chunk in exprs.chunks(OUTPUTS) {
            self.select(&format!("select {data_type}"), &input, chunk.to_vec());
        }
        let filter = exprs.iter().find(|expr| matches!(expr, Expr::Compare { op: Lt, .. }));
        let filtered = Input { filter: Some(filter.unwrap_or(&flag).clone()), ..input };
        for chunk in exprs.chunks(OUTPUTS) {
            self.select(&format!("select {data_type} where"), &filtered, chunk.to_vec());
        }
    }

    /// Casts from one type to every other.
    fn casts(&mut self, from: &DataType) {
        let input = input(from);
        // Casts to dictionaries are casts to their values.
        let plain = |to: &DataType| value_type(to) == to && to != from;
        let targets: Vec<DataType> = types().into_iter().filter(|to| plain(to) && supports_cast(from, to).is_ok()).collect();
        for checked in [true, false] {
            for chunk in targets.chunks(OUTPUTS) {
                let casts = chunk.iter().map(|to| cast(Expr::Column(0), to, checked));
                self.select(&format!("cast {from}"), &input, casts.collect());
            }
        }
    }

    /// Every aggregate of a type, without keys and with each kind of key.
    fn aggregates(&mut self, data_type: &DataType) {
        let input = input(data_type);
        let all = aggregates(data_type, &input.schema);
        // One kind of key per chunk, alternating between chunks, because compilation takes time.
        let kinds = [("dense", vec![4]), ("dense two", vec![4, 5]), ("inline", vec![6]), ("wide", vec![6, 7])];
        for chunk in all.chunks(OUTPUTS) {
            let (kind, keys) = &kinds[self.samples.len() % kinds.len()];
            self.reduce(&format!("reduce {data_type}"), &input, chunk.to_vec());
            let keys = keys.iter().map(|key| Expr::Column(*key)).collect();
            self.group(&format!("group by {kind}: {data_type}"), &input, keys, chunk.to_vec());
        }
    }

    /// Groups by a key of the type, partitions of groups, and values of DISTINCT that are merged.
    fn keys(&mut self, data_type: &DataType) {
        let input = input(data_type);
        let count = || aggregate(AggregateFunction::Count, None, DataType::Int64);
        let sum = || aggregate(AggregateFunction::Sum, Some(Expr::Column(6)), DataType::Int64);
        for keys in [vec![2], vec![0, 4]] {
            let name = format!("group by {data_type}: columns {keys:?}");
            let keys = keys.into_iter().map(Expr::Column).collect();
            let group = self.group(&name, &input, keys, vec![count(), sum()]);
            if group.may_freeze() {
                self.add(&format!("{name}: partition"), group.set_aside_partition().unwrap().programs());
            }
        }
        let values = aggregate(AggregateFunction::Count, Some(Expr::Column(2)), DataType::Int64);
        let distinct = Aggregate { distinct: true, ..values };
        let name = format!("DISTINCT {data_type}");
        let group = self.group(&name, &input, vec![Expr::Column(6)], vec![distinct]);
        let merge = group.distinct_merge(0).unwrap();
        // Few values are array indexes.
        assert!(merge.is_some() || values_are_few(data_type), "{name}");
        if let Some(merge) = merge {
            self.add(&format!("{name}: merge"), merge.programs());
        }
    }

    /// Conversion to Arrow's layout of a type, from every layout.
    fn arrow_layout(&mut self, data_type: &DataType) {
        let layouts = layouts(data_type).into_iter().flat_map(|layout| [true, false].map(|nullable| (layout.clone(), nullable)));
        let types: Vec<ColumnType> = layouts
            .map(|(layout, nullable)| ColumnType { data_type: data_type.clone(), nullable, layout, bounds: None })
            .collect();
        let converter = ArrowLayout::try_new(schema(&types), types, self.options.clone());
        let name = format!("Arrow layout of {data_type}");
        self.add(&name, converter.unwrap_or_else(|error| panic!("{name}: {error}")).programs());
    }

    /// Dictionaries of a type as plain values.
    fn decode(&mut self, data_type: &DataType) {
        let DataType::Dictionary(..) = data_type else { return };
        let fields = [true, false].map(|nullable| Field::new("x", data_type.clone(), nullable));
        let name = format!("decode {data_type}");
        let decode = Decode::try_new(Arc::new(Schema::new(fields.to_vec())), self.options.clone());
        self.add(&name, decode.unwrap_or_else(|error| panic!("{name}: {error}")).programs());
    }

    /// Concatenation, lists and gathers of rows of a type, from every layout.
    fn rows(&mut self, data_type: &DataType) {
        let layouts = layouts(data_type).into_iter();
        let types: Vec<ColumnType> =
            layouts.map(|layout| ColumnType { data_type: data_type.clone(), nullable: true, layout, bounds: None }).collect();
        let concat = Concat::try_new(schema(&types), types.clone(), self.options.clone()).unwrap();
        self.add("concat", concat.programs());
        let lists = DataType::new_list(data_type.clone(), true);
        let list = Literal { data_type: lists, value: LiteralValue::List(new_empty_array(data_type)) };
        self.select(&format!("list of {data_type}"), &input(data_type), vec![Expr::Literal(list)]);
        let layout = |elements: &ColumnType| Layout::List(Box::new(elements.clone()));
        let lists = DataType::new_list(data_type.clone(), true);
        let of_lists = |ty| ColumnType { data_type: lists.clone(), nullable: true, layout: layout(ty), bounds: None };
        let of_lists: Vec<ColumnType> = types.iter().map(of_lists).collect();
        let key = |column| {
            let (function, arguments) = (Function::ListKey { nulls_first: column % 2 == 0 }, vec![Expr::Column(column)]);
            Expr::Call { function, arguments, data_type: DataType::LargeBinary }
        };
        let lists = (0..of_lists.len()).flat_map(|column| {
            let length = [Function::ListLength, Function::ListView].map(|function| (function, DataType::UInt64));
            length.map(|(function, data_type)| call(function, vec![Expr::Column(column)], &data_type))
        });
        let keys = (0..of_lists.len()).map(key).chain(lists).collect();
        let input = Input { schema: schema(&of_lists), types: of_lists, filter: None };
        self.select(&format!("keys of lists of {data_type}"), &input, keys);
        for gather in [Gather::try_new, Gather::with_copied_views] {
            let gather = gather(schema(&types), types.clone(), self.options.clone());
            self.add(&format!("gather {data_type}"), gather.unwrap_or_else(|error| panic!("{data_type}: {error}")).programs());
        }
    }

    /// Arguments and results of external functions of the type, from every layout.
    fn null_stripping(&mut self, data_type: &DataType) {
        let layouts = layouts(data_type).into_iter();
        let types: Vec<ColumnType> =
            layouts.map(|layout| ColumnType { data_type: data_type.clone(), nullable: true, layout, bounds: None }).collect();
        let argument = |column| (Expr::Column(column), Field::new("argument", data_type.clone(), true));
        let arguments = (0..types.len()).map(argument).collect();
        // External functions take values of fixed width only.
        if let Ok(stripping) = NullStripping::try_new(schema(&types), types, arguments, self.options.clone()) {
            self.add(&format!("null stripping of {data_type}"), stripping.programs());
        }
    }

    /// Sorts by a key of the type: alone, with others, and with a limit.
    fn sort(&mut self, data_type: &DataType) {
        let input = input(data_type);
        let key = |column, descending| SortKey { expr: Expr::Column(column), descending, nulls_first: !descending };
        let keys = [
            (vec![key(2, false)], None),
            (vec![key(0, true), key(4, false)], None),
            (vec![key(4, true), key(0, false)], Some(10)),
        ];
        for (keys, fetch) in keys {
            let outputs = vec![(Expr::Column(0), Field::new("out", data_type.clone(), true))];
            let sort = Sort::try_new(input.clone(), keys, outputs, fetch, self.options.clone());
            let sort = sort.unwrap_or_else(|error| panic!("{data_type}: {error}"));
            self.add(&format!("sort by {data_type}"), sort.programs());
            if let Some(merge) = sort.merge().unwrap() {
                self.add(&format!("merge by {data_type}"), merge.programs());
            }
        }
    }

    /// Windows over a type: peers, values of other rows and aggregates.
    fn window(&mut self, data_type: &DataType) {
        let input = input(data_type);
        let sliding = Frame { units: FrameUnits::Rows, start: FrameBound::Preceding(7), end: FrameBound::CurrentRow };
        let default = Some(some_literal(value_type(data_type)));
        let mut functions = vec![
            (WindowFunction::CumeDist, DataType::Float64),
            (WindowFunction::Ntile(3), DataType::UInt64),
            (
                WindowFunction::Lag { value: Expr::Column(0), offset: 2, default, nulls: NullTreatment::Respect },
                data_type.clone(),
            ),
            (WindowFunction::NthValue(Expr::Column(2), -1), data_type.clone()),
            (WindowFunction::NthNonNull(Expr::Column(2), 3), data_type.clone()),
        ];
        for (offset, nulls) in [(-1, NullTreatment::Ignore), (-3, NullTreatment::IgnoreBounded)] {
            let function = WindowFunction::Lag { value: Expr::Column(2), offset, default: None, nulls };
            functions.push((function, data_type.clone()));
        }
        for (known, distinct) in [(false, false), (true, false), (false, true)] {
            let function = WindowFunction::ArrayAgg { value: Expr::Column(0), ignore_nulls: known, distinct };
            functions.push((function, DataType::new_list(data_type.clone(), true)));
        }
        if *data_type == DataType::LargeUtf8 {
            for distinct in [false, true] {
                functions
                    .push((WindowFunction::StringAgg { strings: Expr::Column(0), skipped: 2, distinct }, DataType::LargeUtf8));
            }
        }
        if value_type(data_type).is_decimal() || value_type(data_type).is_floating() {
            for quantile in [Quantile::Median, Quantile::Percentile(0.3)] {
                for distinct in [false, true] {
                    let function = WindowFunction::Quantile { quantile, value: Expr::Column(0), distinct };
                    functions.push((function, value_type(data_type).clone()));
                }
            }
        }
        let all = aggregates(data_type, &input.schema).into_iter();
        functions.extend(all.map(|aggregate| (WindowFunction::Aggregate(aggregate.clone()), aggregate.data_type)));
        for (at, chunk) in functions.chunks(OUTPUTS / 2).enumerate() {
            let [by_group, by_key] =
                [FrameUnits::Groups, FrameUnits::Range { descending: false }].map(|units| Frame { units, ..sliding });
            let frame = [Frame::RUNNING, sliding, by_group, by_key][at % 4];
            let order = if frame == by_key { vec![Expr::Column(6)] } else { vec![Expr::Column(0), Expr::Column(2)] };
            let calls = chunk.iter().map(|(function, data_type)| {
                (WindowCall { function: function.clone(), frame }, Field::new("out", data_type.clone(), true))
            });
            // DISTINCT is not supported over every frame.
            let outputs = vec![(Expr::Column(0), Field::new("out", data_type.clone(), true))];
            let calls = calls.filter(|call| {
                Window::try_new(input.clone(), vec![], order.clone(), vec![], vec![call.clone()], self.options.clone()).is_ok()
            });
            let partition = vec![Expr::Column(4)];
            let window = Window::try_new(input.clone(), partition, order.clone(), outputs, calls.collect(), self.options.clone());
            self.add(&format!("window {data_type}"), window.unwrap_or_else(|error| panic!("{data_type}: {error}")).programs());
        }
        let units = match data_type {
            DataType::Date32 | DataType::Date64 | DataType::Timestamp(_, _) => {
                Some(FrameUnits::IntervalRange { descending: false })
            }
            DataType::Utf8View => Some(FrameUnits::NonArithmeticRange),
            DataType::Decimal128(19.., _) => Some(FrameUnits::Range128 { descending: false }),
            DataType::Decimal256(_, _) => Some(FrameUnits::Range256 { descending: false }),
            _ => None,
        };
        if let Some(units) = units {
            let frame = Frame { units, start: FrameBound::Preceding(1 << 32), ..sliding };
            let call = WindowCall { function: WindowFunction::NthValue(Expr::Column(0), 1), frame };
            let (order, calls) = (vec![Expr::Column(0)], vec![(call, Field::new("out", data_type.clone(), true))]);
            let window = Window::try_new(input.clone(), vec![], order, vec![], calls, self.options.clone());
            self.add(&format!("{units:?} {data_type}"), window.unwrap_or_else(|error| panic!("{data_type}: {error}")).programs());
        }
    }

    /// Narrow carriers and bounds, as in resident tables.
    fn resident(&mut self) {
        let decimal = DataType::Decimal128(15, 2);
        let carriers = [(Carrier::I32, 20), (Carrier::I64, 40), (Carrier::I64, 62), (Carrier::I128, 90)];
        for (carrier, bits) in carriers {
            for nullable in [true, false] {
                let bounds = Some((-(1i128 << bits), (1i128 << bits) - 1));
                let ty = ColumnType { data_type: decimal.clone(), nullable, layout: Layout::Fixed(carrier), bounds };
                let schema = Schema::new(vec![Field::new("a", decimal.clone(), true), Field::new("b", decimal.clone(), true)]);
                let input = Input { schema: Arc::new(schema), types: vec![ty.clone(), ty], filter: None };
                let (a, b) = (Expr::Column(0), Expr::Column(1));
                let name = format!("{decimal} in {carrier:?}, {bits} bits, nullable {nullable}");
                let exprs: Vec<Expr> =
                    arithmetic(&decimal, &a, &b).into_iter().filter(|expr| supports(expr, &input.schema).is_ok()).collect();
                self.select(&name, &input, exprs);
                let all = aggregates(&decimal, &input.schema);
                let all: Vec<Aggregate> = all.into_iter().filter(|aggregate| aggregate.filter.is_none()).collect();
                for chunk in all.chunks(OUTPUTS) {
                    self.reduce(&name, &input, chunk.to_vec());
                    self.group(&name, &input, vec![b.clone()], chunk.to_vec());
                }
            }
        }
        // Strings as dictionary codes.
        for (codes, bounds) in [(Carrier::U8, (0, 3)), (Carrier::U16, (0, 1023))] {
            let layout = Layout::Dictionary { codes, values: Layout::Offsets32.into() };
            let ty = ColumnType { data_type: DataType::Utf8View, nullable: false, layout, bounds: Some(bounds) };
            let schema =
                Schema::new(vec![Field::new("a", DataType::Utf8View, false), Field::new("b", DataType::Utf8View, false)]);
            let equal = Expr::Compare {
                op: CompareOp::Eq,
                left: Expr::Column(0).into(),
                right: Expr::Literal(some_literal(&DataType::Utf8View)).into(),
            };
            let input = Input { schema: Arc::new(schema), types: vec![ty.clone(), ty], filter: Some(equal) };
            let name = format!("codes in {codes:?}");
            self.select(&name, &input, vec![Expr::Column(0), Expr::Column(1)]);
            let all = aggregates(&DataType::Utf8View, &input.schema);
            let all: Vec<Aggregate> = all.into_iter().filter(|aggregate| aggregate.filter.is_none()).collect();
            self.group(&name, &input, vec![Expr::Column(0), Expr::Column(1)], all);
        }
    }

    /// TPC-H Q1 and Q6: several expressions share columns, and several aggregates share groups.
    fn queries(&mut self) {
        let decimal = DataType::Decimal128(15, 2);
        for (carrier, bits) in [(Carrier::I32, 24), (Carrier::I64, 50), (Carrier::I128, 50)] {
            let money = || ColumnType {
                data_type: decimal.clone(),
                nullable: false,
                layout: Layout::Fixed(carrier),
                bounds: Some((0, (1 << bits) - 1)),
            };
            let flag = || ColumnType {
                data_type: DataType::Utf8View,
                nullable: false,
                layout: Layout::Dictionary { codes: Carrier::U8, values: Layout::Offsets32.into() },
                bounds: Some((0, 3)),
            };
            let date = ColumnType {
                data_type: DataType::Date32,
                nullable: false,
                layout: Layout::Fixed(Carrier::I32),
                bounds: Some((0, 16383)),
            };
            let types = vec![money(), money(), money(), money(), flag(), flag(), date];
            let names = ["quantity", "price", "discount", "tax", "returnflag", "linestatus", "shipdate"];
            let fields = names.iter().zip(&types).map(|(name, ty)| Field::new(*name, ty.data_type.clone(), false));
            let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
            let column = |name: &str| Expr::Column(schema.index_of(name).unwrap());
            let day = |day| Expr::Literal(Literal { data_type: DataType::Date32, value: LiteralValue::Int(day) });
            let money_literal = |cents| Expr::Literal(Literal { data_type: decimal.clone(), value: LiteralValue::Int(cents) });
            let compare = |op, left: Expr, right: Expr| Expr::Compare { op, left: left.into(), right: right.into() };
            let sum = |expr: Expr| {
                let data_type = sum_type(&expr.data_type(&schema).unwrap()).unwrap();
                aggregate(AggregateFunction::Sum, Some(expr), data_type)
            };
            let avg = |expr: Expr| {
                let data_type = avg_type(&expr.data_type(&schema).unwrap());
                aggregate(AggregateFunction::Avg, Some(expr), data_type)
            };
            let op = |op, left: Expr, right: Expr| {
                let data_type =
                    arithmetic_type(op, &left.data_type(&schema).unwrap(), &right.data_type(&schema).unwrap()).unwrap();
                Expr::Arithmetic { op, left: left.into(), right: right.into(), data_type }
            };
            use ArithmeticOp::*;
            let revenue = op(Multiply, column("price"), op(Subtract, money_literal(100), column("discount")));
            let charge = op(Multiply, revenue.clone(), op(Add, money_literal(100), column("tax")));

            let filter = compare(CompareOp::LtEq, column("shipdate"), day(10471));
            let q1 = Input { schema: schema.clone(), types: types.clone(), filter: Some(filter) };
            let sums = vec![
                sum(column("quantity")),
                sum(column("price")),
                sum(revenue.clone()),
                sum(charge.clone()),
                avg(column("quantity")),
                avg(column("price")),
                avg(column("discount")),
                aggregate(AggregateFunction::Count, None, DataType::Int64),
            ];
            self.group(&format!("Q1 on {carrier:?}"), &q1, vec![column("returnflag"), column("linestatus")], sums);

            let filter = Expr::And(vec![
                compare(CompareOp::GtEq, column("shipdate"), day(8766)),
                compare(CompareOp::Lt, column("shipdate"), day(9131)),
                compare(CompareOp::GtEq, column("discount"), money_literal(5)),
                compare(CompareOp::LtEq, column("discount"), money_literal(7)),
                compare(CompareOp::Lt, column("quantity"), money_literal(2400)),
            ]);
            let q6 = Input { schema: schema.clone(), types, filter: Some(filter) };
            self.reduce(&format!("Q6 on {carrier:?}"), &q6, vec![sum(op(Multiply, column("price"), column("discount")))]);
            self.select(
                &format!("rows of Q6 on {carrier:?}"),
                &q6,
                vec![revenue, charge, column("returnflag"), column("shipdate")],
            );
        }
    }
}

fn values_are_few(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Null | DataType::Boolean | DataType::Int8 | DataType::UInt8)
}

/// The columns:
/// - 0 and 1 of the type, 2 of the type without NULLs, 3 a flag,
/// - 4 and 5 keys with narrow bounds, 6 a 64-bit key, 7 a string key.
fn input(data_type: &DataType) -> Input {
    let mut types = vec![
        ColumnType::of(data_type, true).unwrap_or_else(|| panic!("{data_type} is not supported on the device")),
        ColumnType::of(data_type, true).unwrap(),
        ColumnType::of(data_type, false).unwrap(),
        ColumnType::of(&DataType::Boolean, true).unwrap(),
        ColumnType::of(&DataType::Int32, true).unwrap(),
        ColumnType::of(&DataType::Date32, false).unwrap(),
        ColumnType::of(&DataType::Int64, true).unwrap(),
        ColumnType::of(&DataType::Utf8View, true).unwrap(),
    ];
    types[4].bounds = Some((-8, 7));
    types[5].bounds = Some((0, 511));
    Input { schema: schema(&types), types, filter: None }
}

fn schema(types: &[ColumnType]) -> SchemaRef {
    let fields = types.iter().enumerate().map(|(at, ty)| Field::new(format!("c{at}"), ty.data_type.clone(), ty.nullable));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// The supported layouts of a type.
pub fn layouts(data_type: &DataType) -> Vec<Layout> {
    use Carrier::*;
    let own = ColumnType::of(data_type, true).unwrap().layout;
    let plain = |layout: &Layout| match layout {
        Layout::Offsets32 | Layout::Offsets64 | Layout::Views => vec![Layout::Offsets32, Layout::Offsets64, Layout::Views],
        Layout::Fixed(I128) => [I32, I64, I128].map(Layout::Fixed).to_vec(),
        Layout::Fixed(I256) => [I32, I64, I128, I256].map(Layout::Fixed).to_vec(),
        Layout::Fixed(I64) => [I32, I64].map(Layout::Fixed).to_vec(),
        Layout::Fixed(U32) => [U16, U32].map(Layout::Fixed).to_vec(),
        other => vec![other.clone()],
    };
    let coded = |codes: Carrier, values: &Layout| {
        plain(values).into_iter().map(|values| Layout::Dictionary { codes, values: values.into() }).collect::<Vec<_>>()
    };
    match &own {
        Layout::Null => vec![own],
        // Computed values are plain.
        Layout::Dictionary { codes, values } => [coded(*codes, values), coded(U8, values), plain(values)].concat(),
        _ => [plain(&own), coded(U8, &own), coded(U16, &own)].concat(),
    }
}

fn value_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, value) => value,
        other => other,
    }
}

fn literal(data_type: &DataType, at: i128) -> Literal {
    let value = match data_type {
        DataType::Null => LiteralValue::Null,
        DataType::Boolean => LiteralValue::Bool(at % 2 == 1),
        DataType::Float32 | DataType::Float64 => LiteralValue::Float(at as f64 / 4.0),
        DataType::FixedSizeBinary(width) => LiteralValue::Bytes(vec![at as u8; *width as usize]),
        other if other.is_string() || other.is_binary() => LiteralValue::Bytes(format!("value {at}").into_bytes()),
        _ => LiteralValue::Int(at),
    };
    Literal { data_type: data_type.clone(), value }
}

fn some_literal(data_type: &DataType) -> Literal {
    literal(data_type, 7)
}

fn cast(expr: Expr, to: &DataType, checked: bool) -> Expr {
    Expr::Cast { expr: expr.into(), to: to.clone(), checked }
}

/// All arithmetic of two operands of one type that SQL defines.
fn arithmetic(data_type: &DataType, left: &Expr, right: &Expr) -> Vec<Expr> {
    use ArithmeticOp::*;
    let typed = [Add, Subtract, Multiply, Divide, Modulo, BitAnd, BitOr, BitXor, ShiftLeft, ShiftRight]
        .into_iter()
        .filter_map(|op| Some((op, arithmetic_type(op, data_type, data_type)?)));
    typed
        .map(|(op, data_type)| Expr::Arithmetic { op, left: left.clone().into(), right: right.clone().into(), data_type })
        .collect()
}

/// Type of the result in Arrow's kernels.
fn arithmetic_type(op: ArithmeticOp, left: &DataType, right: &DataType) -> Option<DataType> {
    use ArithmeticOp::*;
    let (l, r): (ArrayRef, ArrayRef) = (new_empty_array(left), new_empty_array(right));
    let result = match op {
        Add => numeric::add_wrapping(&l, &r),
        Subtract => numeric::sub_wrapping(&l, &r),
        Multiply => numeric::mul_wrapping(&l, &r),
        Divide => numeric::div(&l, &r),
        Modulo => numeric::rem(&l, &r),
        BitAnd | BitOr | BitXor | ShiftLeft | ShiftRight => return left.is_integer().then(|| left.clone()),
    };
    Some(result.ok()?.data_type().clone())
}

fn aggregate(function: AggregateFunction, argument: Option<Expr>, data_type: DataType) -> Aggregate {
    Aggregate { function, arguments: argument.into_iter().collect(), filter: None, distinct: false, data_type }
}

fn output(aggregate: Aggregate) -> (Aggregate, Field) {
    let field = Field::new("out", aggregate.data_type.clone(), true);
    (aggregate, field)
}

/// Type of a sum, as DataFusion derives it.
fn sum_type(data_type: &DataType) -> Option<DataType> {
    Some(match data_type {
        DataType::Decimal32(p, s) => DataType::Decimal32((p + 10).min(9), *s),
        DataType::Decimal64(p, s) => DataType::Decimal64((p + 10).min(18), *s),
        DataType::Decimal128(p, s) => DataType::Decimal128((p + 10).min(38), *s),
        other if other.is_signed_integer() => DataType::Int64,
        other if other.is_unsigned_integer() => DataType::UInt64,
        other if other.is_floating() => DataType::Float64,
        DataType::Duration(unit) => DataType::Duration(*unit),
        _ => return None,
    })
}

/// Type of an average, as DataFusion derives it.
fn avg_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Decimal32(p, s) => DataType::Decimal32((p + 4).min(9), (s + 4).min(9)),
        DataType::Decimal64(p, s) => DataType::Decimal64((p + 4).min(18), (s + 4).min(18)),
        DataType::Decimal128(p, s) => DataType::Decimal128((p + 4).min(38), (s + 4).min(38)),
        DataType::Duration(unit) => DataType::Duration(*unit),
        _ => DataType::Float64,
    }
}

/// Every aggregate of column 0 that is supported on the device. Common ones also of the column
/// without NULLs and with a filter; those that DISTINCT changes also with it. Arguments are coerced
/// as in DataFusion.
fn aggregates(data_type: &DataType, schema: &Schema) -> Vec<Aggregate> {
    use AggregateFunction::{Avg, Count, Sum};
    let value = value_type(data_type);
    let mut all = vec![aggregate(Count, None, DataType::Int64)];
    for function in AggregateFunction::ALL {
        let family = function.row().family;
        let Some((coerced, result)) = aggregate_types(family, value) else { continue };
        let column = |index| match &coerced {
            coerced if coerced != value => cast(Expr::Column(index), coerced, true),
            _ => Expr::Column(index),
        };
        let mut plain = aggregate(*function, Some(column(0)), result);
        match family {
            AggregateFamily::Bivariate { .. } => plain.arguments.push(column(0)),
            AggregateFamily::Percentile => {
                let number = |data_type, value| Expr::Literal(Literal { data_type, value });
                plain.arguments.push(number(DataType::Int64, LiteralValue::Int(4)));
                plain.arguments.push(number(DataType::Float64, LiteralValue::Float(0.3)));
            }
            AggregateFamily::Count
            | AggregateFamily::Sum
            | AggregateFamily::Average
            | AggregateFamily::Extreme { .. }
            | AggregateFamily::AnyValue
            | AggregateFamily::Boolean(_)
            | AggregateFamily::Bitwise(_)
            | AggregateFamily::Variance { .. }
            | AggregateFamily::Median
            | AggregateFamily::Sketch => {}
        }
        let by_rank = function.row().names.iter().any(|named| named.rank.is_some());
        let selects = by_rank || plain.arguments.len() > 1 || family == AggregateFamily::Sketch;
        if schema.fields().len() > 3 && !selects {
            all.push(Aggregate { arguments: vec![column(2)], ..plain.clone() });
            all.push(Aggregate { filter: Some(Expr::Column(3)), ..plain.clone() });
        }
        if matches!(function, Count | Sum | Avg) {
            all.push(Aggregate { distinct: true, ..plain.clone() });
        }
        all.push(plain);
    }
    all.retain(|aggregate| supports_aggregate(aggregate, schema).is_ok());
    all
}

/// Types of an aggregate's argument and result, as DataFusion coerces and derives them; `None` if
/// it does not take the type.
fn aggregate_types(family: AggregateFamily, value: &DataType) -> Option<(DataType, DataType)> {
    let keeps = value.is_decimal() || matches!(value, DataType::Duration(_));
    let float = (DataType::Float64, DataType::Float64);
    let same = (value.clone(), value.clone());
    match family {
        AggregateFamily::Count => Some((value.clone(), DataType::Int64)),
        AggregateFamily::Sketch => Some((value.clone(), DataType::UInt64)),
        AggregateFamily::Sum => {
            let result = sum_type(value)?;
            Some((if keeps { value.clone() } else { result.clone() }, result))
        }
        AggregateFamily::Extreme { .. } | AggregateFamily::AnyValue => Some(same),
        AggregateFamily::Median => (value.is_decimal() || value.is_floating()).then_some(same),
        AggregateFamily::Percentile => value.is_floating().then_some(same),
        AggregateFamily::Bivariate { .. } => value.is_floating().then_some(float),
        AggregateFamily::Average if keeps => Some((value.clone(), avg_type(value))),
        AggregateFamily::Average | AggregateFamily::Variance { .. } => value.is_numeric().then_some(float),
        AggregateFamily::Boolean(_) => (*value == DataType::Boolean).then_some(same),
        AggregateFamily::Bitwise(_) => value.is_integer().then_some(same),
    }
}

/// Every aggregate is supported with an argument of one of the types, so that the gates compile it.
#[test]
fn every_aggregate_is_sampled() {
    let mut missing: HashSet<AggregateFunction> = AggregateFunction::ALL.iter().copied().collect();
    for data_type in types() {
        for aggregate in aggregates(&data_type, &input(&data_type).schema) {
            missing.remove(&aggregate.function);
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}

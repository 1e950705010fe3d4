// SPDX-License-Identifier: Apache-2.0
//! A broad sample of programs: every type, expression, cast, aggregate and kind of key.

mod aggregates;
mod functions;
mod inputs;

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::new_empty_array;
use arrow::datatypes::{DataType, Field, Schema};
use columnar::{Carrier, ColumnType, Layout};
use device::{MegakernelPartWriter, ProgramSource};
use kernels::codegen::Profile;
use kernels::expr::{Aggregate, AggregateFunction, ArithmeticOp, CompareOp, Expr, Literal, LiteralValue};
use kernels::function::Function;
use kernels::ops::{ArrowLayout, Concat, Decode, Gather, GroupBy, Input, NullStripping, Options, Reduce, Select, Sort, SortKey};
use kernels::ops::{Frame, FrameBound, FrameUnits, NullTreatment, Quantile, Window, WindowCall, WindowFunction};
use kernels::support::{supports, supports_cast, supports_output};

use self::aggregates::*;
use self::functions::*;
pub use self::inputs::*;

/// A program.
pub struct Sample {
    /// Its operator and types.
    pub name: String,
    /// The source: prelude and kernels.
    pub text: String,
    /// The kernels as functions of a megakernel.
    pub megakernel_part: Option<MegakernelPartWriter>,
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

struct Sampler {
    options: Options,
    seen: HashSet<String>,
    samples: Vec<Sample>,
}

/// Expressions per program: enough to share work, few enough to find one that spills.
const OUTPUTS: usize = 8;

impl Sampler {
    fn add(&mut self, name: &str, programs: Vec<ProgramSource>) {
        for (part, program) in programs.into_iter().enumerate() {
            let text = program.source.to_string();
            // A projection of plain columns has no kernel.
            if text.contains("KERNEL void") && self.seen.insert(text.clone()) {
                let megakernel_part = program.megakernel_part;
                self.samples.push(Sample { name: format!("{name} [{part}]"), text, megakernel_part });
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

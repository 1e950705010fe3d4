// SPDX-License-Identifier: Apache-2.0
//! Window functions over sorted rows: ranks, values of other rows, aggregates over frames.
//!
//! The input comes in the order of partition and order keys, as [`Sort`](super::Sort) gives it, and all of it is kept: at the
//! end it becomes one batch. Where partitions and groups of peers begin is found first (see [`bounds`]), and then each function
//! writes its column (see [`value`] and [`aggregate`]). DISTINCT, and the least and the greatest text, look at the order of
//! their values (see [`over_order`] and [`once`]), as do medians and percentiles (see [`quantile`]). Rows keep their order.

mod aggregate;
mod bounds;
mod frame;
mod moments;
mod once;
mod over_order;
mod quantile;
mod sorted;
mod value;
mod wavelet;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use columnar::{ColumnType, DeviceBatch};
use device::Queue;

use super::primitives::Primitives;
use super::program::Program;
use super::source::Source;
use super::{Concat, Input, Options, Select, Take, check_rows};
use crate::codegen::CType;
use crate::expr::{Aggregate, Expr, Literal};
use crate::{Error, Result};
use aggregate::AggregateCall;
pub use frame::{Frame, FrameBound, FrameUnits, interval};
use moments::Moments;
use once::Once;
use over_order::OverOrder;
pub use quantile::Quantile;
use quantile::{QuantileCall, Ranked};
use sorted::Sorted;
use value::{Of, ValueCall};
use wavelet::Wavelet;

/// A function of a row and the rows around it.
#[derive(Debug, Clone, PartialEq)]
pub enum WindowFunction {
    /// Number of the row in its partition, from 1, as `UInt64`, like the ranks.
    RowNumber,
    /// One more than the rows before its peers.
    Rank,
    /// One more than the groups of peers before its own.
    DenseRank,
    /// The rows before its peers among all others of the partition, as `Float64`.
    PercentRank,
    /// The rows up to its last peer among all of the partition, as `Float64`.
    CumeDist,
    /// Number of the row's bucket, of so many, at least 1, that have about as many rows, as `UInt64`.
    Ntile(u64),
    /// The value so many rows before, behind where negative; the default where the partition has no such row.
    Lag {
        /// The value.
        value: Expr,
        /// Rows before.
        offset: i64,
        /// Of the value's type; NULL without.
        default: Option<Literal>,
        /// Which rows count.
        counted: Counted,
    },
    /// The value in the frame's row of this number, from 1, or from its end, from -1; NULL where there is none.
    NthValue(Expr, i64),
    /// The same among the frame's rows whose value is not NULL.
    NthKnown(Expr, i64),
    /// The list of the values in the frame's rows; NULL where there are none.
    Values {
        /// The values.
        value: Expr,
        /// Whether NULLs are left out.
        known: bool,
        /// Whether a value that stands several times in the frame comes once, where it stands first; where frames end with the
        /// partition, and do not begin with it, last.
        distinct: bool,
    },
    /// The texts of a `LargeUtf8` column in the frame's rows, one after another; NULL where all are.
    Texts {
        /// The column.
        texts: Expr,
        /// Bytes that each of them begins with, and the result does not.
        skipped: u32,
        /// Whether a text that stands several times in the frame comes once, where it stands first; where frames end with the
        /// partition, and do not begin with it, last.
        distinct: bool,
    },
    /// An aggregate of the frame's rows, but for medians and percentiles.
    Aggregate(Aggregate),
    /// A quantile of the frame's values that are not NULL, floats or decimals; NULL where there are none.
    Quantile {
        /// Which.
        quantile: Quantile,
        /// The values; the result is of their type.
        value: Expr,
        /// Whether a value that stands several times in the frame counts once.
        distinct: bool,
    },
}

/// The rows that [`WindowFunction::Lag`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// All.
    All,
    /// Those whose value is not NULL.
    Known,
    /// The same as far as they are in sight, as for DataFusion's operator of bounded memory. Of the n-th value behind a row, n + 1
    /// values are in sight at first, and each one more that follows the last one of these at once. Where a NULL does, the last
    /// n - 1 rows' values before it get the default, and at the last one again n + 1 come into sight. One item goes along a
    /// partition to tell.
    InSight,
}

/// A window function and its frame, which ranks and `Lag` do not look at.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowCall {
    /// The function.
    pub function: WindowFunction,
    /// The rows that it looks at.
    pub frame: Frame,
}

impl WindowCall {
    /// Whether rows are found by their order key.
    fn looks_at_keys(&self) -> bool {
        use WindowFunction::{Aggregate, NthKnown, NthValue, Quantile, Texts, Values};
        let frames =
            matches!(self.function, NthValue(..) | NthKnown(..) | Values { .. } | Texts { .. } | Aggregate(_) | Quantile { .. });
        frames && self.frame.looks_at_keys()
    }
}

/// Computes window functions of one partitioning and order.
#[derive(Debug, Clone)]
pub struct Window {
    schema: SchemaRef,
    types: Vec<ColumnType>,
    passed: usize,
    /// What the order key becomes, where frames find rows by it.
    key: Option<CType>,
    moments: Moments,
    options: Options,
    /// Columns that are passed on, then keys and arguments.
    select: Select,
    concat: Concat,
    sorted: Sorted,
    /// Columns behind those of `sorted`.
    once: Vec<Once>,
    calls: Vec<Call>,
    program: Program,
    primitives: Primitives,
}

#[derive(Debug, Clone)]
enum Call {
    Value(ValueCall),
    Aggregate(AggregateCall),
    /// The least or greatest text: of the numbers that texts have in their order, and then the text. Which order.
    Text(Box<AggregateCall>, usize, Box<ValueCall>),
    Quantile(QuantileCall),
}

/// What a function needs to be told of the order of values.
enum Told {
    Nothing,
    Aggregate(OverOrder),
    Quantile(Ranked),
    /// The position of the texts.
    Once(usize),
    /// What is true of the rows whose value stands there for the others.
    Distinct(Expr),
}

/// What has been pushed so far.
#[derive(Debug, Default)]
pub struct WindowState {
    batches: Vec<DeviceBatch>,
    rows: usize,
}

impl Window {
    /// For an input in the order of `partition` and then of `order`. The result has `outputs` and then the functions.
    ///
    /// # Errors
    /// `Unsupported` where an expression, a function or a frame is not supported on the device.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use arrow::array::{Int64Array, RecordBatch, UInt64Array};
    /// use arrow::datatypes::{DataType, Field};
    /// use columnar::{download, natural_types, upload};
    /// use kernels::codegen::Profile;
    /// use kernels::expr::Expr;
    /// use kernels::ops::{Frame, Input, Options, Window, WindowCall, WindowFunction};
    ///
    /// # futures::executor::block_on(async {
    /// let host = RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(vec![7, 7, 9])) as _)])?;
    /// let queue = device::Context::new(device::DeviceConfig::default())?.queue()?;
    /// let types = natural_types(&host.schema())?;
    /// let batch = upload(&queue, &host.schema(), &types, &[host.clone()])?;
    ///
    /// let input = Input { schema: host.schema(), types, filter: None };
    /// let rank = WindowCall { function: WindowFunction::Rank, frame: Frame::RUNNING };
    /// let functions = vec![(rank, Field::new("rank", DataType::UInt64, false))];
    /// let window = Window::try_new(input, vec![], vec![Expr::Column(0)], vec![], functions, Options::new(Profile::Cpu))?;
    /// let mut state = window.start();
    /// window.push(&queue, &mut state, &batch).await?;
    /// let ranked = window.finish(&queue, state).await?;
    /// assert_eq!(download(&queue, &ranked[0]).await?.column(0).as_ref(), &UInt64Array::from(vec![1, 1, 3]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn try_new(
        input: Input,
        partition: Vec<Expr>,
        order: Vec<Expr>,
        outputs: Vec<(Expr, Field)>,
        functions: Vec<(WindowCall, Field)>,
        options: Options,
    ) -> Result<Window> {
        let passed = outputs.len();
        let mut fields: Vec<_> = outputs.iter().map(|(_, field)| field.clone()).collect();
        fields.extend(functions.iter().map(|(_, field)| field.clone()));
        let mut columns = Columns { schema: input.schema.clone(), list: outputs };
        let partition = columns.add_all(&partition)?;
        let order = columns.add_all(&order)?;
        let mut moments = Moments::default();
        let functions = functions.into_iter().map(|(call, field)| {
            let frame = moments.number(call.frame);
            Ok((WindowCall { frame, ..columns.add_call(call)? }, field))
        });
        let functions = functions.collect::<Result<Vec<_>>>()?;
        let select = Select::try_new(input, columns.list, options.clone())?;
        let concat = Concat::try_new(select.schema().clone(), select.output_types().to_vec(), options.clone())?;
        let types = concat.output_types();
        let units = functions.iter().filter(|(call, _)| call.looks_at_keys()).map(|(call, _)| call.frame.units);
        let units: Vec<FrameUnits> = units.collect();
        // Keys of moments are their ticks.
        let reads = |units: &FrameUnits| match *units {
            FrameUnits::Moments { falls } => FrameUnits::Range { falls },
            other => other,
        };
        if units.iter().any(|other| Some(reads(other)) != units.first().map(reads)) {
            return Err(Error::Unsupported(
                "frames that read one order key in several ways are not supported on the device".into(),
            ));
        }
        let mut kernels = bounds::kernels(types, &partition, &order, &units, &mut moments, &options)?;
        let (mut sorted, mut once) = (Sorted::behind(types.len()), Vec::new());
        let told = functions.iter().map(|(call, _)| match &call.function {
            WindowFunction::Aggregate(aggregate) => {
                let aggregate = aggregate.clone().plain();
                OverOrder::plan(aggregate, &call.frame, types, &mut sorted, &options, &mut kernels).map(Told::Aggregate)
            }
            WindowFunction::Quantile { quantile, value, distinct } => {
                let column = column(value)?;
                Ranked::plan(*quantile, column, *distinct, &call.frame, types, &mut sorted, &options, &mut kernels)
                    .map(Told::Quantile)
            }
            WindowFunction::Texts { texts, distinct: true, .. } => {
                once.push(Once::plan(column(texts)?, &call.frame, types, &mut sorted, &options, &mut kernels)?);
                Ok(Told::Once(once.len() - 1))
            }
            WindowFunction::Values { value, distinct: true, .. } => {
                let told = sorted.tell(once::tell("array_agg", &call.frame)?, column(value)?, types, &options, &mut kernels)?;
                Ok(Told::Distinct(once::is_alone(told)))
            }
            _ => Ok(Told::Nothing),
        });
        let told = told.collect::<Result<Vec<_>>>()?;
        let mut types: Vec<ColumnType> = types.iter().cloned().chain(sorted.types()).collect();
        let first_once = types.len();
        for texts in &once {
            types.push(texts.ty()?.clone());
        }
        let source = Source::of_types(types.clone());
        let mut calls = Vec::with_capacity(functions.len());
        for (index, ((WindowCall { function, frame }, field), told)) in functions.into_iter().zip(told).enumerate() {
            frame.check()?;
            let name = index.to_string();
            if let Told::Quantile(ranked) = told {
                let call = QuantileCall::try_new(&ranked, frame, &field, &name, &types, &options, &mut kernels)?;
                calls.push(Call::Quantile(call));
                continue;
            }
            if let Told::Aggregate(OverOrder { aggregate, distinct, text }) = told {
                let mut write = |field: &Field| {
                    AggregateCall::try_new(&aggregate, frame, field, &name, &source, distinct, &options, &mut kernels)
                };
                let Some((column, order)) = text else {
                    calls.push(Call::Aggregate(write(&field)?));
                    continue;
                };
                let best = write(&Field::new("number", DataType::UInt32, true))?;
                let all: Vec<ColumnType> = types.iter().chain([best.ty()]).cloned().collect();
                let of = Of::Numbered { column, number: types.len() };
                let value = ValueCall::try_new(of, &field, &format!("{name}_text"), &all, &options, &mut kernels)?;
                calls.push(Call::Text(Box::new(best), order, Box::new(value)));
                continue;
            }
            let of = match function {
                WindowFunction::Aggregate(_) | WindowFunction::Quantile { .. } => {
                    return Err(Error::Internal("a function that is not planned".into()));
                }
                WindowFunction::RowNumber => Of::RowNumber,
                WindowFunction::Rank => Of::Rank,
                WindowFunction::DenseRank => Of::DenseRank,
                WindowFunction::PercentRank => Of::PercentRank,
                WindowFunction::CumeDist => Of::CumeDist,
                WindowFunction::Ntile(0) => return Err(Error::Unsupported("NTILE(0) is not supported on the device".into())),
                WindowFunction::Ntile(n) => Of::Ntile(n),
                WindowFunction::Lag { value, offset, default, counted } => {
                    Of::Lag { column: column(&value)?, offset, default, counted }
                }
                WindowFunction::NthValue(value, n) => Of::Nth { column: column(&value)?, n, frame, known: false },
                WindowFunction::NthKnown(value, n) => Of::Nth { column: column(&value)?, n, frame, known: true },
                WindowFunction::Values { value, known, .. } => {
                    let column = column(&value)?;
                    let known = (known && types[column].nullable).then(|| is_known(column));
                    let alone = match told {
                        Told::Distinct(alone) => Some(alone),
                        _ => None,
                    };
                    let counted = known.into_iter().chain(alone).reduce(|known, alone| Expr::And(vec![known, alone]));
                    Of::Rows { column, frame, counted }
                }
                WindowFunction::Texts { texts, skipped, .. } => {
                    let column = match told {
                        Told::Once(index) => first_once + index,
                        _ => column(&texts)?,
                    };
                    Of::Texts { column, skipped, frame, known: true }
                }
            };
            calls.push(Call::Value(ValueCall::try_new(of, &field, &name, &types, &options, &mut kernels)?));
        }
        let mut result: Vec<_> = types.iter().take(passed).cloned().collect();
        result.extend(calls.iter().map(|call| call.ty().clone()));
        Ok(Window {
            schema: Arc::new(Schema::new(fields)),
            types: result,
            passed,
            key: units.first().map(|units| units.key()),
            moments,
            program: Program::try_new("Window", &options, kernels)?,
            primitives: Primitives::try_new(&options)?,
            options,
            select,
            concat,
            sorted,
            once,
            calls,
        })
    }

    /// Names and types of the result.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Types and layouts of the result.
    pub fn output_types(&self) -> &[ColumnType] {
        &self.types
    }

    /// Names and texts of the kernels.
    pub fn kernel_text(&self) -> Vec<(String, String)> {
        let once = self.once.iter().flat_map(|once| once.select().kernel_text());
        let before = self.select.kernel_text().into_iter().chain(self.sorted.kernel_text()).chain(once);
        let wavelets = self.wavelets().into_iter().flat_map(Wavelet::kernel_text);
        before.chain(self.program.kernel_text()).chain(wavelets).chain(self.takes().flat_map(Take::kernel_text)).collect()
    }

    /// The programs as they are compiled, where an input needs them.
    pub fn programs(&self) -> Vec<String> {
        let before = self.select.programs().into_iter().chain(self.concat.programs()).chain(self.sorted.programs());
        let before = before.chain(self.once.iter().flat_map(|once| once.select().programs()));
        let wavelets = self.wavelets().into_iter().map(|wavelet| wavelet.text().to_owned());
        let after = wavelets.chain(self.takes().flat_map(Take::programs));
        before.chain([self.program.text().to_owned()]).chain(after).collect()
    }

    /// What gathers values of lists.
    fn takes(&self) -> impl Iterator<Item = &Take> {
        self.calls.iter().filter_map(|call| match call {
            Call::Value(call) => call.take(),
            _ => None,
        })
    }

    /// The kernels that quantiles share.
    fn wavelets(&self) -> Vec<&Wavelet> {
        let mut wavelets: Vec<&Wavelet> = vec![];
        for call in &self.calls {
            let Call::Quantile(call) = call else { continue };
            wavelets.extend(call.wavelet().filter(|own| wavelets.iter().all(|known| known.text() != own.text())));
        }
        wavelets
    }

    /// Nothing pushed yet.
    pub fn start(&self) -> WindowState {
        WindowState::default()
    }

    /// Takes in the next rows.
    ///
    /// # Errors
    /// `Row` with the lowest failing row; `Unsupported` for more than 2^31 - 1 rows in all.
    pub async fn push(&self, queue: &Queue, state: &mut WindowState, batch: &DeviceBatch) -> Result<()> {
        let batch = self.select.run(queue, batch).await?;
        state.rows += batch.num_rows();
        check_rows("Window", state.rows)?;
        state.batches.push(batch);
        Ok(())
    }

    /// The rows with their functions. No batch where there are no rows.
    ///
    /// # Errors
    /// `AverageOverflow`; the device's.
    pub async fn finish(&self, queue: &Queue, state: WindowState) -> Result<Vec<DeviceBatch>> {
        let Some(all) = self.concat.run(queue, state.batches).await? else { return Ok(vec![]) };
        let (options, program) = (&self.options, &self.program);
        let loaded = program.load(queue).await?;
        let primitives = self.primitives.load(queue).await?;
        let mut places = bounds::find(queue, options, &loaded, &primitives, &all, self.key).await?;
        self.moments.find(queue, options, &loaded, &all, &mut places)?;
        let (n, mut read) = (all.num_rows(), all.columns().to_vec());
        let orders = self.sorted.orders(queue, &all).await?;
        read.extend(self.sorted.columns(queue, options, &loaded, &primitives, &all, &places, &orders)?);
        for once in &self.once {
            read.push(once.texts(queue, &read, n).await?);
        }
        let mut columns: Vec<_> = all.columns().iter().take(self.passed).cloned().collect();
        for call in &self.calls {
            columns.push(match call {
                Call::Value(call) => call.run(queue, options, program, &loaded, &primitives, &read, n, &places, None).await?,
                Call::Aggregate(call) => call.run(queue, options, program, &loaded, &primitives, &read, n, &places).await?,
                Call::Text(best, order, value) => {
                    let best = best.run(queue, options, program, &loaded, &primitives, &read, n, &places).await?;
                    let read: Vec<_> = read.iter().cloned().chain([best]).collect();
                    let order = orders.get(*order);
                    value.run(queue, options, program, &loaded, &primitives, &read, n, &places, order).await?
                }
                Call::Quantile(call) => call.run(queue, options, &loaded, &primitives, &read, n, &places, &orders).await?,
            });
        }
        Ok(vec![DeviceBatch::try_new(self.schema.clone(), columns, all.num_rows())?])
    }
}

impl Call {
    fn ty(&self) -> &ColumnType {
        match self {
            Call::Value(call) => call.ty(),
            Call::Aggregate(call) => call.ty(),
            Call::Text(_, _, value) => value.ty(),
            Call::Quantile(call) => call.ty(),
        }
    }
}

/// The columns that are computed before anything else.
struct Columns {
    schema: SchemaRef,
    list: Vec<(Expr, Field)>,
}

impl Columns {
    /// The position of a column, a new one where no other is the same.
    fn add(&mut self, expr: &Expr) -> Result<usize> {
        let data_type = expr.data_type(&self.schema)?;
        let known = self.list.iter().position(|(other, field)| other == expr && *field.data_type() == data_type);
        if known.is_none() {
            self.list.push((expr.clone(), Field::new(format!("argument {}", self.list.len()), data_type, true)));
        }
        Ok(known.unwrap_or(self.list.len() - 1))
    }

    fn add_all(&mut self, exprs: &[Expr]) -> Result<Vec<usize>> {
        exprs.iter().map(|expr| self.add(expr)).collect()
    }

    /// The call with columns as arguments.
    fn add_call(&mut self, call: WindowCall) -> Result<WindowCall> {
        let mut add = |expr: Expr| self.add(&expr).map(Expr::Column);
        let function = match call.function {
            WindowFunction::Lag { value, offset, default, counted } => {
                WindowFunction::Lag { value: add(value)?, offset, default, counted }
            }
            WindowFunction::NthValue(value, n) => WindowFunction::NthValue(add(value)?, n),
            WindowFunction::NthKnown(value, n) => WindowFunction::NthKnown(add(value)?, n),
            WindowFunction::Values { value, known, distinct } => WindowFunction::Values { value: add(value)?, known, distinct },
            WindowFunction::Texts { texts, skipped, distinct } => WindowFunction::Texts { texts: add(texts)?, skipped, distinct },
            WindowFunction::Aggregate(aggregate) => WindowFunction::Aggregate(Aggregate {
                arguments: aggregate.arguments.into_iter().map(&mut add).collect::<Result<_>>()?,
                filter: aggregate.filter.map(&mut add).transpose()?,
                ..aggregate
            }),
            WindowFunction::Quantile { quantile, value, distinct } => {
                WindowFunction::Quantile { quantile, value: add(value)?, distinct }
            }
            other => other,
        };
        Ok(WindowCall { function, ..call })
    }
}

/// The column that an argument has become.
fn column(expr: &Expr) -> Result<usize> {
    match expr {
        Expr::Column(index) => Ok(*index),
        _ => Err(Error::Internal("an argument that is no column".into())),
    }
}

/// Whether a column has a value.
fn is_known(column: usize) -> Expr {
    Expr::Not(Box::new(Expr::IsNull(Box::new(Expr::Column(column)))))
}

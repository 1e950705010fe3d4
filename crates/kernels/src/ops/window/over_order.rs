// SPDX-License-Identifier: Apache-2.0
//! Aggregates that look at the order of their values, as plain ones over columns that tell of it: DISTINCT, the least and the
//! greatest text, and the sketches of approx_distinct.

use arrow::datatypes::DataType;
use columnar::ColumnType;

use super::aggregate::Distinct;
use super::frame::{Frame, FrameBound};
use super::is_known;
use super::sorted::{Sorted, Tell, sketch_rank};
use crate::codegen::CType;
use crate::expr::{Aggregate, AggregateFunction, CompareOp, Expr, Literal, LiteralValue};
use crate::ops::Options;
use crate::ops::program::Kernel;
use crate::{Error, Result};

/// Most rows of a frame that is looked at anew for each row, where values cannot be given back.
const MOST_DISTINCT_ROWS: u64 = 1 << 12;

/// An aggregate over the input's columns and what sorting tells of them.
pub(super) struct OverOrder {
    pub aggregate: Aggregate,
    /// For DISTINCT over a frame that begins and ends somewhere.
    pub distinct: Option<Distinct>,
    /// The column whose text has the number that the aggregate gives, and the order of the numbers.
    pub text: Option<(usize, usize)>,
}

impl OverOrder {
    /// Of DISTINCT, rows count where the same value does not stand in the frame before them: nowhere in the partition, where
    /// frames begin with it. Frames that end with it look at the rows behind instead.
    pub fn plan(
        mut aggregate: Aggregate,
        frame: &Frame,
        types: &[ColumnType],
        sorted: &mut Sorted,
        options: &Options,
        kernels: &mut Vec<Kernel>,
    ) -> Result<OverOrder> {
        let text = |column: usize| types.get(column).is_some_and(|ty| CType::native(&ty.data_type) == Some(CType::Str));
        let of = (aggregate.function, aggregate.arguments.as_slice());
        if let (AggregateFunction::Min | AggregateFunction::Max, [Expr::Column(column)]) = of
            && text(*column)
        {
            let column = *column;
            let number = sorted.tell(Tell::Number, column, types, options, kernels)?;
            aggregate.filter = Some(Expr::And(aggregate.filter.into_iter().chain([is_known(column)]).collect()));
            aggregate.arguments = vec![Expr::Column(number)];
            aggregate.data_type = DataType::UInt32;
            return Ok(OverOrder { aggregate, distinct: None, text: Some((column, sorted.sort_of(number))) });
        }
        if aggregate.function == AggregateFunction::ApproxDistinct {
            let (true, None, [Expr::Column(column)]) =
                (frame.start == FrameBound::UnboundedPreceding, &aggregate.filter, aggregate.arguments.as_slice())
            else {
                return Err(Error::Unsupported(
                    "approx_distinct over frames that do not begin with the partition is not supported on the device".into(),
                ));
            };
            let before = sorted.tell(Tell::RankBefore, *column, types, options, kernels)?;
            aggregate.arguments = vec![sketch_rank(*column), Expr::Column(before)];
            return Ok(OverOrder { aggregate, distinct: None, text: None });
        }
        // Of equal values one does not change the least, nor the greatest.
        aggregate.distinct &= !matches!(aggregate.function, AggregateFunction::Min | AggregateFunction::Max);
        if !aggregate.distinct {
            return Ok(OverOrder { aggregate, distinct: None, text: None });
        }
        let (None, [Expr::Column(column)]) = (&aggregate.filter, aggregate.arguments.as_slice()) else {
            return Err(Error::Unsupported(
                "DISTINCT in a window with a filter, or of several columns, is not supported on the device".into(),
            ));
        };
        let (column, begins, ends) =
            (*column, frame.start == FrameBound::UnboundedPreceding, frame.end == FrameBound::UnboundedFollowing);
        let gives_back = match aggregate.function {
            AggregateFunction::Count => true,
            AggregateFunction::Sum => {
                aggregate.data_type.is_integer() || matches!(aggregate.data_type, DataType::Duration(_) | DataType::Interval(_))
            }
            _ => false,
        };
        if !begins && !ends && !gives_back && frame.rows().is_none_or(|rows| rows > MOST_DISTINCT_ROWS) {
            return Err(Error::Unsupported(format!(
                "DISTINCT over frames that may have more than {MOST_DISTINCT_ROWS} rows of a partition is supported on the device for COUNT and for sums of integers, durations and intervals only"
            )));
        }
        let mut tell = |tell| sorted.tell(tell, column, types, options, kernels);
        let told = tell(if ends && !begins { Tell::Behind } else { Tell::Before })?;
        aggregate.distinct = false;
        if begins || ends {
            let none = Literal { data_type: DataType::UInt32, value: LiteralValue::Int(0) };
            let (told, none) = (Box::new(Expr::Column(told)), Box::new(Expr::Literal(none)));
            aggregate.filter = Some(Expr::Compare { op: CompareOp::Eq, left: told, right: none });
            return Ok(OverOrder { aggregate, distinct: None, text: None });
        }
        let behind = if gives_back { Some(tell(Tell::Behind)?) } else { None };
        Ok(OverOrder { aggregate, distinct: Some(Distinct { before: told, behind }), text: None })
    }
}

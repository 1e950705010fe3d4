// SPDX-License-Identifier: Apache-2.0
//! Argument types accepted by parameters, and types that a user may declare for them.

use arrow::compute::can_cast_types;
use arrow::datatypes::DataType;

use crate::futhark::parameter::{Parameter, ValueKind};
use crate::reason::Reason;

/// Checks a declared type: its values must have the bits of the manifest's type. Times have the
/// bits of integers.
pub(super) fn has_bits_of(declared: &DataType, of: &DataType) -> std::result::Result<(), Reason> {
    let fits = match (declared, of) {
        (DataType::List(declared), DataType::List(of)) => return has_bits_of(declared.data_type(), of.data_type()),
        (DataType::Date32 | DataType::Time32(_), of) => *of == DataType::Int32,
        (DataType::Date64 | DataType::Time64(_) | DataType::Timestamp(..) | DataType::Duration(_), of) => *of == DataType::Int64,
        (declared, of) => declared == of,
    };
    match fits {
        true => Ok(()),
        false if declared.is_decimal() => Err(DECIMALS.to_owned()),
        false => Err(format!("it is {of}, which {declared} is not")),
    }
}

const DECIMALS: &str = "decimals have no Futhark type; use DOUBLE or BIGINT";

/// Checks the type of an argument. Values that do not fit fail in the cast.
pub(super) fn accepts(parameter: &Parameter, from: &DataType) -> std::result::Result<(), Reason> {
    match (&parameter.kind, from) {
        (_, DataType::Null) => Ok(()),
        (ValueKind::Sums(sum), from) => sum.accepts(from),
        (ValueKind::Records(_, fields), DataType::Struct(given)) => {
            if let Some(missing) = fields.iter().find(|field| given.find(&field.name).is_none()) {
                return Err(format!("the struct has no field {}", missing.name));
            }
            if given.len() != fields.len() {
                return Err(format!("the struct has {} fields, must have {}", given.len(), fields.len()));
            }
            fields.iter().try_for_each(|field| {
                let given = given.find(&field.name).map_or(&DataType::Null, |(_, given)| given.data_type());
                accepts(field, given).map_err(|reason| format!("its field {}: {reason}", field.name))
            })
        }
        (ValueKind::Lists(column), DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)) => {
            accepts(column, item.data_type())
        }
        (_, from) => converts(from, &parameter.data_type),
    }
}

/// As [`accepts`] for types without structs.
fn converts(from: &DataType, to: &DataType) -> std::result::Result<(), Reason> {
    let is_time = |data_type: &DataType| data_type.is_temporal() && !matches!(data_type, DataType::Interval(_));
    let widens = |to: &DataType| from.primitive_width() <= to.primitive_width();
    let fits = match from {
        DataType::Null => true,
        DataType::Dictionary(_, values) => return converts(values, to),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            return match to {
                DataType::List(to) => converts(item.data_type(), to.data_type()),
                to => Err(format!("{from} is not accepted for {to}")),
            };
        }
        DataType::Struct(_) => return Err(format!("a struct is not accepted for {to}")),
        from if from == to => true,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => *to == DataType::Binary,
        from if from.is_decimal() => return Err(DECIMALS.to_owned()),
        from if from.is_integer() => to.is_integer() || to.is_floating(),
        from if from.is_floating() => to.is_floating(),
        from if is_time(from) && is_time(to) => can_cast_types(from, to),
        from if is_time(from) => to.is_signed_integer() && widens(to) && can_cast_types(from, to),
        _ => false,
    };
    match fits {
        true => Ok(()),
        false => Err(format!("{from} is not accepted for {to}; cast it")),
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::TimeUnit;
    use futhark::Primitive;

    use super::*;
    use crate::futhark::parameter::data_type_of;

    #[test]
    fn times_are_integers_and_decimals_are_refused() {
        let timestamp = DataType::Timestamp(TimeUnit::Nanosecond, None);
        let list = |item: &DataType| DataType::new_list(item.clone(), false);
        for (declared, of) in [(&timestamp, &DataType::Int64), (&DataType::Date32, &DataType::Int32)] {
            assert_eq!(has_bits_of(declared, of), Ok(()));
            assert_eq!(has_bits_of(&list(declared), &DataType::new_list(of.clone(), true)), Ok(()));
        }
        assert_eq!(has_bits_of(&DataType::Date32, &DataType::Int64).unwrap_err(), "it is Int64, which Date32 is not");
        assert!(has_bits_of(&DataType::Int64, &list(&DataType::Int64)).is_err());
        assert_eq!(has_bits_of(&DataType::Decimal128(9, 2), &DataType::Int64).unwrap_err(), DECIMALS);
        for primitive in Primitive::ALL {
            assert_eq!(has_bits_of(&data_type_of(primitive), &data_type_of(primitive)), Ok(()));
        }
    }

    #[test]
    fn arguments_are_converted_unless_values_are_lost_silently() {
        use DataType::*;
        let timestamp = Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let dictionary = Dictionary(Box::new(Int8), Box::new(Int16));
        for (from, to) in [
            (&Int64, &Int32),
            (&Int64, &Float32),
            (&Float64, &Float32),
            (&Null, &Boolean),
            (&timestamp, &Int64),
            (&Date32, &Int32),
            (&Date32, &Int64),
            (&dictionary, &Int64),
        ] {
            assert_eq!(converts(from, to), Ok(()), "{from} to {to}");
        }
        for (from, to) in [
            (&Float64, &Int64),
            (&Boolean, &Int8),
            (&Int8, &Boolean),
            (&Utf8, &Int64),
            (&timestamp, &Int32),
            (&timestamp, &UInt64),
        ] {
            assert_eq!(converts(from, to).unwrap_err(), format!("{from} is not accepted for {to}; cast it"));
        }
        assert_eq!(converts(&Decimal64(9, 2), &Float64).unwrap_err(), DECIMALS);
        let lists = |item: DataType| DataType::new_list(item, true);
        let points = DataType::new_fixed_size_list(Float32, 3, false);
        assert_eq!(converts(&points, &lists(Float64)), Ok(()));
        assert!(converts(&points, &Float64).is_err() && converts(&points, &lists(Int64)).is_err());
        assert!(converts(&Float64, &lists(Float64)).is_err() && converts(&points, &lists(lists(Float64))).is_err());
    }
}

// SPDX-License-Identifier: Apache-2.0
//! DataFusion's scalar functions, by their names, as those of the kernels.

use std::sync::Arc;

use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal;
use kernels::function::{DatePart, Function};

use crate::expr::Reason;

/// A function of the kernels, and those of the arguments that it takes.
pub(crate) type Found<'a> = (Function, &'a [Arc<dyn PhysicalExpr>]);

/// The function that has a name.
pub(crate) fn find<'a>(name: &str, arguments: &'a [Arc<dyn PhysicalExpr>]) -> Result<Found<'a>, Reason> {
    let function = match name {
        "substr" => Function::Substring,
        "left" => Function::Left,
        "right" => Function::Right,
        "btrim" => Function::Trim { start: true, end: true },
        "ltrim" => Function::Trim { start: true, end: false },
        "rtrim" => Function::Trim { start: false, end: true },
        "split_part" => Function::SplitPart,
        "character_length" => Function::CharacterLength,
        "octet_length" => Function::OctetLength,
        "bit_length" => Function::BitLength,
        "strpos" => Function::Position,
        "starts_with" => Function::StartsWith,
        "ends_with" => Function::EndsWith,
        "contains" => Function::Contains,
        "ascii" => Function::Ascii,
        "date_part" => {
            let (part, moment) = constant_text(name, arguments)?;
            let part = DatePart::parse(part).ok_or_else(|| format!("date_part of {part} does not exist"))?;
            return Ok((Function::DatePart(part), moment));
        }
        _ => return Err(format!("the function {name} has no device form")),
    };
    Ok((function, arguments))
}

/// The first argument, which is part of the kernel and must be a constant, and the others.
fn constant_text<'a>(
    name: &str,
    arguments: &'a [Arc<dyn PhysicalExpr>],
) -> Result<(&'a str, &'a [Arc<dyn PhysicalExpr>]), Reason> {
    let constant = arguments.split_first().and_then(|(first, others)| {
        let text = first.downcast_ref::<Literal>()?.value().try_as_str().flatten()?;
        Some((text, others))
    });
    constant.ok_or_else(|| format!("{name} whose first argument is no constant has no device form"))
}

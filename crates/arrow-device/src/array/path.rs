// SPDX-License-Identifier: Apache-2.0
//! Paths within an array tree, for errors that name columns.

use std::fmt;

use arrow::datatypes::{DataType, Field};

use crate::Error;

/// A node of a type's tree, with its path. Built on the stack during a walk, printed only in
/// errors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: PathSegment<'a>,
    pub(crate) data_type: &'a DataType,
    /// The number of ancestors.
    pub(crate) depth: usize,
}

#[derive(Debug, Clone, Copy)]
enum PathSegment<'a> {
    Root(&'a str),
    Child(usize, &'a str),
    Dictionary,
}

impl<'a> Path<'a> {
    pub(crate) fn root(field: &'a Field) -> Self {
        Self { parent: None, step: PathSegment::Root(field.name()), data_type: field.data_type(), depth: 0 }
    }

    pub(crate) fn child(&'a self, index: usize, field: &'a Field) -> Self {
        let step = PathSegment::Child(index, field.name());
        Self { parent: Some(self), step, data_type: field.data_type(), depth: self.depth + 1 }
    }

    pub(crate) fn dictionary(&'a self, values: &'a DataType) -> Self {
        Self { parent: Some(self), step: PathSegment::Dictionary, data_type: values, depth: self.depth + 1 }
    }

    /// An `Invalid` error at this node.
    pub(crate) fn invalid(&self, what: impl fmt::Display) -> Error {
        Error::Invalid(format!("{self}: {what}"))
    }

    /// An `Unsupported` error at this node.
    pub(crate) fn unsupported(&self, what: impl fmt::Display) -> Error {
        Error::Unsupported(format!("{self}: {what}"))
    }

    fn write_steps(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.parent, self.step) {
            (None, PathSegment::Root("")) => f.write_str("array"),
            (None, PathSegment::Root(name)) => write!(f, "array {name:?}"),
            (None, _) => Ok(()),
            // Users know the children of a record batch's struct as its columns.
            (Some(Path { parent: None, data_type: DataType::Struct(_), .. }), PathSegment::Child(index, name)) => {
                write!(f, "column {index} {name:?}")
            }
            (Some(parent), step) => {
                parent.write_steps(f)?;
                match step {
                    PathSegment::Child(index, name) => write!(f, " > child {index} {name:?}"),
                    PathSegment::Dictionary | PathSegment::Root(_) => f.write_str(" > dictionary"),
                }
            }
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_steps(f)?;
        write!(f, " ({})", self.data_type)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_columns_children_and_dictionaries() {
        let values = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
        let item = Field::new("item", values, true);
        let list = Field::new("tags", DataType::List(item.clone().into()), true);
        let batch = Field::new("", DataType::Struct(vec![list.clone()].into()), false);

        let root = Path::root(&batch);
        let column = root.child(0, &list);
        let child = column.child(0, &item);
        let dictionary = child.dictionary(&DataType::Utf8);
        assert!(root.to_string().starts_with("array (Struct("));
        assert!(column.to_string().starts_with("column 0 \"tags\" (List("));
        assert_eq!(dictionary.to_string(), "column 0 \"tags\" > child 0 \"item\" > dictionary (Utf8)");
        assert_eq!(Path::root(&Field::new("x", DataType::Int8, false)).to_string(), "array \"x\" (Int8)");
        assert_eq!(dictionary.depth, 3);
    }
}

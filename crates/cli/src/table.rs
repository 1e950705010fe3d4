// SPDX-License-Identifier: Apache-2.0
//! Results as tables for people: within the width of a terminal, or a line for each value.

use std::fmt::Write;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The sign for the end of a value, or for columns, that have no room.
const CUT: &str = "…";

/// The narrowest column that is cut.
const NARROWEST: usize = 8;

/// The names of the columns, and the rows as text.
pub struct TextTable {
    names: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl TextTable {
    /// The rows of batches, which have at least one.
    ///
    /// # Errors
    /// If a value has no text, such as a time out of range.
    pub fn try_new(batches: &[RecordBatch], options: &FormatOptions<'_>) -> Result<TextTable, ArrowError> {
        let names = batches
            .first()
            .map_or_else(Vec::new, |batch| batch.schema().fields().iter().map(|field| field.name().clone()).collect());
        let mut rows = Vec::new();
        for batch in batches {
            let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column, options));
            let columns = columns.collect::<Result<Vec<_>, _>>()?;
            for row in 0..batch.num_rows() {
                let text = |column: &ArrayFormatter<'_>| column.value(row).try_to_string().map(printable);
                rows.push(columns.iter().map(text).collect::<Result<Vec<_>, _>>()?);
            }
        }
        Ok(TextTable { names, rows })
    }

    /// The table, if its lines have at most `width` columns of text.
    pub fn whole(&self, width: usize) -> Option<String> {
        let widths = self.widths();
        (line_width(&widths) <= width).then(|| self.lines(&widths))
    }

    /// The table in lines of `width` columns of text, and the number of shown columns. Long values
    /// are cut. Where this is not enough, columns in the middle are left out.
    pub fn cut(&self, width: usize) -> (String, usize) {
        let mut widths = self.widths();
        // The widest columns give way first.
        while line_width(&widths) > width {
            let excess = line_width(&widths) - width;
            let Some(widest) = widths.iter_mut().max() else { break };
            if *widest <= NARROWEST {
                break;
            }
            *widest = (*widest - excess.min(*widest)).max(NARROWEST).max(*widest / 2);
        }
        let mut kept: Vec<usize> = (0..self.names.len()).collect();
        let width_of = |kept: &[usize]| line_width(&kept.iter().map(|index| widths[*index]).collect::<Vec<_>>());
        while kept.len() > 2 && width_of(&kept) + line_width(&[1]) > width && line_width(&widths) > width {
            kept.remove(kept.len() / 2);
        }
        let shown = kept.len();
        let gap = (shown < self.names.len()).then(|| shown.div_ceil(2));
        let pick = |of: &[String]| {
            let mut picked: Vec<String> = kept.iter().map(|index| of[*index].clone()).collect();
            gap.iter().for_each(|gap| picked.insert(*gap, CUT.to_owned()));
            picked
        };
        let mut widths: Vec<usize> = kept.iter().map(|index| widths[*index]).collect();
        gap.iter().for_each(|gap| widths.insert(*gap, 1));
        // A terminal of few columns.
        while line_width(&widths) > width
            && let Some(widest) = widths.iter_mut().max().filter(|widest| **widest > 1)
        {
            *widest -= 1;
        }
        let cut = TextTable { names: pick(&self.names), rows: self.rows.iter().map(|row| pick(row)).collect() };
        (cut.lines(&widths), shown)
    }

    /// The values as they are, with an empty line between rows.
    pub fn paragraphs(&self) -> String {
        let paragraph = |row: &Vec<String>| row.iter().map(|value| value.trim_end().to_owned() + "\n").collect::<String>();
        self.rows.iter().map(paragraph).collect::<Vec<_>>().join("\n")
    }

    /// A line for each value.
    pub fn records(&self) -> String {
        let width = self.names.iter().map(|name| name.width()).max().unwrap_or_default();
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            _ = writeln!(text, "-[ RECORD {} ]-", number + 1);
            for (name, value) in self.names.iter().zip(row) {
                _ = writeln!(text, "{name}{} | {value}", " ".repeat(width - name.width()));
            }
        }
        text
    }

    /// The widths that names and values have.
    fn widths(&self) -> Vec<usize> {
        let width = |(index, name): (usize, &String)| {
            let values = self.rows.iter().filter_map(|row| row.get(index)).flat_map(|value| value.lines());
            values.chain([name.as_str()]).map(UnicodeWidthStr::width).max().unwrap_or_default()
        };
        self.names.iter().enumerate().map(width).collect()
    }

    fn lines(&self, widths: &[usize]) -> String {
        let border: String = widths.iter().map(|width| format!("+{}", "-".repeat(width + 2))).collect::<String>() + "+\n";
        let mut text = border.clone();
        write_row(&mut text, &self.names, widths);
        text.push_str(&border);
        self.rows.iter().for_each(|row| write_row(&mut text, row, widths));
        text + &border
    }
}

/// A value without characters that move a terminal's cursor, apart from ends of lines.
fn printable(value: String) -> String {
    let moves = |c: char| c.is_control() && c != '\n';
    if !value.contains(moves) {
        return value;
    }
    let escaped = |c: char| if moves(c) { c.escape_default().to_string() } else { c.to_string() };
    value.chars().map(escaped).collect()
}

/// The width of a line of a table.
fn line_width(widths: &[usize]) -> usize {
    widths.iter().map(|width| width + 3).sum::<usize>() + 1
}

/// Writes a row, in several lines where a value has several and none is cut.
fn write_row(text: &mut String, row: &[String], widths: &[usize]) {
    let lines: Vec<Vec<&str>> = row.iter().map(|value| value.lines().collect()).collect();
    for line in 0..lines.iter().map(Vec::len).max().unwrap_or_default().max(1) {
        for (value, width) in lines.iter().zip(widths) {
            let part = fitted(value.get(line).unwrap_or(&""), *width);
            _ = write!(text, "| {part}{} ", " ".repeat(width.saturating_sub(part.width())));
        }
        text.push_str("|\n");
    }
}

/// A line of a value, cut to a width.
fn fitted(line: &str, width: usize) -> String {
    if line.width() <= width {
        return line.to_owned();
    }
    let mut room = width.saturating_sub(CUT.width());
    let fits = |c: &char| {
        let taken = c.width().unwrap_or_default();
        let fits = taken <= room;
        room = room.saturating_sub(taken);
        fits
    };
    line.chars().take_while(fits).collect::<String>() + CUT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(names: &[&str], rows: &[&[&str]]) -> TextTable {
        let owned = |values: &[&str]| values.iter().map(|value| value.to_string()).collect::<Vec<_>>();
        TextTable { names: owned(names), rows: rows.iter().map(|row| owned(row)).collect() }
    }

    #[test]
    fn a_table_that_fits_is_whole() {
        let table = table(&["a", "long name"], &[&["1", "x"], &["ä\nb", ""]]);
        let text = "+---+-----------+\n| a | long name |\n+---+-----------+\n| 1 | x         |\n| ä |           |\n| b |           |\n+---+-----------+\n";
        assert_eq!(table.whole(17).as_deref(), Some(text));
        assert_eq!(table.whole(16), None);
        assert_eq!(
            table.records(),
            "-[ RECORD 1 ]-\na         | 1\nlong name | x\n-[ RECORD 2 ]-\na         | ä\nb\nlong name | \n"
        );
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\x1b[2J\tb\nc\r".to_owned()), "a\\u{1b}[2J\\tb\nc\\r");
    }

    #[test]
    fn wide_tables_are_cut_to_the_width() {
        let long = "abcdefghij".repeat(9);
        let rows = [&["1", long.as_str(), "世界世界世界世界世界"][..]];
        let table = table(&["id", "text", "wide"], &rows);
        for width in [14, 20, 40, 60, 80] {
            let (text, shown) = table.cut(width);
            assert!(text.lines().all(|line| line.width() <= width), "{width}\n{text}");
            assert!(shown == if width < 40 { 2 } else { 3 } && text.contains('…'), "{text}");
        }
        let names: Vec<String> = (0..100).map(|number| format!("column_{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let values = vec!["value"; 100];
        let (text, shown) = super::tests::table(&names, &[&values]).cut(80);
        assert!(text.lines().all(|line| line.width() <= 80), "{text}");
        assert!(shown >= 4 && text.contains("column_0") && text.contains("…") && text.contains(" colum"), "{text}");
        assert!(text.contains("column_…") || text.contains("column_99"), "{text}");
    }
}

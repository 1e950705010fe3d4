// SPDX-License-Identifier: Apache-2.0
//! Completion of SQL: keywords, tables, columns, functions and settings.

use std::collections::BTreeSet;

use datafusion::prelude::SessionContext;

/// Keywords that statements often have.
const KEYWORDS: &[&str] = &[
    "ALL",
    "AND",
    "ANTI",
    "AS",
    "ASC",
    "BETWEEN",
    "BY",
    "CASE",
    "CAST",
    "COPY",
    "CREATE",
    "CROSS",
    "DELETE",
    "DESC",
    "DESCRIBE",
    "DISTINCT",
    "DROP",
    "ELSE",
    "END",
    "EXCEPT",
    "EXISTS",
    "EXPLAIN ANALYZE",
    "EXPLAIN VERBOSE",
    "EXTERNAL TABLE",
    "FALSE",
    "FILTER",
    "FROM",
    "FULL",
    "GROUP BY",
    "HAVING",
    "ILIKE",
    "IN",
    "INNER",
    "INSERT INTO",
    "INSERT OVERWRITE",
    "INTERSECT",
    "INTERVAL",
    "IS",
    "JOIN",
    "LEFT",
    "LIKE",
    "LIMIT",
    "LOCATION",
    "MERGE INTO",
    "NOT",
    "NULL",
    "OFFSET",
    "ON",
    "OR",
    "ORDER BY",
    "OUTER",
    "OVER",
    "PARTITION BY",
    "RESET",
    "RIGHT",
    "ROWS",
    "SELECT",
    "SEMI",
    "SET",
    "SHOW",
    "STORED AS",
    "SUMMARIZE",
    "TABLE",
    "THEN",
    "TO",
    "TRUE",
    "TRUNCATE TABLE",
    "UNION ALL",
    "UNNEST",
    "UPDATE",
    "USING",
    "VALUES",
    "VIEW",
    "WHEN",
    "WHERE",
    "WITH",
];

/// Backslash commands, as far as their arguments are known.
const COMMANDS: &[&str] = &[
    "\\?",
    "\\d",
    "\\h",
    "\\i",
    "\\object_store_profiling",
    "\\pset format automatic",
    "\\pset format csv",
    "\\pset format json",
    "\\pset format nd-json",
    "\\pset format table",
    "\\pset format tsv",
    "\\pset maxrows",
    "\\q",
    "\\quiet off",
    "\\quiet on",
    "\\timing off",
    "\\timing on",
    "\\x auto",
    "\\x off",
    "\\x on",
];

/// Most tables whose columns are candidates.
const MOST_TABLES: usize = 200;

/// The names that complete a token, beside keywords.
#[derive(Debug, Default)]
pub struct Candidates {
    names: BTreeSet<String>,
}

impl Candidates {
    /// The names that a session knows.
    pub async fn of(session: &SessionContext) -> Candidates {
        let state = session.state();
        let catalog = &state.config_options().catalog;
        let mut names: BTreeSet<String> = state.config_options().entries().into_iter().map(|entry| entry.key).collect();
        names.extend(state.scalar_functions().keys().cloned());
        names.extend(state.aggregate_functions().keys().cloned());
        names.extend(state.window_functions().keys().cloned());
        names.extend(state.table_functions().keys().cloned());
        let default = state.catalog_list().catalog(&catalog.default_catalog);
        let mut tables = 0;
        for schema_name in default.iter().flat_map(|catalog| catalog.schema_names()).filter(|name| name != "information_schema") {
            let Some(schema) = default.as_ref().and_then(|catalog| catalog.schema(&schema_name)) else { continue };
            for table in schema.table_names() {
                tables += 1;
                if tables <= MOST_TABLES
                    && let Ok(Some(provider)) = schema.table(&table).await
                {
                    names.extend(provider.schema().fields().iter().map(|field| field.name().clone()));
                }
                let is_default = schema_name == catalog.default_schema;
                names.insert(if is_default { table } else { format!("{schema_name}.{table}") });
            }
        }
        Candidates { names }
    }

    /// The token that ends a line, by its first byte, and what completes it. Keywords are in the
    /// case of the token's first letter.
    pub fn complete(&self, line: &str) -> (usize, Vec<String>) {
        if line.starts_with('\\') {
            let continuing = COMMANDS.iter().filter(|command| command.starts_with(line));
            return (0, continuing.map(|command| (*command).to_owned()).collect());
        }
        let is_of_token = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
        let begin = line.char_indices().rev().take_while(|(_, c)| is_of_token(*c)).last().map_or(line.len(), |(at, _)| at);
        let token = &line[begin..];
        if token.is_empty() {
            return (begin, vec![]);
        }
        let continues = |name: &str| name.get(..token.len()).is_some_and(|start| start.eq_ignore_ascii_case(token));
        let lower = token.starts_with(|c: char| c.is_lowercase());
        let keywords = KEYWORDS.iter().filter(|keyword| continues(keyword));
        let keywords = keywords.map(|keyword| if lower { keyword.to_lowercase() } else { (*keyword).to_owned() });
        (begin, keywords.chain(self.names.iter().filter(|name| continues(name)).cloned()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_last_token_of_a_line_is_completed() {
        let session = devicefusion::session().unwrap();
        let table = "CREATE TABLE lineitem AS SELECT 1 AS l_orderkey, 2 AS l_ordered";
        session.sql(table).await.unwrap().collect().await.unwrap();
        let candidates = Candidates::of(&session).await;
        assert_eq!(candidates.complete("\\pset m"), (0, vec!["\\pset maxrows".to_owned()]));
        assert_eq!(candidates.complete("SELECT l_o"), (7, vec!["l_ordered".to_owned(), "l_orderkey".to_owned()]));
        assert_eq!(candidates.complete("select 1 fro"), (9, vec!["from".to_owned(), "from_unixtime".to_owned()]));
        assert_eq!(candidates.complete("SELECT sum(x) FROM lineit").1, ["lineitem"]);
        assert_eq!(candidates.complete("SET device.memory_b").1, ["device.memory_bytes"]);
        assert_eq!(candidates.complete("SUMMA").1, ["SUMMARIZE"]);
        assert_eq!(candidates.complete("HAV"), (0, vec!["HAVING".to_owned()]));
        assert_eq!(candidates.complete("SELECT 'ä "), (11, vec![]));
    }
}

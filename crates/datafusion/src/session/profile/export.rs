// SPDX-License-Identifier: Apache-2.0
//! A profile as HTML, JSON, PostgreSQL's JSON and a trace.

use serde_json::{Value, json};

use super::Profile;
use super::plan::Node;
use super::timeline::LaneKind;

/// The page without its data.
const PAGE: &str = include_str!("page.html");
/// Where the data comes.
const DATA: &str = "\"the profile\"";

pub(super) fn html(profile: &Profile) -> String {
    // Within a script, `</script>` and `<!--` would end or change it.
    PAGE.replacen(DATA, &json(profile).replace('<', "\\u003c"), 1)
}

pub(super) fn json(profile: &Profile) -> String {
    // A struct of strings and numbers is always JSON.
    serde_json::to_string(profile).unwrap_or_default()
}

pub(super) fn pgjson(profile: &Profile) -> String {
    let milliseconds = |nanos: u64| nanos as f64 / 1e6;
    let times = &profile.times;
    let plan = json!([{
        "Plan": Node::pgjson(&profile.nodes, 0),
        "Planning Time": milliseconds(times.planning),
        "Execution Time": milliseconds(times.total),
    }]);
    format!("{plan:#}")
}

pub(super) fn trace(profile: &Profile) -> String {
    let mut events = vec![];
    for (process, name) in [(1, "device"), (2, "host")] {
        events.push(json!({ "ph": "M", "name": "process_name", "pid": process, "args": { "name": name } }));
    }
    let micros = |nanos: u64| nanos as f64 / 1e3;
    let mut thread = 0;
    for lane in &profile.lanes {
        let process = if lane.kind == LaneKind::Kernels { 1 } else { 2 };
        let rows = lane.spans.iter().map(|span| span.row + 1).max().unwrap_or(0);
        // Spans of one thread are nested, or none overlaps another.
        let is_nested = lane.kind == LaneKind::Host;
        for row in 0..if is_nested { 1 } else { rows } {
            thread += 1;
            events
                .push(json!({ "ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": { "name": lane.name } }));
            for span in lane.spans.iter().filter(|span| is_nested || span.row == row) {
                let operator = profile.nodes.get(span.node).map_or("", Node::name);
                let name = if span.label.is_empty() { operator } else { &span.label };
                events.push(json!({
                    "ph": "X", "name": name, "cat": lane.kind, "pid": process, "tid": thread,
                    "ts": micros(span.start), "dur": micros(span.end - span.start), "args": { "operator": operator },
                }));
            }
        }
    }
    Value::from_iter([("traceEvents", Value::from(events)), ("displayTimeUnit", "ns".into())]).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_one_place_for_data() {
        assert_eq!(PAGE.matches(DATA).count(), 1);
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!PAGE.contains(outside), "{outside}: the page needs another file");
        }
    }
}

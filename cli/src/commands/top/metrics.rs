//! Metrics as Prometheus reads them, and what they change by in a second.

use std::collections::BTreeMap;
use std::time::Instant;

/// Metrics of a moment, by name and labels.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    at: Instant,
    values: BTreeMap<String, f64>,
}

/// What is shown of them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Metrics {
    pub(super) rows: Vec<Row>,
}

/// One metric.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) value: f64,
    /// Of a counter.
    pub(super) per_second: Option<f64>,
}

/// What a counter's name ends with; the buckets of histograms are left out.
const COUNTERS: [&str; 3] = ["_total", "_count", "_sum"];

impl Sample {
    pub(super) fn parse(text: &str) -> Sample {
        let values = text.lines().filter(|line| !line.starts_with('#')).filter_map(line).collect();
        Sample { at: Instant::now(), values }
    }
}

/// Name, with labels, and value.
fn line(line: &str) -> Option<(String, f64)> {
    let end = line.rfind('}').map_or_else(|| line.find(' '), |brace| Some(brace + 1))?;
    let (name, value) = line.split_at_checked(end)?;
    let value = value.split_whitespace().next()?.parse().ok()?;
    let name = name.strip_prefix("outboard_").unwrap_or(name);
    (!base(name).ends_with("_bucket")).then(|| (outboard_output::one_line(name), value))
}

fn base(name: &str) -> &str {
    name.split('{').next().unwrap_or(name)
}

impl Metrics {
    /// A moment's, with rates since an earlier one.
    pub(super) fn between(before: Option<&Sample>, now: &Sample) -> Metrics {
        let passed = before.map(|before| now.at.saturating_duration_since(before.at).as_secs_f64());
        let row = |(name, value): (&String, &f64)| {
            let is_counter = COUNTERS.iter().any(|end| base(name).ends_with(end));
            let earlier = before.and_then(|before| before.values.get(name)).filter(|_| is_counter);
            let rate = |earlier: &f64| passed.filter(|passed| *passed > 0.0).map(|passed| (value - earlier) / passed);
            // One that has become less belongs to a server that was started again.
            let per_second = earlier.and_then(rate).filter(|rate| *rate >= 0.0);
            Row { name: name.clone(), value: *value, per_second }
        };
        Metrics { rows: now.values.iter().map(row).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn counters_have_rates_and_what_is_no_metric_is_left_out() {
        let text = |executed: u32| {
            format!(
                "# HELP outboard_rpc_sessions Sessions\n# TYPE outboard_rpc_sessions gauge\noutboard_rpc_sessions{{client=\"a }} b\"}} 2\n\
                 outboard_rpc_executed_graphs_total{{device=\"CPU0\"}} {executed} 12345\noutboard_rpc_wait_seconds_bucket{{le=\"1.0\"}} 4\n\
                 outboard_rpc_wait_seconds_sum 1.5\nnothing\n\n# EOF\n"
            )
        };
        let first = Sample::parse(&text(10));
        let second = Sample { at: first.at + Duration::from_secs(2), ..Sample::parse(&text(30)) };
        let row = |name: &str, value, per_second| Row { name: name.into(), value, per_second };
        let expected = vec![
            row("rpc_executed_graphs_total{device=\"CPU0\"}", 30.0, Some(10.0)),
            row("rpc_sessions{client=\"a } b\"}", 2.0, None),
            row("rpc_wait_seconds_sum", 1.5, Some(0.0)),
        ];
        assert_eq!(Metrics::between(Some(&first), &second).rows, expected);
        assert!(Metrics::between(None, &second).rows.iter().all(|row| row.per_second.is_none()));
        assert_eq!(
            Metrics::between(Some(&second), &Sample { at: second.at + Duration::from_secs(1), ..first }).rows[0]
                .per_second,
            None
        );
    }
}

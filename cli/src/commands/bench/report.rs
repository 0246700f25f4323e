//! The results: rows of a markdown table as llama-bench prints them, and JSON.

use crate::measure::{Reach, Sample, mean, median, quantile, stddev};
use crate::trace::{TokenTime, time_lines};
use outboard::Model;
use outboard_core::error::Bytes;
use serde::Serialize;

/// A test on a set of devices. `test`, `np`, `tps`, `tps_each`, `stddev`, `n` and `devices` are names that scripts rely on.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    test: String,
    /// Sequences at once.
    np: usize,
    /// Mean of tokens per second, of all sequences together.
    tps: f64,
    /// Of each of them.
    tps_each: f64,
    stddev: f64,
    /// Repetitions.
    n: usize,
    devices: Vec<String>,
    /// Some of the devices are on servers.
    remote: bool,
    median_tps: f64,
    /// Median of milliseconds per token.
    ms_per_token: f64,
    samples_tps: Vec<f64>,
    /// Bytes per token between this process and all servers together, and among servers; medians.
    sent_bytes: f64,
    recv_bytes: f64,
    peer_bytes: f64,
    /// Milliseconds between pieces of text, of all repetitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    gap_ms: Option<Gaps>,
    /// Where the time of a token goes, from a repetition of its own; empty for prompts and where it is not known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) token_times: Vec<TokenTime>,
    /// Of the first set of devices only: beside each of the others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    beside: Vec<Beside>,
}

#[derive(Debug, Serialize)]
struct Gaps {
    p50: f64,
    p95: f64,
    max: f64,
}

/// The pairs of repetitions that ran one right after the other.
#[derive(Debug, Serialize)]
struct Beside {
    devices: Vec<String>,
    /// Of speeds; above 1, the first set is faster.
    ratio: Spread,
    /// Milliseconds that a token takes longer on the first set.
    cost_ms: Spread,
    /// The other set is local and this one is not, so that the cost is that of the network.
    network: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Spread {
        Spread { median: median(values), min: quantile(values, 0.0), max: quantile(values, 1.0) }
    }
}

impl Row {
    /// The test, and of how many sequences at once.
    fn name(&self) -> String {
        if self.np == 1 { self.test.clone() } else { format!("{} x{}", self.test, self.np) }
    }

    pub(super) fn new(test: String, np: usize, devices: Vec<String>, reach: Reach, samples: &[Sample]) -> Row {
        let tps: Vec<f64> = samples.iter().map(Sample::tps).collect();
        let ms: Vec<f64> = samples.iter().map(Sample::ms_per_token).collect();
        let per_token = |bytes: fn(&Sample) -> u64| {
            median(&samples.iter().map(|s| bytes(s) as f64 / s.tokens.max(1) as f64).collect::<Vec<_>>())
        };
        let gaps: Vec<f64> = samples.iter().flat_map(|s| &s.gaps).map(|g| g.as_secs_f64() * 1e3).collect();
        let gap_ms = (!gaps.is_empty()).then(|| Gaps {
            p50: median(&gaps),
            p95: quantile(&gaps, 0.95),
            max: quantile(&gaps, 1.0),
        });
        Row {
            test,
            np,
            tps: mean(&tps),
            tps_each: mean(&tps) / np as f64,
            stddev: stddev(&tps),
            n: samples.len(),
            devices,
            remote: reach == Reach::Remote,
            median_tps: median(&tps),
            ms_per_token: median(&ms),
            samples_tps: tps,
            sent_bytes: per_token(|s| s.net.sent_bytes),
            recv_bytes: per_token(|s| s.net.recv_bytes),
            peer_bytes: per_token(|s| s.net.peer_bytes),
            gap_ms,
            token_times: Vec::new(),
            beside: Vec::new(),
        }
    }

    /// Puts this row, of `mine`, beside the others, each with its samples.
    pub(super) fn compare(&mut self, mine: &[Sample], rows: &[Row], samples: &[Vec<Sample>]) {
        self.beside = rows
            .iter()
            .zip(samples)
            .map(|(row, theirs)| {
                let pairs = || mine.iter().zip(theirs);
                let ratios: Vec<f64> = pairs().map(|(a, b)| a.tps() / b.tps()).collect();
                let costs: Vec<f64> = pairs().map(|(a, b)| a.ms_per_token() - b.ms_per_token()).collect();
                Beside {
                    devices: row.devices.clone(),
                    ratio: Spread::of(&ratios),
                    cost_ms: Spread::of(&costs),
                    network: self.remote && !row.remote,
                }
            })
            .collect();
    }
}

/// A markdown table whose rows are printed as they come.
pub(super) struct Table {
    model: String,
    size: String,
    params: String,
    widths: [usize; 6],
    begun: bool,
}

const HEADER: [&str; 6] = ["model", "size", "params", "devices", "test", "t/s"];
/// Columns with numbers.
const RIGHT: [bool; 6] = [false, true, true, false, true, true];

impl Table {
    pub(super) fn new<'a>(loaded: &Model, devices: impl Iterator<Item = &'a [String]>) -> Table {
        let gguf = loaded.inner().gguf();
        let params: usize = gguf.tensors().iter().map(|t| t.layout.elements()).sum();
        let size: u64 = gguf.tensors().iter().map(|t| gguf.data(t).len() as u64).sum();
        let mut table = Table {
            model: format!("{} {}", loaded.inner().hparams().arch, loaded.inner().name()),
            size: Bytes(size).to_string(),
            params: format!("{:.2} M", params as f64 / 1e6),
            widths: [0, 10, 10, 0, 10, 20],
            begun: false,
        };
        table.widths[0] = table.model.chars().count().max(HEADER[0].len());
        table.widths[3] = devices.map(|d| d.join("+").chars().count()).max().unwrap_or(0).max(HEADER[3].len());
        table
    }

    /// The line of a row, with the head of the table before the first one.
    pub(super) fn lines(&mut self, row: &Row) -> String {
        let mut out = String::new();
        if !std::mem::replace(&mut self.begun, true) {
            out += &format!("{}\n", self.line(HEADER));
            let rule = self
                .widths
                .iter()
                .zip(RIGHT)
                .map(|(&w, right)| if right { format!("{}:", "-".repeat(w + 1)) } else { "-".repeat(w + 2) });
            out += &format!("|{}|\n", rule.collect::<Vec<_>>().join("|"));
        }
        let (devices, speed) = (row.devices.join("+"), format!("{:.2} ± {:.2}", row.tps, row.stddev));
        out + &format!("{}\n", self.line([&self.model, &self.size, &self.params, &devices, &row.name(), &speed]))
    }

    fn line(&self, cells: [&str; 6]) -> String {
        let cells = cells
            .iter()
            .zip(self.widths)
            .zip(RIGHT)
            .map(|((cell, w), right)| if right { format!(" {cell:>w$} ") } else { format!(" {cell:<w$} ") });
        format!("|{}|", cells.collect::<Vec<_>>().join("|"))
    }
}

/// Lines behind the table: what the pairs say, and what went over the network.
pub(super) fn comparisons(rows: &[Row]) -> String {
    let mut out = String::new();
    for row in rows {
        for other in &row.beside {
            let (ratio, cost) = (other.ratio, other.cost_ms);
            out += &format!(
                "\n{}: {} {:.3} ms per token beside {} (pairs {:.3}..{:.3}), {:.2} times its speed ({:.2}..{:.2}), medians of {}\n",
                row.name(),
                if other.network { "network cost" } else { "difference" },
                cost.median,
                other.devices.join("+"),
                cost.min,
                cost.max,
                ratio.median,
                ratio.min,
                ratio.max,
                row.n,
            );
        }
        if row.remote {
            out += &format!(
                "{}{}: bytes per token: {:.0} sent, {:.0} received, {:.0} between servers\n",
                if row.beside.is_empty() { "\n" } else { "" },
                row.name(),
                row.sent_bytes,
                row.recv_bytes,
                row.peer_bytes
            );
            for line in time_lines(&row.token_times).lines() {
                out += &format!("{}: a token: {line}\n", row.test);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::Net;
    use std::time::{Duration, Instant};

    fn samples(ms: &[u64]) -> Vec<Sample> {
        let net = Net { sent_bytes: 800, recv_bytes: 400, peer_bytes: 0 };
        let start = Instant::now();
        let range = |ms| (start, start + Duration::from_millis(ms));
        ms.iter().map(|&ms| Sample { tokens: 4, range: range(ms), net, gaps: Vec::new() }).collect()
    }

    #[test]
    fn names_that_scripts_rely_on() {
        let row = Row::new("tg4".into(), 1, vec!["a:1/CPU0".into()], Reach::Remote, &samples(&[40, 40]));
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!((json["test"].as_str(), json["n"].as_u64()), (Some("tg4"), Some(2)));
        assert_eq!((json["tps"].as_f64(), json["stddev"].as_f64()), (Some(100.0), Some(0.0)));
        assert_eq!((json["devices"][0].as_str(), json["sent_bytes"].as_f64()), (Some("a:1/CPU0"), Some(200.0)));
    }

    #[test]
    fn pairs_decide() {
        // The machine became twice as slow in the middle; pairs do not mind.
        let (ours, theirs) = (samples(&[20, 40, 40]), samples(&[10, 20, 20]));
        let mut row = Row::new("tg4".into(), 1, vec![], Reach::Remote, &ours);
        let other = Row::new("tg4".into(), 1, vec!["CPU0".into()], Reach::Local, &theirs);
        row.compare(&ours, &[other], &[theirs]);
        assert!(row.beside[0].network);
        assert_eq!(row.beside[0].ratio, Spread { median: 0.5, min: 0.5, max: 0.5 });
        assert_eq!(row.beside[0].cost_ms, Spread { median: 5.0, min: 2.5, max: 5.0 });
    }
}

//! Medians, ratios and the table, in the shape of `llama-bench`.

use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// What is measured, while it is.
pub(crate) struct Test {
    name: String,
    n_tokens: u32,
    ours: Vec<f64>,
    llama: Vec<f64>,
    agreed: Option<usize>,
}

/// One line of the table.
#[derive(Serialize)]
pub(crate) struct Line {
    test: String,
    /// Tokens per second, by pair.
    outboard: Vec<f64>,
    llama: Vec<f64>,
    outboard_median: f64,
    llama_median: f64,
    /// Of the medians; above 1, Outboard is faster.
    ratio: f64,
    /// Of the pairs: the least and the greatest.
    ratio_range: [f64; 2],
    /// Pairs after which both sides held the same token for the most probable one, where that was looked at.
    agreed: Option<usize>,
}

/// Everything that is printed.
#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) model: String,
    pub(crate) processor: String,
    pub(crate) isa: String,
    pub(crate) threads: u16,
    pub(crate) llama_system_info: String,
    pub(crate) tests: Vec<Line>,
}

impl Test {
    pub(crate) fn new(name: String, n_tokens: u32) -> Test {
        Test { name, n_tokens, ours: Vec::new(), llama: Vec::new(), agreed: None }
    }

    /// Adds a pair: the times of Outboard and of llama.cpp, and whether they agree, if that was looked at.
    pub(crate) fn add(&mut self, (ours, llama): (Duration, Duration), agreed: Option<bool>) {
        let speed = |t: Duration| f64::from(self.n_tokens) / t.as_secs_f64();
        self.ours.push(speed(ours));
        self.llama.push(speed(llama));
        if let Some(agreed) = agreed {
            self.agreed = Some(self.agreed.unwrap_or(0) + usize::from(agreed));
        }
    }

    pub(crate) fn finish(self) -> Line {
        let ratios = || self.ours.iter().zip(&self.llama).map(|(a, b)| a / b);
        let (outboard_median, llama_median) = (median(&self.ours), median(&self.llama));
        Line {
            ratio: outboard_median / llama_median,
            ratio_range: [ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max)],
            test: self.name,
            outboard: self.ours,
            llama: self.llama,
            outboard_median,
            llama_median,
            agreed: self.agreed,
        }
    }
}

/// The middle value, or the mean of the two in the middle.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let (below, above) = (sorted.get(middle.saturating_sub(1)), sorted.get(middle));
    match (below, above) {
        (Some(below), Some(above)) if sorted.len() % 2 == 0 => (below + above) / 2.0,
        (_, Some(above)) => *above,
        _ => f64::NAN,
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header =
            ["model", "threads", "test", "Outboard t/s", "llama.cpp t/s", "ratio", "ratios of pairs", "same token"];
        let mut rows = vec![header.map(str::to_owned)];
        for line in &self.tests {
            rows.push([
                self.model.clone(),
                self.threads.to_string(),
                line.test.clone(),
                format!("{:.2}", line.outboard_median),
                format!("{:.2}", line.llama_median),
                format!("{:.3}", line.ratio),
                format!("{:.3}..{:.3}", line.ratio_range[0], line.ratio_range[1]),
                line.agreed.map_or("-".into(), |agreed| format!("{agreed}/{}", line.outboard.len())),
            ]);
        }
        let width = |c: usize| rows.iter().map(|r| r[c].len()).max().unwrap_or(0);
        let widths: [usize; 8] = std::array::from_fn(width);
        for (i, row) in rows.iter().enumerate() {
            for (c, cell) in row.iter().enumerate() {
                match c {
                    0 | 2 => write!(f, "| {cell:<0$} ", widths[c])?,
                    _ => write!(f, "| {cell:>0$} ", widths[c])?,
                }
            }
            writeln!(f, "|")?;
            if i == 0 {
                for (c, width) in widths.iter().enumerate() {
                    match c {
                        0 | 2 => write!(f, "| {} ", "-".repeat(*width))?,
                        _ => write!(f, "| {}: ", "-".repeat(*width - 1))?,
                    }
                }
                writeln!(f, "|")?;
            }
        }
        writeln!(f, "\nprocessor: {}; Outboard's kernels: {}", self.processor, self.isa)?;
        writeln!(f, "llama.cpp: {}", self.llama_system_info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ratios() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        let mut test = Test::new("pp8".into(), 8);
        let seconds = Duration::from_secs_f64;
        test.add((seconds(1.0), seconds(2.0)), Some(true));
        test.add((seconds(2.0), seconds(2.0)), Some(false));
        let line = test.finish();
        assert_eq!((line.outboard_median, line.llama_median, line.ratio), (6.0, 4.0, 1.5));
        assert_eq!((line.ratio_range, line.agreed), ([1.0, 2.0], Some(1)));
    }
}

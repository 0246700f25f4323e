//! How things are shown.

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;

/// A plain table with a header; the columns of `right` hold numbers.
pub(crate) fn table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if right.contains(&i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A table as text, each line indented.
pub(crate) fn indented(table: &Table) -> String {
    table.to_string().lines().map(|l| format!("  {}\n", l.trim_end())).collect()
}

/// A bar for bytes, shown on a terminal only.
pub(crate) fn bytes_bar(total: u64, what: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    let bar = ProgressBar::new(total).with_message(what);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Milliseconds with fractions.
pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// `n` per second; 0 where no time passed.
pub(crate) fn per_second(n: usize, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if n == 0 || seconds <= 0.0 { 0.0 } else { n as f64 / seconds }
}

/// A message as one line without control characters: errors may quote what a file or a server said.
pub(crate) fn one_line(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.split(' ').filter(|w| !w.is_empty()).collect::<Vec<_>>().join(" ")
}

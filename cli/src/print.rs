//! How things are shown.

use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use outboard_llm::Stall;
use outboard_output as output;
use std::sync::Arc;
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
    if !output::err_is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    let bar = ProgressBar::new(total).with_message(what);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Says who keeps a run waiting.
pub(crate) fn stalls() -> Arc<dyn Fn(&Stall) + Send + Sync> {
    Arc::new(|stall| {
        // If nobody reads it, the next text finds that out.
        let _ = output::errln(stall);
    })
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

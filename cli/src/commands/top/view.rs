//! How it looks in a terminal: a text of lines, as wide as there is room, of which a part is shown.

use super::ask::{Answer, Seen};
use super::metrics::Metrics;
use super::seen::{Cluster, Device, Host, Loss, Slot, State, Token};
use outboard_core::error::Bytes;
use outboard_output::one_line;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use time::OffsetDateTime;

/// Columns of the bar of a token's time.
const BAR: usize = 32;
/// Columns of the strip of layers.
const STRIP: usize = 20;

/// What has come last, and which part of it is looked at.
pub(super) struct View {
    url: String,
    seen: Option<Seen>,
    problem: Option<String>,
    from: u16,
}

impl View {
    pub(super) fn new(url: &str) -> View {
        View { url: one_line(url), seen: None, problem: None, from: 0 }
    }

    pub(super) fn take(&mut self, answer: Answer) {
        match answer {
            Ok(seen) => (self.seen, self.problem) = (Some(seen), None),
            Err(why) => self.problem = Some(why),
        }
    }

    pub(super) fn scroll(&mut self, lines: i32) {
        let from = i32::from(self.from).saturating_add(lines).max(0);
        self.from = u16::try_from(from).unwrap_or(u16::MAX);
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(2), Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
        frame.render_widget(Paragraph::new(self.head()), head);
        let lines = match &self.seen {
            None => Vec::new(),
            Some(Seen::Cluster(cluster)) => cluster_lines(cluster),
            Some(Seen::Metrics(metrics)) => metric_lines(metrics, usize::from(body.width)),
        };
        let room = usize::from(body.height);
        self.from = self.from.min(u16::try_from(lines.len().saturating_sub(room)).unwrap_or(u16::MAX));
        frame.render_widget(Paragraph::new(lines).scroll((self.from, 0)), body);
        frame.render_widget(Paragraph::new("q quits, arrows and pages scroll".dim()), foot);
    }

    /// The first two lines: what is looked at, and the numbers of all.
    fn head(&self) -> Vec<Line<'static>> {
        let mut first = vec!["Outboard ".bold(), self.url.clone().into()];
        let second = match (&self.problem, &self.seen) {
            (Some(why), _) => vec![Span::styled(format!("{why}; asking again"), bad())],
            (None, None) => vec!["asking".dim()],
            (None, Some(Seen::Metrics(_))) => vec!["metrics of a server".into()],
            (None, Some(Seen::Cluster(cluster))) => {
                first.extend([" ".into(), one_line(&cluster.model.name).bold()]);
                if cluster.models.len() > 1 {
                    first.push(format!(" (one of {} models: --model)", cluster.models.len()).dim());
                }
                vec![totals(cluster).into()]
            }
        };
        vec![first.into(), second.into()]
    }
}

fn bad() -> Style {
    Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)
}

fn totals(cluster: &Cluster) -> String {
    let busy = cluster.slots.iter().filter(|slot| slot.is_processing).count();
    let rate = cluster.tokens_per_second.map_or_else(|| "-".into(), |rate| format!("{rate:.1}"));
    let token = cluster.token_ms.map_or_else(|| "-".into(), |ms| format!("{ms:.2} ms"));
    let stops = if cluster.draining { ", it stops" } else { "" };
    let (all, waiting) = (cluster.slots.len(), cluster.waiting);
    format!("{rate} tokens a second, {token} a token; {busy} of {all} places taken, {waiting} texts wait{stops}")
}

fn cluster_lines(cluster: &Cluster) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    if let Some(stall) = &cluster.stall {
        let what = format!("waiting {} s for {} ({})", stall.seconds, one_line(&stall.who), one_line(&stall.doing));
        lines.push(Line::styled(what, bad()));
    }
    for host in &cluster.hosts {
        lines.extend(host_lines(host, cluster));
    }
    lines.push("".into());
    lines.extend(slot_lines(&cluster.slots));
    lines.extend(loss_lines(&cluster.losses));
    let model = &cluster.model;
    let facts = format!(
        "{}, {} layers, {}; contexts of {} tokens; {} tokens generated; {}",
        one_line(&model.architecture),
        model.layers,
        Bytes(model.size),
        model.n_ctx,
        cluster.tokens,
        one_line(&cluster.build_info),
    );
    lines.extend(["".into(), Line::from(facts.dim())]);
    lines
}

fn host_lines(host: &Host, cluster: &Cluster) -> Vec<Line<'static>> {
    let name = host.endpoint.as_deref().map_or_else(|| "this host".into(), one_line);
    let (state, style) = match host.state {
        State::Here => ("", Style::new()),
        State::Answers => ("answers", Style::new()),
        State::Silent => ("SILENT", bad()),
        State::Lost => ("LOST", bad()),
        State::Unknown => ("not asked yet", Style::new()),
    };
    let mut head = vec![Span::styled(name, style.add_modifier(Modifier::BOLD)), " ".into(), Span::styled(state, style)];
    if let Some(ms) = host.round_trip_ms {
        head.push(format!("  round trip {ms:.2} ms").into());
    }
    if let Some(rates) = &host.bytes_per_second {
        let (sent, received) = (Bytes(rates.sent), Bytes(rates.received));
        head.push(format!("  {sent}/s sent, {received}/s received").into());
        if rates.to_servers > 0 {
            head.push(format!(", {}/s to servers", Bytes(rates.to_servers)).into());
        }
    }
    let mut lines = vec!["".into(), head.into()];
    if let Some(detail) = &host.detail {
        lines.push(Line::styled(format!("  {}", one_line(detail)), bad()));
    }
    for device in &host.devices {
        lines.extend(device_lines(device, cluster));
    }
    lines
}

fn device_lines(device: &Device, cluster: &Cluster) -> Vec<Line<'static>> {
    let mut what = vec![format!("  {:8} ", one_line(&device.name)).bold()];
    match &device.holds {
        None => what.push("holds nothing of the model".dim()),
        Some(holds) => {
            what.push(strip(&holds.layers, cluster.model.layers));
            let ranges: Vec<String> = holds.layers.iter().map(|(first, last)| format!("{first}-{last}")).collect();
            let (weights, cache) = (Bytes(holds.weight_bytes), Bytes(holds.cache_bytes));
            what.push(format!(" layers {}, weights {weights}, cache {cache}", ranges.join(",")).into());
        }
    }
    if let Some(memory) = &device.memory {
        what.push(format!(", {} free", Bytes(memory.free)).into());
    }
    let mut lines = vec![what.into()];
    if let (Some(token), Some(whole)) = (&device.token, cluster.token_ms.filter(|ms| *ms > 0.0)) {
        let mut line: Vec<Span<'static>> = vec![" ".repeat(11).into()];
        line.extend(bar(token, whole));
        let Token { compute_ms, wire_ms, waiting_ms } = token;
        line.push(format!(" {compute_ms:.2} ms computes, {wire_ms:.2} wire, {waiting_ms:.2} waits").into());
        lines.push(line.into());
    }
    lines
}

/// Which layers of all these are.
fn strip(ranges: &[(usize, usize)], all: usize) -> Span<'static> {
    let all = all.max(1);
    let is_in = |column: usize| {
        // The layers that a column stands for.
        let (from, to) = (column * all / STRIP, ((column + 1) * all).div_ceil(STRIP));
        ranges.iter().any(|&(first, last)| first < to && last >= from)
    };
    let text: String = (0..STRIP).map(|column| if is_in(column) { '█' } else { '·' }).collect();
    Span::styled(text, Style::new().fg(Color::Cyan))
}

/// The parts of a token's time. They differ without colours, too.
fn bar(token: &Token, whole: f64) -> [Span<'static>; 3] {
    let columns = |ms: f64| ((ms / whole) * BAR as f64).round() as usize;
    let compute = columns(token.compute_ms).min(BAR);
    let wire = columns(token.compute_ms + token.wire_ms).clamp(compute, BAR) - compute;
    let part = |text: &str, n: usize, color| Span::styled(text.repeat(n), Style::new().fg(color));
    [part("█", compute, Color::Cyan), part("▒", wire, Color::Yellow), part("·", BAR - compute - wire, Color::DarkGray)]
}

fn slot_lines(slots: &[Slot]) -> Vec<Line<'static>> {
    let running: Vec<&Slot> = slots.iter().filter(|slot| slot.is_processing).collect();
    if running.is_empty() {
        return vec!["no text is under way".dim().into()];
    }
    let head = Line::from("place   prompt   tokens   seconds   a second".dim());
    let row = |slot: &&Slot| {
        let rate = if slot.seconds > 0.0 { slot.tokens as f64 / slot.seconds } else { 0.0 };
        let Slot { id, prompt_tokens, tokens, seconds, .. } = slot;
        Line::from(format!("{id:5} {prompt_tokens:8} {tokens:8} {seconds:9.1} {rate:10.1}"))
    };
    std::iter::once(head).chain(running.iter().map(row)).collect()
}

fn loss_lines(losses: &[Loss]) -> Vec<Line<'static>> {
    if losses.is_empty() {
        return Vec::new();
    }
    let line = |loss: &Loss| {
        let at = i64::try_from(loss.at).ok().and_then(|at| OffsetDateTime::from_unix_timestamp(at).ok());
        let at =
            at.map_or_else(String::new, |at| format!("{:02}:{:02}:{:02} UTC ", at.hour(), at.minute(), at.second()));
        Line::from(format!("  {at}{}", one_line(&loss.what)))
    };
    ["".into(), "lost, and gone on".bold().into()].into_iter().chain(losses.iter().rev().map(line)).collect()
}

fn metric_lines(metrics: &Metrics, width: usize) -> Vec<Line<'static>> {
    let name = metrics.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).min(width.saturating_sub(30));
    let mut lines = vec!["".into(), Line::from(format!("{:name$} {:>14} {:>12}", "metric", "value", "a second").dim())];
    for row in &metrics.rows {
        let shown: String = row.name.chars().take(name).collect();
        let rate = row.per_second.map_or_else(String::new, short);
        lines.push(format!("{shown:name$} {:>14} {rate:>12}", short(row.value)).into());
    }
    lines
}

/// A number without more digits than it needs.
fn short(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 { format!("{value}") } else { format!("{value:.3}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::metrics::Sample;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    fn cluster() -> Cluster {
        let device = |name: &str, layers: [usize; 2], compute: f64, waiting: f64| {
            json!({
                "name": name, "holds": {"layers": [layers], "weight_bytes": 1 << 20, "cache_bytes": 1 << 21},
                "memory": {"total": 1u64 << 34, "free": 1u64 << 33},
                "token": {"compute_ms": compute, "wire_ms": 1.0, "waiting_ms": waiting},
            })
        };
        let lost = json!({"name": "CPU0", "holds": null, "memory": null, "token": null});
        serde_json::from_value(json!({
            "build_info": "outboard-0.1.0", "draining": false, "tokens": 99, "tokens_per_second": 124.96, "token_ms": 8.0, "waiting": 3,
            "model": {"name": "Small\u{1b}[2J", "architecture": "llama", "layers": 20, "size": 1 << 20, "n_ctx": 2048},
            "slots": [{"id": 0, "is_processing": true, "prompt_tokens": 7, "tokens": 20, "seconds": 2.0}, {"id": 1, "is_processing": false}],
            "hosts": [
                {"endpoint": null, "state": "here", "devices": [device("CPU0", [0, 9], 4.0, 3.0)]},
                {"endpoint": "b:1", "state": "answers", "round_trip_ms": 0.5, "devices": [device("CUDA0", [10, 19], 3.0, 4.0)],
                 "bytes_per_second": {"sent": 2048, "received": 1024, "to_servers": 0}},
                {"endpoint": "c:1", "state": "lost", "detail": "the connection has ended", "devices": [lost]},
            ],
            "losses": [{"at": 3661, "what": "c:1 was lost", "stood_still_ms": 900.0}], "stall": null,
        }))
        .unwrap()
    }

    fn drawn(view: &mut View, width: u16, height: u16) -> (String, Terminal<TestBackend>) {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let rows = terminal.backend().buffer().content().chunks(usize::from(width));
        let text =
            rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned() + "\n");
        (text.collect(), terminal)
    }

    #[test]
    fn a_cluster_is_shown_with_its_bars_and_what_is_lost() {
        let mut view = View::new("http://127.0.0.1:8080");
        assert!(drawn(&mut view, 100, 10).0.contains("asking"));
        view.take(Ok(Seen::Cluster(Box::new(cluster()))));
        let (text, terminal) = drawn(&mut view, 110, 30);
        for line in [
            "Outboard http://127.0.0.1:8080 Small [2J",
            "125.0 tokens a second, 8.00 ms a token; 1 of 2 places taken, 3 texts wait",
            "  CPU0     ██████████·········· layers 0-9, weights 1.0 MiB, cache 2.0 MiB, 8.0 GiB free",
            "           ████████████████▒▒▒▒············ 4.00 ms computes, 1.00 wire, 3.00 waits",
            "b:1 answers  round trip 0.50 ms  2.0 KiB/s sent, 1.0 KiB/s received",
            "  CUDA0    ··········██████████ layers 10-19, weights 1.0 MiB, cache 2.0 MiB, 8.0 GiB free",
            "c:1 LOST",
            "  the connection has ended",
            "    0        7       20       2.0       10.0",
            "  01:01:01 UTC c:1 was lost",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}\n{text}");
        }
        let buffer = terminal.backend().buffer();
        let row = text.lines().position(|line| line.starts_with("c:1 LOST")).unwrap();
        assert_eq!(buffer[(4, u16::try_from(row).unwrap())].fg, Color::Red);
        // The server goes, and what was seen stays.
        view.take(Err("connection refused".into()));
        let (text, _) = drawn(&mut view, 110, 30);
        assert!(text.contains("connection refused; asking again") && text.contains("c:1 LOST"), "{text}");
    }

    #[test]
    fn what_has_no_room_is_scrolled_to_and_no_further() {
        let mut view = View::new("http://127.0.0.1:8080");
        view.take(Ok(Seen::Cluster(Box::new(cluster()))));
        let (text, _) = drawn(&mut view, 60, 10);
        assert!(text.contains("this host") && !text.contains("tokens generated") && text.contains("q quits"), "{text}");
        view.scroll(1000);
        let (end, _) = drawn(&mut view, 60, 10);
        assert!(end.contains("llama, 20 layers") && !end.contains("this host"), "{end}");
        view.scroll(-1);
        assert_ne!(drawn(&mut view, 60, 10).0, end);
        view.scroll(i32::MIN);
        assert_eq!(drawn(&mut view, 60, 10).0, text);
        // Too small for anything.
        drawn(&mut view, 1, 1);
    }

    #[test]
    fn metrics_are_a_table() {
        let mut view = View::new("http://127.0.0.1:9100");
        let sample = Sample::parse("outboard_rpc_sessions{client=\"a\"} 2\noutboard_rpc_wait_seconds_sum 1.5\n");
        view.take(Ok(Seen::Metrics(Metrics::between(None, &sample))));
        let (text, _) = drawn(&mut view, 60, 10);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(
            rows.contains(&vec!["rpc_sessions{client=\"a\"}", "2"])
                && rows.contains(&vec!["rpc_wait_seconds_sum", "1.500"]),
            "{text}"
        );
    }
}

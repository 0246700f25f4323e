//! What `outboard plan` prints: JSON, and text for people.

use crate::devices::Net;
use crate::model::Layers;
use crate::print;
use outboard::Model;
use outboard_core::error::Bytes;
use serde::Serialize;

/// The JSON document.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) model: ModelRow,
    pub(super) n_ctx: usize,
    pub(super) n_ctx_train: usize,
    pub(super) fits: bool,
    pub(super) devices: Vec<DeviceRow>,
    /// Milliseconds of a token, decoded at the beginning of the context.
    pub(super) token_ms: f64,
    pub(super) decode_tps: f64,
    pub(super) decode_tokens: usize,
    pub(super) decode_repetitions: usize,
    /// Of the token's time, what the head (output matrix and sampling) takes on the device with the last layer.
    pub(super) head_ms: Option<f64>,
    pub(super) prompt_ms: f64,
    pub(super) prompt_tps: f64,
    pub(super) prompt_tokens: usize,
    pub(super) prompt_repetitions: usize,
    pub(super) copies: Vec<CopyRow>,
    pub(super) servers: Vec<ServerRow>,
    /// Predictions: without each host, and with another one like it.
    pub(super) changes: Vec<Change>,
    /// What went over the network for all of this.
    pub(super) net: Net,
    pub(super) notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct ModelRow {
    pub(super) name: String,
    pub(super) arch: String,
    pub(super) layers: usize,
}

impl ModelRow {
    pub(super) fn of(loaded: &Model) -> ModelRow {
        let h = loaded.inner().hparams();
        ModelRow { name: loaded.inner().name().to_owned(), arch: h.arch.clone(), layers: h.n_layer }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct DeviceRow {
    pub(super) id: String,
    /// Its server; a local device is its own.
    pub(super) host: String,
    #[serde(flatten)]
    pub(super) layers: Layers,
    pub(super) weight_bytes: u64,
    pub(super) cache_bytes: u64,
    pub(super) compute_bytes: u64,
    /// Before anything was placed there.
    pub(super) free_bytes: u64,
    /// Left out where they are not known.
    #[serde(flatten)]
    pub(super) times: Option<Times>,
}

/// Where a device's time goes.
#[derive(Debug, Serialize)]
pub(super) struct Times {
    /// These three add up to the time of a token.
    pub(super) compute_ms: f64,
    pub(super) wire_ms: f64,
    pub(super) waiting_ms: f64,
    /// A layer, for a token that is decoded.
    pub(super) layer_ms: Option<f64>,
    /// Of the whole prompt.
    pub(super) prompt_compute_ms: f64,
    /// Part of the prompt's time in which it computed, 0 to 1.
    pub(super) prompt_busy: f64,
}

/// A tensor that goes from one device to another for each token.
#[derive(Debug, Serialize)]
pub(super) struct CopyRow {
    pub(super) what: String,
    pub(super) bytes: u64,
    pub(super) from: String,
    pub(super) to: String,
    /// Only before the first token: a weight.
    pub(super) once: bool,
    /// Without passing through this process.
    pub(super) direct: bool,
    pub(super) path: String,
}

#[derive(Debug, Serialize)]
pub(super) struct ServerRow {
    pub(super) endpoint: String,
    pub(super) carrier: &'static str,
    /// To an idle device and back.
    pub(super) rtt_ms: f64,
}

/// A prediction.
#[derive(Debug, Serialize)]
pub(super) struct Change {
    /// "without" a host, or "another" one like it.
    pub(super) change: &'static str,
    pub(super) host: String,
    pub(super) fits: bool,
    pub(super) missing_bytes: u64,
    /// Memory that the host has for weights and cache, and the tokens of context that it has room for.
    pub(super) room_bytes: u64,
    pub(super) context_tokens: u64,
    pub(super) devices: Vec<Placed>,
    /// `None` if it does not fit, or cannot be said.
    pub(super) decode_tps: Option<f64>,
    pub(super) prompt_tps: Option<f64>,
    /// What the prediction rests on, and what it leaves out.
    pub(super) notes: Vec<String>,
}

/// A device, and the layers that it would have.
#[derive(Debug, Serialize)]
pub(super) struct Placed {
    pub(super) id: String,
    #[serde(flatten)]
    pub(super) layers: Layers,
}

impl Report {
    /// For people; the table of the placement comes before it.
    pub(super) fn text(&self) -> String {
        let mut out = self.times();
        out += &self.network();
        out += &self.predictions();
        self.notes.iter().for_each(|note| out += &format!("note: {note}\n"));
        out
    }

    fn times(&self) -> String {
        let (ms, tps, n) = (self.token_ms, self.decode_tps, self.decode_tokens);
        let of = |n: usize, repetitions: usize| {
            let median = if repetitions > 1 { format!(", median of {repetitions}") } else { String::new() };
            format!("({n} token{}{median})", if n == 1 { "" } else { "s" })
        };
        let mut out = format!("\ndecode  {ms:.2} ms a token, {tps:.1} t/s {}\n", of(n, self.decode_repetitions));
        let timed = || self.devices.iter().filter_map(|d| Some((d, d.times.as_ref()?)));
        let mut table = print::table(&["device", "compute", "wire", "waiting", "a layer"], &[1, 2, 3, 4]);
        for (device, t) in timed() {
            let layer = t.layer_ms.map_or("-".to_owned(), |ms| format!("{ms:.3} ms"));
            let [compute, wire, waiting] = [t.compute_ms, t.wire_ms, t.waiting_ms].map(|ms| format!("{ms:.2} ms"));
            table.add_row([device.id.clone(), compute, wire, waiting, layer]);
        }
        let known = timed().next().is_some();
        out += &if known { print::indented(&table) } else { String::new() };
        if let Some(ms) = self.head_ms {
            out += &format!("  of that the head (output matrix and sampling), behind the last layer: {ms:.2} ms\n");
        }
        let (ms, tps, n) = (self.prompt_ms, self.prompt_tps, self.prompt_tokens);
        out += &format!("\nprompt  {ms:.1} ms, {tps:.1} t/s {}\n", of(n, self.prompt_repetitions));
        let mut table = print::table(&["device", "compute", "busy"], &[1, 2]);
        for (device, t) in timed() {
            let (compute, busy) = (format!("{:.1} ms", t.prompt_compute_ms), format!("{:.0} %", 100.0 * t.prompt_busy));
            table.add_row([device.id.clone(), compute, busy]);
        }
        out += &if known { print::indented(&table) } else { String::new() };
        out
    }

    fn network(&self) -> String {
        let mut out = String::new();
        if !self.copies.is_empty() {
            out += "\ncopies for a token\n";
            let mut table = print::table(&["from", "to", "bytes", "tensor", "way"], &[2]);
            for (c, more) in grouped(&self.copies) {
                let path = if c.once { format!("{}, once", c.path) } else { c.path.clone() };
                let what = outboard_output::one_line(&c.what);
                let what = if more > 0 { format!("{what} and {more} more") } else { what };
                table.add_row([&c.from, &c.to, &c.bytes.to_string(), &what, &path]);
            }
            out += &print::indented(&table);
        }
        if !self.servers.is_empty() {
            out += "\nservers\n";
            let mut table = print::table(&["endpoint", "carrier", "round trip"], &[2]);
            for s in &self.servers {
                table.add_row([s.endpoint.clone(), s.carrier.to_owned(), format!("{:.3} ms", s.rtt_ms)]);
            }
            out += &print::indented(&table);
        }
        out
    }

    fn predictions(&self) -> String {
        let mut out =
            "\npredictions from the times above: without each host, and with another one like it\n".to_owned();
        let mut table = print::table(&["change", "memory", "layers", "decode", "prompt", ""], &[3, 4]);
        // Notes are numbered, because they are long and come again.
        let mut notes: Vec<&str> = Vec::new();
        for change in &self.changes {
            let mut marks = Vec::new();
            for note in &change.notes {
                let known = notes.iter().position(|n| n == note).unwrap_or_else(|| {
                    notes.push(note);
                    notes.len() - 1
                });
                marks.push(format!("({})", known + 1));
            }
            let speed = |tps: Option<f64>| tps.map_or("-".to_owned(), |tps| format!("{tps:.1} t/s"));
            table.add_row([
                change.name(),
                change.memory(),
                change.layers(),
                speed(change.decode_tps),
                speed(change.prompt_tps),
                marks.join(" "),
            ]);
        }
        out += &print::indented(&table);
        for (i, note) in notes.iter().enumerate() {
            out += &format!("  ({}) {note}\n", i + 1);
        }
        out + &format!(
            "  another host has processors and memory of its own; the model was trained with {} tokens of context\n",
            self.n_ctx_train
        )
    }
}

/// Copies that differ, each with the number of further ones like it.
fn grouped(copies: &[CopyRow]) -> Vec<(&CopyRow, usize)> {
    let mut groups: Vec<(&CopyRow, usize)> = Vec::new();
    for copy in copies {
        let key = |c: &CopyRow| (c.from.clone(), c.to.clone(), c.bytes, c.once);
        match groups.iter_mut().find(|(c, _)| key(c) == key(copy)) {
            Some((_, more)) => *more += 1,
            None => groups.push((copy, 0)),
        }
    }
    groups
}

impl Change {
    fn name(&self) -> String {
        match self.change {
            "another" => format!("another host like {}", self.host),
            change => format!("{change} {}", self.host),
        }
    }

    fn memory(&self) -> String {
        match (self.change, self.fits) {
            (_, false) => format!("{} missing", Bytes(self.missing_bytes)),
            ("another", true) => format!("+{}, {} tokens", Bytes(self.room_bytes), self.context_tokens),
            (_, true) => format!("-{}, fits", Bytes(self.room_bytes)),
        }
    }

    /// Layers of each device, in their order.
    fn layers(&self) -> String {
        self.devices.iter().map(|d| d.layers.to_string()).collect::<Vec<_>>().join(" ")
    }
}

//! The plan as a picture: what each device holds, and one token on its way through them.

use super::report::{DeviceRow, Report};
use anyhow::{Context, Result};
use outboard_core::error::Bytes;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use svg::Node;
use svg::node::Text;
use svg::node::element::Element;

/// Width of the picture, and where its bars begin and end, in pixels.
const WIDTH: f64 = 960.0;
const LEFT: f64 = 260.0;
const RIGHT: f64 = 920.0;
/// From one row to the next, and the height of a bar.
const ROW: f64 = 46.0;
const BAR: f64 = 18.0;
/// Longest text in front of a bar, in characters.
const MAX_LABEL: usize = 34;
/// Longest name of a model.
const MAX_NAME: usize = 60;
/// Marks on the axis of time, about.
const MARKS: f64 = 6.0;

/// Colours that can be told apart on white and on black; text follows what the reader's system prefers.
const STYLE: &str = "
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-size: 17px; font-weight: 600; }
.small { font-size: 11px; fill: #57606a; }
.page { fill: #ffffff; }
.weights, .compute { fill: #2f81c7; }
.cache { fill: #d9822b; }
.results { fill: #3f9b5f; }
.lane { fill: #8b949e; fill-opacity: 0.15; }
.axis { stroke: #8b949e; stroke-width: 1; stroke-opacity: 0.5; }
.copy { stroke: #c2413b; stroke-width: 1.5; fill: none; }
.head { fill: #c2413b; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .small { fill: #9ea7b3; }
  .page { fill: #0d1117; }
}
";

/// One token: what devices worked on and when.
#[derive(Debug)]
pub(super) struct Timeline {
    /// How long it takes, in milliseconds.
    pub(super) ms: f64,
    /// Row of the device, begin and end in milliseconds; in the order of their begin.
    pub(super) spans: Vec<(usize, f64, f64)>,
}

/// The file that it goes to. If nothing is written to it, it is as if it had never been made.
pub(super) struct Picture {
    path: PathBuf,
    file: File,
    /// It was not there before, and has nothing in it yet.
    unused: bool,
}

impl Picture {
    /// Opens the file, so that it is known before anything is measured whether that can be done.
    pub(super) fn create(path: &Path) -> Result<Picture> {
        let unused = !path.exists();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Picture { path: path.to_owned(), file, unused })
    }

    /// Draws.
    pub(super) fn write(mut self, report: &Report, timeline: Option<&Timeline>) -> Result<()> {
        let text = draw(report, timeline);
        let mut write = || {
            // What is no file, such as a pipe, has no length.
            if self.file.metadata()?.is_file() {
                self.file.set_len(0)?;
            }
            self.file.write_all(text.as_bytes())
        };
        write().with_context(|| format!("cannot write {}", self.path.display()))?;
        self.unused = false;
        Ok(())
    }
}

impl Drop for Picture {
    fn drop(&mut self) {
        if self.unused {
            // Left behind, it is an empty file and no harm.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The picture as a document.
fn draw(report: &Report, timeline: Option<&Timeline>) -> String {
    let mut page = Page { nodes: Vec::new(), y: 0.0 };
    page.title(report);
    page.memory(&report.devices);
    if let Some(timeline) = timeline {
        page.token(&report.devices, timeline);
    }
    page.finish()
}

struct Page {
    nodes: Vec<Element>,
    /// Where the next thing begins.
    y: f64,
}

impl Page {
    fn title(&mut self, report: &Report) {
        let name = clipped(&report.model.name, MAX_NAME);
        let title = format!("{name}: {:.1} t/s, {:.2} ms a token", report.decode_tps, report.token_ms);
        self.text(24.0, 36.0, "title", "start", &title);
        let prompt = format!(
            "{}, {} layers, context of {} tokens; prompts {:.1} t/s",
            report.model.arch, report.model.layers, report.n_ctx, report.prompt_tps
        );
        self.text(24.0, 56.0, "small", "start", &prompt);
        self.y = 76.0;
    }

    /// What each device holds, all on one scale.
    fn memory(&mut self, devices: &[DeviceRow]) {
        let held = |d: &DeviceRow| d.weight_bytes + d.cache_bytes + d.compute_bytes;
        let most = devices.iter().map(held).max().unwrap_or(0).max(1) as f64;
        self.head("memory", &[("weights", "weights"), ("cache", "KV cache"), ("results", "results")]);
        for device in devices {
            let layers = match device.layers.count() {
                0 if device.weight_bytes > 0 => "parts of layers".to_owned(),
                0 => "no layers".to_owned(),
                1 => format!("layer {}", device.layers),
                _ => format!("layers {}", device.layers),
            };
            self.label(device, &layers);
            let mut x = LEFT;
            let kinds =
                [("weights", device.weight_bytes), ("cache", device.cache_bytes), ("results", device.compute_bytes)];
            for (class, bytes) in kinds {
                let width = bytes as f64 / most * (RIGHT - LEFT);
                self.rect(x, self.y, width, class, &format!("{class}: {}", Bytes(bytes)));
                x += width;
            }
            let of = format!("{} of {} free", Bytes(held(device)), Bytes(device.free_bytes));
            self.text(LEFT, self.y + BAR + 13.0, "small", "start", &of);
            self.y += ROW;
        }
    }

    /// What each device works on during one token, and the ways between them.
    fn token(&mut self, devices: &[DeviceRow], timeline: &Timeline) {
        let scale = (RIGHT - LEFT) / timeline.ms.max(1e-6);
        let x = |ms: f64| LEFT + ms * scale;
        self.y += 8.0;
        self.head(
            &format!("one token, {:.2} ms", timeline.ms),
            &[("compute", "compute"), ("head", "way between devices")],
        );
        let top = self.y;
        let middle = |row: usize| top + row as f64 * ROW + BAR / 2.0;
        for device in devices {
            let times = device.times.as_ref();
            self.label(device, &times.map_or(String::new(), |t| format!("computes {:.2} ms", t.compute_ms)));
            self.rect(LEFT, self.y, RIGHT - LEFT, "lane", "");
            self.y += ROW;
        }
        for &(row, start, end) in &timeline.spans {
            let what = format!("{:.3} ms", end - start);
            self.rect(x(start), top + row as f64 * ROW, (end - start) * scale, "compute", &what);
        }
        for pair in timeline.spans.windows(2) {
            if let [(from, _, end), (to, start, _)] = pair
                && from != to
            {
                self.line((x(*end), middle(*from)), (x(*start), middle(*to)), "copy");
            }
        }
        // The next token begins where this one did.
        if let (Some(&(first, ..)), Some(&(last, _, end))) = (timeline.spans.first(), timeline.spans.last())
            && first != last
        {
            self.line((x(end), middle(last)), (x(timeline.ms), middle(first)), "copy");
        }
        let bottom = self.y - (ROW - BAR) + 6.0;
        let step = nice(timeline.ms / MARKS);
        for mark in (0..).map(|i| f64::from(i) * step).take_while(|ms| *ms <= timeline.ms) {
            self.line((x(mark), top), (x(mark), bottom), "axis");
            let decimals = if step < 0.1 { 2 } else { usize::from(step < 1.0) };
            self.text(x(mark), bottom + 14.0, "small", "middle", &format!("{mark:.decimals$}"));
        }
        self.text(RIGHT, bottom + 28.0, "small", "end", "milliseconds");
        self.y = bottom + 34.0;
    }

    /// A heading and the meaning of its colours.
    fn head(&mut self, text: &str, colours: &[(&str, &str)]) {
        self.text(24.0, self.y + 14.0, "", "start", text);
        let mut x = LEFT;
        for (class, meaning) in colours {
            let mut mark = Element::new("rect");
            for (name, value) in [("x", x), ("y", self.y + 4.0), ("width", 10.0), ("height", 10.0)] {
                mark.assign(name, round(value));
            }
            mark.assign("class", *class);
            self.nodes.push(mark);
            self.text(x + 15.0, self.y + 13.0, "small", "start", meaning);
            x += 40.0 + 7.0 * meaning.chars().count() as f64;
        }
        self.y += 30.0;
    }

    /// Two lines in front of a bar.
    fn label(&mut self, device: &DeviceRow, below: &str) {
        self.text(LEFT - 12.0, self.y + 12.0, "", "end", &clipped(&device.id, MAX_LABEL));
        self.text(LEFT - 12.0, self.y + 26.0, "small", "end", below);
    }

    fn rect(&mut self, x: f64, y: f64, width: f64, class: &str, what: &str) {
        let mut rect = Element::new("rect");
        for (name, value) in [("x", x), ("y", y), ("width", width.max(0.0)), ("height", BAR)] {
            rect.assign(name, round(value));
        }
        rect.assign("class", class);
        if !what.is_empty() {
            let mut title = Element::new("title");
            title.append(Text::new(plain(what)));
            rect.append(title);
        }
        self.nodes.push(rect);
    }

    /// A line; those of the class "copy" end with an arrow.
    fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let mut line = Element::new("line");
        for (name, value) in [("x1", from.0), ("y1", from.1), ("x2", to.0), ("y2", to.1)] {
            line.assign(name, round(value));
        }
        line.assign("class", class);
        if class == "copy" {
            line.assign("marker-end", "url(#arrow)");
        }
        self.nodes.push(line);
    }

    fn text(&mut self, x: f64, y: f64, class: &str, anchor: &str, text: &str) {
        let mut element = Element::new("text");
        element.assign("x", round(x));
        element.assign("y", round(y));
        element.assign("text-anchor", anchor);
        if !class.is_empty() {
            element.assign("class", class);
        }
        element.append(Text::new(plain(text)));
        self.nodes.push(element);
    }

    fn finish(self) -> String {
        let height = self.y + 16.0;
        let mut root = Element::new("svg");
        root.assign("xmlns", "http://www.w3.org/2000/svg");
        root.assign("viewBox", format!("0 0 {WIDTH} {}", round(height)));
        root.assign("width", WIDTH);
        root.assign("height", round(height));
        let mut style = Element::new("style");
        style.append(Text::new(STYLE));
        root.append(style);
        root.append(arrow_head());
        let mut page = Element::new("rect");
        page.assign("width", "100%");
        page.assign("height", "100%");
        page.assign("class", "page");
        root.append(page);
        self.nodes.into_iter().for_each(|node| root.append(node));
        format!("{root}\n")
    }
}

fn arrow_head() -> Element {
    let mut path = Element::new("path");
    path.assign("d", "M0 0 L6 3 L0 6 z");
    path.assign("class", "head");
    let mut marker = Element::new("marker");
    for (name, value) in [("markerWidth", 6), ("markerHeight", 6), ("refX", 6), ("refY", 3)] {
        marker.assign(name, value);
    }
    marker.assign("id", "arrow");
    marker.assign("orient", "auto");
    marker.append(path);
    let mut defs = Element::new("defs");
    defs.append(marker);
    defs
}

/// Text without what XML does not allow; the rest is escaped where it is written.
fn plain(text: &str) -> String {
    outboard_output::one_line(text).replace(['\u{fffe}', '\u{ffff}'], " ")
}

/// The beginning of a text that is too long.
fn clipped(text: &str, max: usize) -> String {
    if text.chars().count() > max { text.chars().take(max - 1).chain(['…']).collect() } else { text.to_owned() }
}

/// A hundredth of a pixel is enough.
fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// The next 1, 2 or 5 times a power of ten.
fn nice(value: f64) -> f64 {
    let power = 10f64.powf(value.max(1e-6).log10().floor());
    let times = [1.0, 2.0, 5.0].into_iter().find(|t| t * power >= value * 0.999);
    times.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::plan::report::{ModelRow, Times};
    use crate::devices::Net;
    use crate::model::Layers;

    fn device(id: &str, layers: &[(usize, usize)]) -> DeviceRow {
        DeviceRow {
            id: id.into(),
            host: id.into(),
            layers: Layers::new(layers),
            weight_bytes: 3 << 20,
            cache_bytes: 1 << 20,
            compute_bytes: 1 << 18,
            free_bytes: 1 << 30,
            times: Some(Times {
                compute_ms: 2.0,
                wire_ms: 1.0,
                waiting_ms: 2.0,
                layer_ms: Some(0.2),
                prompt_compute_ms: 50.0,
                prompt_busy: 0.5,
            }),
        }
    }

    fn report() -> Report {
        let name = "a <model> & \"more\"\u{1}".into();
        Report {
            model: ModelRow { name, arch: "llama".into(), layers: 8 },
            n_ctx: 512,
            n_ctx_train: 2048,
            fits: true,
            devices: vec![device("a<b>:1/CPU0", &[(0, 3)]), device("[::1]:50052/CPU0", &[(4, 7)])],
            token_ms: 5.0,
            decode_tps: 200.0,
            decode_tokens: 32,
            decode_repetitions: 5,
            head_ms: None,
            prompt_ms: 100.0,
            prompt_tps: 5120.0,
            prompt_tokens: 512,
            prompt_repetitions: 5,
            copies: Vec::new(),
            servers: Vec::new(),
            changes: Vec::new(),
            net: Net::default(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn what_others_have_named_is_escaped() {
        let timeline = Timeline { ms: 5.0, spans: vec![(0, 0.0, 2.0), (1, 2.5, 4.5)] };
        let picture = draw(&report(), Some(&timeline));
        assert!(picture.contains("a &lt;model&gt; &amp; \"more\"") || picture.contains("&lt;model&gt; &amp; &quot;"));
        assert!(picture.contains("a&lt;b&gt;:1/CPU0") && !picture.contains('\u{1}'), "{picture}");
        // From the first to the second, and back.
        assert_eq!(picture.matches("url(#arrow)").count(), 2);
        assert!(picture.contains("prefers-color-scheme: dark") && picture.contains("layers 4-7"));
        assert!(draw(&report(), None).ends_with("</svg>\n"));
    }

    #[test]
    fn a_file_that_gets_nothing_is_not_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plan.svg");
        drop(Picture::create(&path).unwrap());
        assert!(!path.exists());
        Picture::create(&path).unwrap().write(&report(), None).unwrap();
        let whole = std::fs::read_to_string(&path).unwrap();
        // One that was there stays as it is.
        drop(Picture::create(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), whole);
        assert!(Picture::create(&dir.path().join("no/such/folder.svg")).is_err());
    }

    #[test]
    fn marks_of_the_axis() {
        assert_eq!((nice(1.4), nice(0.3), nice(7.0)), (2.0, 0.5, 10.0));
    }
}

//! Takes what a model writes apart, as it comes: text, reasoning, and calls of tools.
//!
//! What may be the beginning of a mark, such as `<tool_call>`, waits until it is known to be one. A call is given when it is complete. What looks
//! like one and cannot be read, or calls a tool that is not offered, is text. However a text is cut into pieces, the same comes of it.

use crate::channels::Channels;
use crate::error::{ApiError, Result};
use crate::style::{Form, Style, Tags};
use crate::texts::Answers;
use futures_core::Stream;
use http::StatusCode;
use outboard::llm::stop::longest_overlap;
use outboard::{Generation, Piece, Tool};
use serde_json::{Map, Value};
use std::pin::Pin;
use std::sync::Arc;

/// A part of what a model has written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    Text(String),
    Reasoning(String),
    Call(Call),
}

/// A call of a tool that is offered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) arguments: Map<String, Value>,
}

impl Call {
    /// Its arguments as JSON.
    pub(crate) fn json(&self) -> String {
        Value::Object(self.arguments.clone()).to_string()
    }
}

/// How many calls an answer may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Calls {
    #[default]
    Any,
    /// Further ones are left out.
    One,
}

/// A text that is complete.
#[derive(Clone, Debug)]
pub(crate) struct Whole {
    pub(crate) text: Generation,
    /// Two of a kind do not follow one another, but for calls.
    pub(crate) parts: Vec<Part>,
    pub(crate) reasoning_tokens: usize,
}

impl Whole {
    /// All texts of some answers, when they have ended.
    pub(crate) async fn all(mut answers: Answers, splitter: &Splitter) -> Result<Vec<Whole>> {
        let mut splitters: Vec<(Splitter, Vec<Part>)> = vec![(splitter.clone(), Vec::new()); answers.count];
        let mut texts = vec![Generation::default(); answers.count];
        while let Some((number, piece)) = std::future::poll_fn(|cx| Pin::new(&mut answers).poll_next(cx)).await {
            let piece = piece?;
            let (Some((splitter, parts)), Some(text)) = (splitters.get_mut(number), texts.get_mut(number)) else {
                continue;
            };
            splitter.piece(&piece).into_iter().for_each(|part| join(parts, part));
            if let Some(end) = piece.end {
                *text = *end;
            }
        }
        let whole = |(text, (splitter, parts)): (Generation, (Splitter, Vec<Part>))| Whole {
            text,
            parts,
            reasoning_tokens: splitter.reasoning_tokens,
        };
        Ok(texts.into_iter().zip(splitters).map(whole).collect())
    }

    /// The text of answers that are one.
    pub(crate) async fn one(answers: Answers, splitter: &Splitter) -> Result<Whole> {
        let none = || ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "a request for one text has none");
        Whole::all(answers, splitter).await?.pop().ok_or_else(none)
    }

    /// Its text, without reasoning and calls.
    pub(crate) fn said(&self) -> String {
        self.parts.iter().map(|part| if let Part::Text(text) = part { text } else { "" }).collect()
    }

    /// Its reasoning.
    pub(crate) fn reasoning(&self) -> String {
        self.parts.iter().map(|part| if let Part::Reasoning(text) = part { text } else { "" }).collect()
    }

    /// The calls in it.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.parts.iter().filter_map(|part| if let Part::Call(call) = part { Some(call) } else { None })
    }
}

/// Adds a part to others.
fn join(parts: &mut Vec<Part>, part: Part) {
    match (parts.last_mut(), part) {
        (Some(Part::Text(text)), Part::Text(more)) | (Some(Part::Reasoning(text)), Part::Reasoning(more)) => {
            text.push_str(&more);
        }
        (_, part) => parts.push(part),
    }
}

/// Takes one text apart.
#[derive(Clone, Debug)]
pub(crate) struct Splitter {
    kind: Kind,
    calls: Calls,
    called: bool,
    /// Tokens of its reasoning so far, with those of the marks.
    pub(crate) reasoning_tokens: usize,
}

#[derive(Clone, Debug)]
enum Kind {
    Marked(Marked),
    Channels(Channels),
}

impl Splitter {
    /// For a text in some style. Without tools nothing is a call. `is_reasoning`: the prompt has begun the reasoning.
    pub(crate) fn new(style: &Style, tools: &Arc<[Tool]>, calls: Calls, is_reasoning: bool) -> Splitter {
        let kind = match style.form {
            Some(Form::Channels) => Kind::Channels(Channels::new(tools.clone())),
            form => Kind::Marked(Marked {
                form: form.filter(|_| !tools.is_empty()),
                thinks: style.thinks,
                tools: tools.clone(),
                at: if is_reasoning { At::Reasoning { begun: false } } else { At::Text },
                held: String::new(),
                before: Before::Nothing,
            }),
        };
        Splitter { kind, calls, called: false, reasoning_tokens: 0 }
    }

    /// Takes a piece of the engine's, which may be the last one.
    pub(crate) fn piece(&mut self, piece: &Piece) -> Vec<Part> {
        let was_reasoning = self.is_reasoning();
        let mut parts = self.push(&piece.text);
        if piece.end.is_some() {
            parts.extend(self.finish());
        }
        if piece.token.is_some() && (was_reasoning || self.is_reasoning()) {
            self.reasoning_tokens += 1;
        }
        parts
    }

    /// Takes the next piece of the text, and gives what is certain now.
    pub(crate) fn push(&mut self, piece: &str) -> Vec<Part> {
        let parts = match &mut self.kind {
            Kind::Marked(marked) => marked.push(piece),
            Kind::Channels(channels) => channels.push(piece),
        };
        self.allowed(parts)
    }

    /// The end: what has waited for more.
    pub(crate) fn finish(&mut self) -> Vec<Part> {
        let parts = match &mut self.kind {
            Kind::Marked(marked) => marked.finish(),
            Kind::Channels(channels) => channels.finish(),
        };
        self.allowed(parts)
    }

    /// Whether what comes next belongs to the reasoning, as far as is known.
    pub(crate) fn is_reasoning(&self) -> bool {
        match &self.kind {
            Kind::Marked(marked) => matches!(marked.at, At::Reasoning { .. }),
            Kind::Channels(channels) => channels.is_reasoning(),
        }
    }

    fn allowed(&mut self, mut parts: Vec<Part>) -> Vec<Part> {
        parts.retain(|part| {
            let is_call = matches!(part, Part::Call(_));
            let kept = !(is_call && self.called && self.calls == Calls::One);
            self.called |= is_call;
            kept
        });
        parts
    }
}

/// A text with marks in it.
#[derive(Clone, Debug)]
struct Marked {
    /// How calls are written, if there may be any.
    form: Option<Form>,
    thinks: Option<Tags>,
    tools: Arc<[Tool]>,
    at: At,
    /// What has come and is not given yet.
    held: String,
    before: Before,
}

#[derive(Clone, Debug)]
enum At {
    Text,
    /// Whether something of it was given.
    Reasoning {
        begun: bool,
    },
    /// A call, which `held` begins with: `space` was before it, `mark` bytes say that it is one.
    Call {
        space: String,
        mark: usize,
        scan: Scan,
    },
}

/// What has come before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    /// Text, behind which no reasoning begins.
    Text,
    /// Reasoning or a call, behind which white space is left out.
    Mark,
}

/// What was found in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Thinks,
    Call,
    /// It says nothing more.
    Ignored,
}

impl Marked {
    fn push(&mut self, piece: &str) -> Vec<Part> {
        self.held.push_str(piece);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// Does what can be done with what is held; gives whether there may be more to do.
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        match self.at {
            At::Text => self.text(parts),
            At::Reasoning { begun } => self.reasoning(begun, parts),
            At::Call { .. } => self.call(parts),
        }
    }

    fn text(&mut self, parts: &mut Vec<Part>) -> bool {
        if self.before == Before::Mark {
            let space = self.held.len() - self.held.trim_start().len();
            self.held.drain(..space);
        }
        match self.bare() {
            Found::Yes(space) => return self.begin_call(space, 0),
            Found::Perhaps => return false,
            Found::No => {}
        }
        match self.find() {
            Some((at, mark, kind)) => {
                let text = self.held[..at].trim_end().len();
                self.say(text, parts);
                let space = at - text;
                match kind {
                    Mark::Call => return self.begin_call(space, mark.len()),
                    Mark::Thinks => self.at = At::Reasoning { begun: false },
                    Mark::Ignored => {}
                }
                self.held.drain(..space + mark.len());
                self.before = Before::Mark;
                true
            }
            None => {
                let certain = self.certain();
                self.say(certain, parts);
                false
            }
        }
    }

    /// Whether a call begins here that nothing announces: an object that an answer begins with, or the next one behind a semicolon. Small models of
    /// Qwen's leave out their tags, too.
    fn bare(&self) -> Found {
        let text = self.held.trim_start();
        let may_be = matches!(self.form, Some(Form::Bare | Form::Tagged)) && self.before != Before::Text;
        if !may_be || text.is_empty() {
            return Found::No;
        }
        let object = match text.strip_prefix(';') {
            Some(rest) if self.before == Before::Mark => rest.trim_start(),
            _ => text,
        };
        match object.chars().next() {
            Some('{') => Found::Yes(self.held.len() - object.len()),
            Some(_) => Found::No,
            None => Found::Perhaps,
        }
    }

    /// The first mark.
    fn find(&self) -> Option<(usize, &'static str, Mark)> {
        let found = |(mark, kind): (&'static str, Mark)| {
            let at = self.held.find(mark)?;
            // Reasoning is before a text, and not in it.
            let stands_in_text = kind == Mark::Thinks && !self.held[..at].trim_start().is_empty();
            (!stands_in_text).then_some((at, mark, kind))
        };
        self.marks().into_iter().filter_map(found).min_by_key(|(at, ..)| *at)
    }

    /// What to look for.
    fn marks(&self) -> Vec<(&'static str, Mark)> {
        let mut marks: Vec<(&str, Mark)> = match self.form {
            Some(Form::Tagged) => vec![("<tool_call>", Mark::Call)],
            Some(Form::Bare) => vec![("<|python_tag|>", Mark::Call)],
            Some(Form::Bracketed) => vec![("[TOOL_CALLS]", Mark::Call)],
            Some(Form::Listed) => vec![("<|tool_call|>", Mark::Call), ("<|/tool_call|>", Mark::Ignored)],
            Some(Form::Channels) | None => Vec::new(),
        };
        let thinks = self.thinks.filter(|_| self.before != Before::Text);
        marks.extend(thinks.map(|(open, _)| (open, Mark::Thinks)));
        marks
    }

    /// Bytes of what is held that are text, whatever comes: white space before a mark is none.
    fn certain(&self) -> usize {
        let marks = self.marks();
        if marks.is_empty() {
            return self.held.len();
        }
        let waits = marks.iter().map(|(mark, _)| longest_overlap(&self.held, mark)).max().unwrap_or(0);
        self.held[..self.held.len() - waits].trim_end().len()
    }

    /// Gives so many bytes as text.
    fn say(&mut self, bytes: usize, parts: &mut Vec<Part>) {
        if bytes > 0 {
            parts.push(Part::Text(self.held.drain(..bytes).collect()));
            self.before = Before::Text;
        }
    }

    fn begin_call(&mut self, space: usize, mark: usize) -> bool {
        let space = self.held.drain(..space).collect();
        self.at = At::Call { space, mark, scan: Scan::default() };
        true
    }

    /// Gives reasoning without the white space that it begins and ends with.
    fn reasoning(&mut self, begun: bool, parts: &mut Vec<Part>) -> bool {
        let close = self.thinks.map_or("", |(_, close)| close);
        let end = self.held.find(close).filter(|_| !close.is_empty());
        let certain = end.unwrap_or_else(|| self.held.len() - longest_overlap(&self.held, close));
        let text = self.held[..certain].trim_end();
        let (bytes, text) = (text.len(), if begun { text } else { text.trim_start() });
        if !text.is_empty() {
            parts.push(Part::Reasoning(text.to_owned()));
            self.at = At::Reasoning { begun: true };
        }
        self.held.drain(..end.map_or(bytes, |end| end + close.len()));
        if end.is_some() {
            (self.at, self.before) = (At::Text, Before::Mark);
        }
        end.is_some()
    }

    fn call(&mut self, parts: &mut Vec<Part>) -> bool {
        let (Some(form), At::Call { mark, scan, .. }) = (self.form, &mut self.at) else { return false };
        let form = form_of(form, *mark);
        let body = &self.held[*mark..];
        let (content, whole) = match scan.end(form, body) {
            End::At { content, whole } => (content, whole),
            End::Never => (0, 0),
            End::Later => return false,
        };
        let calls = read(form, &body[..content], &self.tools);
        let bytes = *mark + whole;
        self.take_call(calls, bytes, parts);
        true
    }

    /// A call of so many bytes has ended.
    fn take_call(&mut self, calls: Option<Vec<Call>>, bytes: usize, parts: &mut Vec<Part>) {
        let At::Call { space, mark, .. } = std::mem::replace(&mut self.at, At::Text) else { return };
        match calls {
            Some(calls) => {
                self.held.drain(..bytes);
                parts.extend(calls.into_iter().map(Part::Call));
                self.before = Before::Mark;
            }
            None => {
                let text: String = self.held.drain(..bytes.max(mark)).collect();
                parts.push(Part::Text(space + &text));
                self.before = Before::Text;
            }
        }
    }

    fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        if let (Some(form), At::Call { mark, .. }) = (self.form, &self.at) {
            // The end of the text may be that of the call.
            let (form, body, bytes) = (form_of(form, *mark), &self.held[*mark..], self.held.len());
            let calls = if form == Form::Tagged { read(form, body, &self.tools) } else { None };
            self.take_call(calls, bytes, &mut parts);
        }
        match self.at {
            At::Reasoning { begun } => {
                let rest = if begun { self.held.trim_end() } else { self.held.trim() };
                if !rest.is_empty() {
                    parts.push(Part::Reasoning(rest.to_owned()));
                }
            }
            _ if self.before == Before::Mark && self.held.trim().is_empty() => {}
            _ if self.held.is_empty() => {}
            _ => parts.push(Part::Text(std::mem::take(&mut self.held))),
        }
        self.held.clear();
        parts
    }
}

/// How a call behind a mark of so many bytes is written.
fn form_of(form: Form, mark: usize) -> Form {
    if mark == 0 { Form::Bare } else { form }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Behind so many bytes.
    Yes(usize),
    No,
    /// More has to come to know.
    Perhaps,
}

/// Where the body of a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Behind so many bytes of what is to be read, and of all.
    At { content: usize, whole: usize },
    /// It is none.
    Never,
    /// More has to come.
    Later,
}

/// Looks for the end of a call in what has come, without beginning anew each time.
#[derive(Clone, Debug, Default)]
struct Scan {
    /// Bytes that were looked at.
    at: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Scan {
    fn end(&mut self, form: Form, body: &str) -> End {
        match form {
            Form::Tagged => self.tag(body),
            Form::Bracketed => self.json(body, char::is_alphanumeric),
            Form::Bare | Form::Listed | Form::Channels => self.json(body, |_| false),
        }
    }

    fn tag(&mut self, body: &str) -> End {
        const CLOSE: &str = "</tool_call>";
        let from = (0..=self.at).rev().find(|&at| body.is_char_boundary(at)).unwrap_or(0);
        if let Some(at) = body[from..].find(CLOSE) {
            let content = from + at;
            return End::At { content, whole: content + CLOSE.len() };
        }
        self.at = body.len().saturating_sub(CLOSE.len());
        End::Later
    }

    /// The end of a list or an object. What it begins with may stand behind a name.
    fn json(&mut self, body: &str, begins_name: impl Fn(char) -> bool) -> End {
        let start = body.trim_start();
        match start.chars().next() {
            None => return End::Later,
            Some('[' | '{') => {}
            Some(c) if begins_name(c) => match start.find(['{', '\n']) {
                // In what stands before it there are other brackets.
                Some(at) if start[at..].starts_with('{') => self.at = self.at.max(body.len() - start.len() + at),
                Some(_) => return End::Never,
                None => return End::Later,
            },
            Some(_) => return End::Never,
        }
        for (i, byte) in body.bytes().enumerate().skip(self.at) {
            self.at = i + 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'[' | b'{' => self.depth += 1,
                b']' | b'}' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return End::At { content: i + 1, whole: i + 1 };
                    }
                }
                _ => {}
            }
        }
        End::Later
    }
}

/// The calls that a body says; `None` if it cannot be read, or calls something else than these tools.
fn read(form: Form, body: &str, tools: &[Tool]) -> Option<Vec<Call>> {
    let body = body.trim();
    let mut calls = Vec::new();
    match form {
        // Some models leave out the end of one before the next.
        Form::Tagged => {
            for body in body.split("<tool_call>").map(str::trim).filter(|body| !body.is_empty()) {
                if body.starts_with("<function=") {
                    calls.push(function(body, tools)?);
                } else {
                    values(body, &mut calls)?;
                }
            }
        }
        Form::Bracketed if !body.starts_with(['[', '{']) => {
            let (head, arguments) = body.split_at(body.find('{')?);
            let name = head.split('[').next().unwrap_or_default().trim();
            calls.push(Call { name: name.into(), arguments: serde_json::from_str(arguments).ok()? });
        }
        _ => values(body, &mut calls)?,
    }
    let is_offered = |call: &Call| tools.iter().any(|tool| tool.name == call.name);
    (!calls.is_empty() && calls.iter().all(is_offered)).then_some(calls)
}

/// The calls of objects, or lists of them, that follow one another.
fn values(body: &str, calls: &mut Vec<Call>) -> Option<()> {
    for value in serde_json::Deserializer::from_str(body).into_iter::<Value>() {
        match value.ok()? {
            Value::Array(list) => list.into_iter().try_for_each(|value| named(value).map(|call| calls.push(call)))?,
            value => calls.push(named(value)?),
        }
    }
    Some(())
}

/// A call as an object with a name and arguments, which Llama calls parameters.
fn named(value: Value) -> Option<Call> {
    let Value::Object(mut map) = value else { return None };
    let given = map.remove("arguments").or_else(|| map.remove("parameters"));
    let name = match map.remove("name").or_else(|| map.remove("function"))? {
        Value::String(name) => name,
        inner @ Value::Object(_) => return named(inner),
        _ => return None,
    };
    // Other objects may have a name, too.
    let is_call = map.keys().all(|key| key == "type" || key == "id");
    if is_call { Some(Call { name, arguments: arguments(given)? }) } else { None }
}

/// Arguments as an object, or as a string with one in it.
fn arguments(given: Option<Value>) -> Option<Map<String, Value>> {
    match given {
        None | Some(Value::Null) => Some(Map::new()),
        Some(Value::Object(map)) => Some(map),
        Some(Value::String(text)) => serde_json::from_str(&text).ok(),
        Some(_) => None,
    }
}

/// A call in Qwen3-Coder's tags. What a parameter is, its schema says.
fn function(body: &str, tools: &[Tool]) -> Option<Call> {
    let (name, mut rest) = body.strip_prefix("<function=")?.split_once('>')?;
    let tool = tools.iter().find(|tool| tool.name == name.trim())?;
    let mut arguments = Map::new();
    while let Some((_, parameter)) = rest.split_once("<parameter=") {
        let (key, behind) = parameter.split_once('>')?;
        let (value, behind) = behind.split_once("</parameter>")?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        let kind = &tool.parameters["properties"][key]["type"];
        let is_text = kind.is_null() || kind == "string";
        let parsed = if is_text { None } else { serde_json::from_str(value).ok() };
        arguments.insert(key.to_owned(), parsed.unwrap_or_else(|| value.into()));
        rest = behind;
    }
    Some(Call { name: tool.name.clone(), arguments })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const THINK: Tags = ("<think>", "</think>");

    fn tools() -> Arc<[Tool]> {
        let properties = serde_json::json!({"n": {"type": "integer"}, "s": {"type": "string"}});
        let parameters = serde_json::json!({"type": "object", "properties": properties});
        ["f", "g"]
            .map(|name| Tool { name: name.into(), description: String::new(), parameters: parameters.clone() })
            .into()
    }

    fn splitter(form: Form, thinks: Option<Tags>) -> Splitter {
        let style = Style { form: Some(form), thinks, ..Style::default() };
        Splitter::new(&style, &tools(), Calls::Any, false)
    }

    /// What comes of these pieces.
    fn split(mut splitter: Splitter, pieces: &[&str]) -> Vec<Part> {
        let mut parts = Vec::new();
        pieces.iter().flat_map(|piece| splitter.push(piece)).for_each(|part| join(&mut parts, part));
        splitter.finish().into_iter().for_each(|part| join(&mut parts, part));
        parts
    }

    /// In a few characters: text as it is, reasoning in parentheses, calls with their arguments.
    fn shown(parts: &[Part]) -> String {
        let show = |part: &Part| match part {
            Part::Text(text) => format!("'{text}'"),
            Part::Reasoning(text) => format!("({text})"),
            Part::Call(call) => format!("{}{}", call.name, call.json()),
        };
        parts.iter().map(show).collect()
    }

    /// Texts with what comes of them.
    fn cases() -> Vec<(Form, Option<Tags>, &'static str, &'static str)> {
        use Form::{Bare, Bracketed, Channels, Listed, Tagged};
        let think = Some(THINK);
        vec![
            (Tagged, None, "Hi <b>\n", "'Hi <b>\n'"),
            (Tagged, None, " \n", "' \n'"),
            (
                Tagged,
                None,
                "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": 1, \"a\": \"x\"}}\n</tool_call>",
                r#"f{"z":1,"a":"x"}"#,
            ),
            (
                Tagged,
                None,
                "I look.\n<tool_call>{\"name\":\"f\"}</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":\"{}\"}</tool_call>\n",
                "'I look.'f{}g{}",
            ),
            (Tagged, None, "<tool_call>{\"name\":\"f\"}\n<tool_call>{\"name\":\"g\"}", "f{}g{}"),
            (Tagged, None, "a <tool_call>{\"name\":\"f\"}</tool_call> b", "'a'f{}'b'"),
            (Tagged, None, "a <tool_call>{\"name\":}</tool_call> b", "'a <tool_call>{\"name\":}</tool_call> b'"),
            (Tagged, None, "<tool_call>{\"name\":\"h\"}</tool_call>", "'<tool_call>{\"name\":\"h\"}</tool_call>'"),
            (Tagged, None, "a <tool_call>{\"name\":\"f\", \"argu", "'a <tool_call>{\"name\":\"f\", \"argu'"),
            (Tagged, None, "a <tool_ca", "'a <tool_ca'"),
            (
                Tagged,
                None,
                "<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>\n<parameter=s>\n4\n5\n</parameter>\n</function>\n</tool_call>",
                r#"f{"n":3,"s":"4\n5"}"#,
            ),
            (Tagged, None, "{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_call>\"}}\n", r#"f{"s":"</tool_call>"}"#),
            (Tagged, None, "{\"name\": \"f\", \"age\": 3}", "'{\"name\": \"f\", \"age\": 3}'"),
            (Tagged, think, "<think>\nhm, é\n\nso\n</think>\n\nHi", "(hm, é\n\nso)'Hi'"),
            (Tagged, think, "\n<think>\n\n</think>\n\nHi \n", "'Hi \n'"),
            (Tagged, think, "Say <think>x</think>", "'Say <think>x</think>'"),
            (Tagged, think, "<think>x</think><tool_call>{\"name\":\"f\"}</tool_call><think>y</think>z", "(x)f{}(y)'z'"),
            (Tagged, think, "<think>x <", "(x <)"),
            (Bare, None, "{\"name\": \"f\", \"parameters\": {\"s\": \"}\\\"{\"}}", r#"f{"s":"}\"{"}"#),
            (Bare, None, "\n{\"name\": \"f\"}; {\"type\": \"function\", \"function\": \"g\"}\n", "f{}g{}"),
            (Bare, None, "{\"name\": \"f\"};", "f{}';'"),
            (Bare, None, "{\"name\": \"Bob\"} is one", "'{\"name\": \"Bob\"} is one'"),
            (Bare, None, "So: {\"name\": \"f\"}", "'So: {\"name\": \"f\"}'"),
            (Bare, None, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "f{}"),
            (Bare, None, "<|python_tag|>f.call(x)", "'<|python_tag|>f.call(x)'"),
            (
                Bracketed,
                None,
                "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"n\": [1]}}, {\"name\": \"g\", \"arguments\": {}}]",
                r#"f{"n":[1]}g{}"#,
            ),
            (Bracketed, None, "[TOOL_CALLS]f[ARGS]{\"n\": 1}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}", r#"f{"n":1}g{}"#),
            (Bracketed, None, "[TOOL_CALLS]f and\n{", "'[TOOL_CALLS]f and\n{'"),
            (Bracketed, Some(("[THINK]", "[/THINK]")), "[THINK]x[/THINK]a[1]", "(x)'a[1]'"),
            (Listed, None, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}]<|/tool_call|>", "f{}"),
            (Listed, None, "<|tool_call|>none", "'<|tool_call|>none'"),
            (Channels, None, "Hi", "'Hi'"),
            (Channels, None, "<|channel|>final<|message|>Hi <b>", "'Hi <b>'"),
            (
                Channels,
                None,
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f \
                 <|constrain|>json<|message|>{\"n\": 1}<|call|>",
                r#"(hm)f{"n":1}"#,
            ),
            (
                Channels,
                None,
                "<|channel|>analysis<|message|>a<|end|><|start|>assistant to=functions.g<|channel|>commentary json<|message|>{}<|end|>\
                 <|start|>assistant<|channel|>analysis<|message|>b<|end|><|start|>assistant<|channel|>final<|message|>c<|return|>",
                "(a)g{}(\n\nb)'c'",
            ),
            (
                Channels,
                None,
                "<|channel|>commentary<|message|>One.<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{1}<|call|>",
                "'One.\n\n<|start|>assistant<|channel|>commentary to=functions.f<|message|>{1}'",
            ),
            (Channels, None, "<|channel|>final<|message|>Hi<|end|><|start|>assis", "'Hi'"),
        ]
    }

    #[test]
    fn texts_come_apart() {
        for (form, thinks, text, expected) in cases() {
            assert_eq!(shown(&split(splitter(form, thinks), &[text])), expected, "{form:?}: {text}");
        }
    }

    #[test]
    fn nothing_is_a_call_where_no_tool_is_offered() {
        let none: Arc<[Tool]> = Arc::default();
        for (form, thinks, text, _) in cases().into_iter().filter(|(form, ..)| *form != Form::Channels) {
            let style = Style { form: Some(form), thinks: None, ..Style::default() };
            assert_eq!(
                split(Splitter::new(&style, &none, Calls::Any, false), &[text]),
                [Part::Text(text.into())],
                "{thinks:?}"
            );
        }
    }

    #[test]
    fn a_prompt_may_have_begun_the_reasoning() {
        let style = Style { form: Some(Form::Tagged), thinks: Some(THINK), ..Style::default() };
        let mut splitter = Splitter::new(&style, &tools(), Calls::Any, true);
        let piece = |text: &str| Piece { text: text.into(), token: Some(1), ..Piece::default() };
        assert_eq!(shown(&splitter.piece(&piece("\nhm "))), "(hm)");
        assert_eq!(shown(&splitter.piece(&piece("hm</thi"))), "( hm)");
        assert_eq!(shown(&splitter.piece(&piece("nk>\n\n"))), "");
        assert_eq!((shown(&splitter.piece(&piece("Hi"))).as_str(), splitter.reasoning_tokens), ("'Hi'", 3));
    }

    #[test]
    fn only_the_first_call_counts_where_one_is_asked_for() {
        let style = Style { form: Some(Form::Tagged), ..Style::default() };
        let text = "<tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"name\":\"g\"}</tool_call>";
        assert_eq!(shown(&split(Splitter::new(&style, &tools(), Calls::One, false), &[text])), "f{}");
    }

    #[test]
    fn text_is_given_as_soon_as_it_is_certain() {
        let mut splitter = splitter(Form::Tagged, Some(THINK));
        assert_eq!(shown(&splitter.push("One two <to")), "'One two'");
        assert_eq!(shown(&splitter.push("ol> three")), "' <tool> three'");
        assert_eq!(shown(&splitter.push("<tool_call>{\"name\":\"f\"}")), "");
        assert_eq!(shown(&splitter.push("</tool_call>")), "f{}");
    }

    proptest! {
        #[test]
        fn pieces_give_what_the_whole_gives(case in 0..cases().len(), cuts in prop::collection::vec(0usize..200, 0..12)) {
            let (form, thinks, text, expected) = cases().remove(case);
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|at| text.is_char_boundary(*at)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&str> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
            prop_assert_eq!(shown(&split(splitter(form, thinks), &pieces)), expected);
        }

        /// Of marks in any order, too.
        #[test]
        fn no_text_comes_apart_in_two_ways(
            form in prop::sample::select(vec![Form::Tagged, Form::Bare, Form::Bracketed, Form::Listed, Form::Channels]),
            thinks in any::<bool>(), words in prop::collection::vec(prop::sample::select(WORDS.to_vec()), 0..24),
        ) {
            let (text, thinks) = (words.concat(), thinks.then_some(THINK));
            let whole = split(splitter(form, thinks), &[&text]);
            prop_assert_eq!(&split(splitter(form, thinks), &words), &whole);
            let letters: Vec<String> = text.chars().map(String::from).collect();
            let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
            prop_assert_eq!(&split(splitter(form, thinks), &letters), &whole);
        }
    }

    const WORDS: [&str; 30] = [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|tool_call|>",
        "<|/tool_call|>",
        "<|start|>",
        "assistant",
        "<|channel|>",
        "analysis",
        "final",
        "commentary to=functions.f",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "{\"name\":\"f\"}",
        "[{\"name\":\"g\",\"arguments\":{}}]",
        "{",
        "}",
        "\"",
        "\\",
        ";",
        " ",
        "\n",
        "é",
        "f",
        "x<",
    ];
}

//! Text with marks in it: what stands between them is text, reasoning, or a call.

use super::Part;
use super::calls::{self, Call, Callable, End, MOST_SPACE, Scan};
use crate::style::{CallSyntax, Style, Tags};
use outboard::llm::stop::longest_overlap;
use std::sync::Arc;

/// A text with marks in it.
#[derive(Clone, Debug)]
pub(super) struct Marked {
    /// How calls are written, if there may be any.
    syntax: Option<CallSyntax>,
    thinks: Option<Tags>,
    tools: Arc<[Callable]>,
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
    /// In some style; without tools there are no calls. `is_reasoning`: the prompt has begun the reasoning.
    pub(super) fn new(style: &Style, tools: Arc<[Callable]>, is_reasoning: bool) -> Marked {
        Marked {
            syntax: style.calls.filter(|_| !tools.is_empty()),
            thinks: style.thinks,
            tools,
            at: if is_reasoning { At::Reasoning { begun: false } } else { At::Text },
            held: String::new(),
            before: Before::Nothing,
        }
    }

    /// Whether what comes next belongs to the reasoning, as far as is known.
    pub(super) fn is_reasoning(&self) -> bool {
        matches!(self.at, At::Reasoning { .. })
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    pub(super) fn push(&mut self, piece: &str) -> Vec<Part> {
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
                let text = trim_end(&self.held[..at]).len();
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
        if self.held.len() - text.len() > MOST_SPACE {
            return Found::No;
        }
        let may_be = matches!(self.syntax, Some(CallSyntax::Bare | CallSyntax::Tagged)) && self.before != Before::Text;
        if !may_be || text.is_empty() {
            return Found::No;
        }
        let object = match text.strip_prefix(';') {
            Some(rest) if self.before == Before::Mark => rest.trim_start(),
            _ => text,
        };
        let space = self.held.len() - object.len();
        if space > MOST_SPACE {
            return Found::No;
        }
        match object.chars().next() {
            Some('{') => Found::Yes(space),
            Some(_) => Found::No,
            None => Found::Perhaps,
        }
    }

    /// The first mark.
    fn find(&self) -> Option<(usize, &'static str, Mark)> {
        let found = |(mark, kind): (&'static str, Mark)| {
            let at = self.held.find(mark)?;
            // Reasoning is before a text, and not in it.
            let stands_in_text = kind == Mark::Thinks && !trim_end(&self.held[..at]).is_empty();
            (!stands_in_text).then_some((at, mark, kind))
        };
        self.marks().into_iter().filter_map(found).min_by_key(|(at, ..)| *at)
    }

    /// What to look for.
    fn marks(&self) -> Vec<(&'static str, Mark)> {
        let mut marks: Vec<(&str, Mark)> = match self.syntax {
            Some(CallSyntax::Tagged) => vec![("<tool_call>", Mark::Call)],
            Some(CallSyntax::Bare) => vec![("<|python_tag|>", Mark::Call)],
            Some(CallSyntax::Bracketed) => vec![("[TOOL_CALLS]", Mark::Call)],
            Some(CallSyntax::Listed) => vec![("<|tool_call|>", Mark::Call), ("<|/tool_call|>", Mark::Ignored)],
            Some(CallSyntax::Channels) | None => Vec::new(),
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
        trim_end(&self.held[..self.held.len() - waits]).len()
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
        let text = trim_end(&self.held[..certain]);
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
        let (Some(syntax), At::Call { mark, scan, .. }) = (self.syntax, &mut self.at) else { return false };
        let syntax = behind(syntax, *mark);
        let body = &self.held[*mark..];
        let (content, whole) = match scan.end(syntax, body) {
            End::At { content, whole } => (content, whole),
            End::Never => (0, 0),
            End::Later => return false,
        };
        let calls = calls::read(syntax, &body[..content], &self.tools);
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

    pub(super) fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        if let (Some(syntax), At::Call { mark, .. }) = (self.syntax, &self.at) {
            // The end of the text may be that of the call.
            let (syntax, body, bytes) = (behind(syntax, *mark), &self.held[*mark..], self.held.len());
            let calls = if syntax == CallSyntax::Tagged { calls::read(syntax, body, &self.tools) } else { None };
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
fn behind(syntax: CallSyntax, mark: usize) -> CallSyntax {
    if mark == 0 { CallSyntax::Bare } else { syntax }
}

/// Leaves out white space at the end, but no more than what waits for what follows it.
fn trim_end(text: &str) -> &str {
    let trimmed = text.trim_end().len();
    let from = text.len().saturating_sub(MOST_SPACE).max(trimmed);
    let from = (from..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len());
    &text[..from]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Behind so many bytes.
    Yes(usize),
    No,
    /// More has to come to know.
    Perhaps,
}

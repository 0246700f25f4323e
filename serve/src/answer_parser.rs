//! Takes what a model writes apart, as it comes: text, reasoning, and calls of tools.
//!
//! What may be the beginning of a mark, such as `<tool_call>`, waits until it is known to be one. A call is given when it is complete. What looks
//! like one and cannot be read, or calls a tool that is not offered, is text. However a text is cut into pieces, the same comes of it.

mod calls;
mod channels;
mod marked;

use crate::engine::Answers;
use crate::error::{ApiError, Result};
use crate::style::{CallSyntax, Style};
use channels::Channels;
use http::StatusCode;
use marked::Marked;
use outboard::{Generation, Piece};
use std::sync::Arc;

pub(crate) use calls::{Call, Callable};

/// A part of what a model has written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    Text(String),
    Reasoning(String),
    Call(Call),
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
        while let Some((number, piece)) = answers.next().await {
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
    pub(crate) fn new(style: &Style, tools: Arc<[Callable]>, calls: Calls, is_reasoning: bool) -> Splitter {
        let kind = match style.calls {
            Some(CallSyntax::Channels) => Kind::Channels(Channels::new(tools)),
            _ => Kind::Marked(Marked::new(style, tools, is_reasoning)),
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
            Kind::Marked(marked) => marked.is_reasoning(),
            Kind::Channels(channels) => channels.is_reasoning(),
        }
    }

    /// Bytes that wait for more.
    #[cfg(test)]
    fn held(&self) -> usize {
        match &self.kind {
            Kind::Marked(marked) => marked.held(),
            Kind::Channels(channels) => channels.held(),
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

#[cfg(test)]
mod tests;

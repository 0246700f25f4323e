//! gpt-oss's answers: messages, each with a head that says to whom it goes, and how.
//!
//! ```text
//! <|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"a": 1}<|call|>
//! ```

use super::{Call, Callable, Part};
use outboard::llm::stop::longest_overlap;
use std::sync::Arc;

const MESSAGE: &str = "<|message|>";
/// What ends a message. The last two begin the head of another one, if the model has left out the end.
const ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"];
/// A head is shorter.
const LONGEST_HEAD: usize = 512;

/// Takes such an answer apart.
#[derive(Clone, Debug)]
pub(crate) struct Channels {
    tools: Arc<[Callable]>,
    at: At,
    /// What has come and is not given yet.
    held: String,
    /// Bytes of it in which no end begins: a call is held until it is complete.
    seen: usize,
    /// A message of text, and of reasoning, has come: the next one is a paragraph of its own.
    said: [bool; 2],
    /// Something has come of this message.
    begun: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum At {
    /// Before, or in the head of a message.
    Head,
    Text,
    Reasoning,
    /// A call of a tool, behind this head.
    Call {
        name: String,
        head: String,
    },
}

impl Channels {
    pub(crate) fn new(tools: Arc<[Callable]>) -> Channels {
        Channels { tools, at: At::Head, held: String::new(), seen: 0, said: [false; 2], begun: false }
    }

    pub(crate) fn is_reasoning(&self) -> bool {
        self.at == At::Reasoning
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn push(&mut self, piece: &str) -> Vec<Part> {
        self.held.push_str(piece);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    pub(crate) fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        let rest = std::mem::take(&mut self.held);
        match self.at {
            // The head of a message that has not come.
            At::Head if rest.trim().is_empty() || rest.trim_start().starts_with("<|") => {}
            At::Head | At::Text | At::Reasoning => self.say(&rest, &mut parts),
            At::Call { .. } => self.end_call(&rest, &mut parts),
        }
        parts
    }

    /// Does what can be done with what is held; gives whether there may be more to do.
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        if self.at == At::Head {
            return self.head();
        }
        let unseen = self.held.get(self.seen..).unwrap_or_default();
        let end = ENDS.iter().filter_map(|end| Some((self.seen + unseen.find(end)?, *end))).min();
        let waits = ENDS.iter().map(|end| longest_overlap(&self.held, end)).max().unwrap_or(0);
        let certain = end.map_or(self.held.len() - waits, |(at, _)| at);
        self.seen = 0;
        if matches!(self.at, At::Call { .. }) {
            if end.is_none() {
                self.seen = certain;
            } else {
                let body: String = self.held.drain(..certain).collect();
                self.end_call(&body, parts);
            }
        } else {
            let text: String = self.held.drain(..certain).collect();
            self.say(&text, parts);
        }
        let Some((_, end)) = end else { return false };
        if !matches!(end, "<|start|>" | "<|channel|>") {
            self.held.drain(..end.len());
        }
        (self.at, self.begun) = (At::Head, false);
        true
    }

    /// Reads the head of a message, if there is one.
    fn head(&mut self) -> bool {
        let start = self.held.trim_start();
        // More white space than a head may have is text, however much of it has come yet.
        let is_space = self.held.len() - start.len() > LONGEST_HEAD;
        if start.is_empty() && !is_space {
            return false;
        }
        if is_space || !may_be_head(start) {
            self.at = At::Text;
            return true;
        }
        let end = match start.find(MESSAGE) {
            Some(at) if at <= LONGEST_HEAD => self.held.len() - start.len() + at,
            None if start.len() <= LONGEST_HEAD + MESSAGE.len() => return false,
            // It is none; what it began with says nothing.
            _ => {
                let mark = start.find("|>").map_or(1, |at| at + 2);
                self.held.drain(..self.held.len() - start.len() + mark);
                self.at = At::Text;
                return true;
            }
        };
        let head: String = self.held.drain(..end + MESSAGE.len()).collect();
        let word = |mark: &str| {
            let (_, behind) = head.split_once(mark)?;
            behind.split(|c: char| c.is_whitespace() || c == '<').next().map(str::to_owned)
        };
        let called = word("to=").and_then(|to| to.strip_prefix("functions.").map(str::to_owned));
        let called = called.filter(|name| self.tools.iter().any(|tool| tool.name() == name));
        self.at = match called {
            Some(name) => At::Call { name, head },
            None if word("<|channel|>").as_deref() == Some("analysis") => At::Reasoning,
            None => At::Text,
        };
        true
    }

    /// Gives text of the message that it is in.
    fn say(&mut self, text: &str, parts: &mut Vec<Part>) {
        if text.is_empty() {
            return;
        }
        let is_reasoning = self.is_reasoning();
        let said = &mut self.said[usize::from(is_reasoning)];
        let break_before = if *said && !self.begun { "\n\n" } else { "" };
        (*said, self.begun) = (true, true);
        let text = format!("{break_before}{text}");
        parts.push(if is_reasoning { Part::Reasoning(text) } else { Part::Text(text) });
    }

    fn end_call(&mut self, body: &str, parts: &mut Vec<Part>) {
        let At::Call { name, head } = std::mem::replace(&mut self.at, At::Text) else { return };
        match serde_json::from_str(body) {
            Ok(arguments) => parts.push(Part::Call(Call { name, arguments })),
            Err(_) => self.say(&format!("{head}{body}"), parts),
        }
    }
}

/// Whether a head may begin with this.
fn may_be_head(text: &str) -> bool {
    ["<|start|>", "<|channel|>", "<|constrain|>", MESSAGE, "to=", "assistant<|", "assistant to="]
        .iter()
        .any(|mark| mark.starts_with(text) || text.starts_with(mark))
}

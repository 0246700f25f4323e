//! How a model writes what is not text: its reasoning, and calls of tools. Its template says so.

use outboard::Model;
use outboard::llm::tokenizer::{Bos, SpecialText, TokenKind};
use std::sync::Arc;

/// How calls are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallSyntax {
    /// `<tool_call>{"name": "f", "arguments": {}}</tool_call>`, or `<function=f>` with `<parameter=p>` in it: Hermes, Qwen, SmolLM3. Small ones forget
    /// the tags.
    Tagged,
    /// `{"name": "f", "parameters": {}}` as the whole answer, or behind `<|python_tag|>`: Llama 3.
    Bare,
    /// `[TOOL_CALLS][{"name": "f", "arguments": {}}]`, or `[TOOL_CALLS]f[ARGS]{}`: Mistral.
    Bracketed,
    /// `<|tool_call|>[{"name": "f", "arguments": {}}]`: Granite 3.
    Listed,
    /// `<|channel|>commentary to=functions.f <|message|>{}<|call|>`: gpt-oss, whose reasoning and text are in channels, too.
    Channels,
}

/// What stands before and behind reasoning.
pub(crate) type Tags = (&'static str, &'static str);

/// How a model writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Style {
    /// How it writes calls; `None` where that is not known.
    pub(crate) calls: Option<CallSyntax>,
    /// What is around its reasoning, if that is not a channel.
    pub(crate) thinks: Option<Tags>,
    /// Whether its template tells it of tools.
    pub(crate) knows_tools: bool,
    /// Control tokens that have to be seen to take its texts apart.
    pub(crate) shown: Arc<[u32]>,
}

impl Style {
    /// That of a model; nothing is known of one without a template.
    pub(crate) fn of(model: &Model) -> Style {
        let source = model.inner().gguf().str("tokenizer.chat_template").unwrap_or_default();
        let (calls, thinks) = told_by(source, &model.inner().hparams().arch);
        let tokenizer = model.tokenizer();
        let control = |mark: &&str| match tokenizer.encode(mark, SpecialText::Parse, Bos::Omit).as_deref() {
            Ok(&[id]) if tokenizer.kind(id) == Some(TokenKind::Control) => Some(id),
            _ => None,
        };
        let shown = marks(calls, thinks).iter().filter_map(control).collect();
        let knows_tools = model.template().is_ok_and(|template| template.knows_tools());
        Style { calls, thinks, knows_tools, shown }
    }

    /// Whether it may write reasoning.
    pub(crate) fn reasons(&self) -> bool {
        self.thinks.is_some() || self.calls == Some(CallSyntax::Channels)
    }

    /// Whether a prompt ends within reasoning: templates of some models begin it.
    pub(crate) fn is_reasoning(&self, prompt: &str) -> bool {
        self.thinks.is_some_and(|(open, _)| prompt.trim_end().ends_with(open))
    }
}

/// What a template, and the name of an architecture, say.
fn told_by(source: &str, arch: &str) -> (Option<CallSyntax>, Option<Tags>) {
    let has = |text: &str| source.contains(text);
    if arch == "gpt-oss" || has("<|channel|>") {
        return (Some(CallSyntax::Channels), None);
    }
    let calls = if has("[TOOL_CALLS]") {
        Some(CallSyntax::Bracketed)
    } else if has("<|tool_call|>") {
        Some(CallSyntax::Listed)
    } else if has("<tool_call>") {
        Some(CallSyntax::Tagged)
    } else if has("<|python_tag|>") || has("Environment: ipython") {
        Some(CallSyntax::Bare)
    } else {
        None
    };
    // The opening one is often the model's own, which no template has.
    let thinks = [("<think>", "</think>"), ("[THINK]", "[/THINK]")].into_iter().find(|(_, close)| has(close));
    (calls, thinks)
}

/// Whatever may be a token of its own and is looked for in texts.
fn marks(calls: Option<CallSyntax>, thinks: Option<Tags>) -> Vec<&'static str> {
    let mut marks: Vec<&str> = match calls {
        None => Vec::new(),
        Some(CallSyntax::Tagged) => vec!["<tool_call>", "</tool_call>"],
        Some(CallSyntax::Bare) => vec!["<|python_tag|>"],
        Some(CallSyntax::Bracketed) => vec!["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
        Some(CallSyntax::Listed) => vec!["<|tool_call|>", "<|/tool_call|>"],
        Some(CallSyntax::Channels) => {
            vec!["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"]
        }
    };
    marks.extend(thinks.into_iter().flat_map(|(open, close)| [open, close]));
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_tells_how_a_model_writes() {
        const THINK: Tags = ("<think>", "</think>");
        for (source, arch, calls, thinks) in [
            ("{{ messages }}", "llama", None, None),
            ("for each call return <tool_call>\\n{..}\\n</tool_call>", "qwen2", Some(CallSyntax::Tagged), None),
            ("content.split('</think>')[-1] <tool_call>", "qwen3", Some(CallSyntax::Tagged), Some(THINK)),
            ("{{ 'Environment: ipython' }} {\"name\": .., \"parameters\": ..}", "llama", Some(CallSyntax::Bare), None),
            (
                "'[TOOL_CALLS][' '[THINK]' '[/THINK]'",
                "mistral3",
                Some(CallSyntax::Bracketed),
                Some(("[THINK]", "[/THINK]")),
            ),
            ("respond only with <|tool_call|> followed by a list", "granite", Some(CallSyntax::Listed), None),
            ("anything", "gpt-oss", Some(CallSyntax::Channels), None),
        ] {
            assert_eq!(told_by(source, arch), (calls, thinks), "{source}");
        }
    }

    #[test]
    fn a_prompt_may_begin_the_reasoning() {
        let style = Style { thinks: Some(("<think>", "</think>")), ..Style::default() };
        assert!(style.is_reasoning("<|Assistant|><think>\n") && !style.is_reasoning("<think>\n\n</think>\n\n"));
        assert!(!Style::default().is_reasoning("<think>"));
    }
}

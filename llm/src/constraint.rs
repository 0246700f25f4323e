//! Texts of a form: JSON of a schema, a regular expression, a grammar.
//!
//! What may come next is found by llguidance, byte by byte, over all tokens of the vocabulary at once. A form comes from strangers: how large it is, what
//! it costs to compile and what each token of a text costs are bounded, and what is beyond a bound is an error that says so.

use crate::error::{Error, Result};
use crate::tokenizer::{SpecialTokens, TokenKind, Tokenizer};
use llguidance::api::{ParserLimits, StopReason, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;

mod cost;
mod gbnf;

/// Bytes of a form, at most.
pub const MOST_FORM_BYTES: usize = 64 << 10;
/// Stack of the thread that compiles a form: a deep one recurses. Of what is not used there is no memory.
const STACK: usize = 256 << 20;
/// What an error says of a form, at most.
const MOST_SAID: usize = 600;
/// Bytes of a token that forms are told of, and nodes of the tree of all tokens: llguidance has numbers of so many bits.
const MOST_TOKEN_BYTES: usize = 1000;
const MOST_NODES: usize = (1 << 22) - 1;
/// Blanks between two parts of JSON: models that may write blanks forever do.
const JSON_BLANKS: &str = r"[\x20\x0A\x0D\x09]{1,40}";

/// What a text has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// A JSON object, whatever is in it.
    JsonObject,
    /// JSON that a schema allows, which is given as its text. Keywords that nothing is made of are errors, unless they only describe.
    JsonSchema(String),
    /// A text that a regular expression matches as a whole, in the syntax of Rust's `regex`, without looking around.
    Regex(String),
    /// A text of a grammar in llguidance's variant of Lark, which begins with the rule `start`.
    Lark(String),
    /// A text of a grammar in llama.cpp's GBNF, which begins with the rule `root`.
    Gbnf(String),
}

impl Form {
    /// Of a grammar: GBNF if a line begins a rule as there, else Lark.
    pub fn of_grammar(text: String) -> Form {
        if text.lines().any(is_gbnf) { Form::Gbnf(text) } else { Form::Lark(text) }
    }

    /// What it is, for people.
    fn kind(&self) -> &'static str {
        match self {
            Form::JsonObject => "JSON object",
            Form::JsonSchema(_) => "JSON schema",
            Form::Regex(_) => "regular expression",
            Form::Lark(_) | Form::Gbnf(_) => "grammar",
        }
    }

    fn len(&self) -> usize {
        match self {
            Form::JsonObject => 0,
            Form::JsonSchema(text) | Form::Regex(text) | Form::Lark(text) | Form::Gbnf(text) => text.len(),
        }
    }

    fn grammar(&self) -> std::result::Result<TopLevelGrammar, String> {
        match self {
            Form::JsonObject => Ok(TopLevelGrammar::from_json_schema(with_blanks(json!({"type": "object"})))),
            Form::JsonSchema(text) => {
                let schema: Value = serde_json::from_str(text).map_err(|e| format!("it is not JSON: {e}"))?;
                match &schema {
                    Value::Object(keys) if keys.contains_key("x-guidance") => {
                        return Err("'x-guidance' is not taken: how JSON is written is decided here".into());
                    }
                    Value::Object(_) | Value::Bool(_) => {}
                    _ => return Err("a schema is an object, or true or false".into()),
                }
                cost::check(&schema)?;
                Ok(TopLevelGrammar::from_json_schema(with_blanks(schema)))
            }
            Form::Regex(text) => Ok(TopLevelGrammar::from_regex(text)),
            // What schemas cost is counted for those that are asked for by themselves.
            Form::Lark(text) if text.contains("%json") => {
                Err("'%json' is not taken within a grammar: ask for a JSON schema by itself".into())
            }
            Form::Lark(text) => Ok(TopLevelGrammar::from_lark(text.clone())),
            Form::Gbnf(text) => Ok(TopLevelGrammar::from_lark(gbnf::to_lark(text)?)),
        }
    }
}

/// A schema with what blanks may be between parts.
fn with_blanks(schema: Value) -> Value {
    match schema {
        Value::Object(mut keys) => {
            keys.insert("x-guidance".into(), json!({"whitespace_pattern": JSON_BLANKS}));
            Value::Object(keys)
        }
        Value::Bool(true) => json!({"x-guidance": {"whitespace_pattern": JSON_BLANKS}}),
        other => other,
    }
}

/// Whether a line begins a rule of GBNF.
fn is_gbnf(line: &str) -> bool {
    let Some((name, _)) = line.split_once("::=") else { return false };
    let name = name.trim();
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_')
}

/// A model's tokens, as forms need them. Made once for a model: it takes a second and some dozens of MiB for a large vocabulary.
pub struct Vocabulary {
    factory: ParserFactory,
    /// Tokens of the tokenizer.
    len: usize,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// Of a tokenizer.
    pub fn new(tokenizer: &Tokenizer) -> Result<Vocabulary> {
        let len = tokenizer.n_vocab();
        let mut words: Vec<Vec<u8>> = (0..len as u32).map(|id| word(tokenizer, id)).collect();
        let mut ends: Vec<u32> = (0..len as u32).filter(|&id| tokenizer.is_eog(id)).collect();
        if ends.is_empty() {
            // One that no model gives: what ends with it has ended before.
            ends.push(len as u32);
            words.push(marked(b"<end>"));
        }
        // The likeliest first.
        let eos = tokenizer.eot().or(tokenizer.eos()).filter(|id| ends.contains(id)).unwrap_or(ends[0]);
        check_nodes(&words)?;
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, eos), &words).with_eos_tokens(&ends);
        let tokens: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&tokens, InferenceCapabilities::default(), &slices);
        let mut factory =
            factory.map_err(|e| Error::Model(format!("its vocabulary is of no use for forms: {}", said(&e))))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            // 40 MiB.
            max_lexer_states: 30_000,
            max_grammar_size: 200_000,
            // An ambiguous grammar has many readings of each byte, and all texts wait while they are found.
            max_items_in_row: 500,
            step_max_items: 20_000,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Vocabulary { factory, len })
    }

    /// Compiles a form, which may take long: up to seconds for a large one. Fails with [`Error::Request`], which says what is wrong with it.
    pub fn constraint(self: &Arc<Self>, form: &Form) -> Result<Constraint> {
        let wrong = |why: &str| Error::Request(format!("the {} cannot be used: {why}", form.kind()));
        if form.len() > MOST_FORM_BYTES {
            return Err(wrong(&format!("it has {} bytes, and {MOST_FORM_BYTES} are the most", form.len())));
        }
        let compile = || -> std::result::Result<(Matcher, SimpleVob), String> {
            let parser = self.factory.create_parser(form.grammar()?);
            let mut matcher = Matcher::new(Ok(parser.map_err(|e| said(&e))?));
            let first = matcher.compute_mask_or_eos().map_err(|e| match matcher.stop_reason() {
                StopReason::NoExtensionBias => "there is no text of it in the model's tokens".to_owned(),
                _ => said(&e),
            })?;
            Ok((matcher, first))
        };
        let compiled = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("outboard-form".into()).stack_size(STACK);
            let thread = thread.spawn_scoped(scope, compile);
            let thread = thread.map_err(|e| wrong(&format!("there is no thread to compile it: {e}")))?;
            thread
                .join()
                .map_err(|_| wrong("it could not be compiled"))
                .and_then(|done| done.map_err(|why| wrong(&why)))
        });
        let (matcher, first) = compiled?;
        let first = self.allowed(&first);
        if first.is_empty() {
            return Err(wrong("only an empty text is of it"));
        }
        Ok(Constraint(Arc::new(Compiled { vocabulary: self.clone(), matcher, first })))
    }

    /// The tokens of a set that are the model's.
    fn allowed(&self, set: &SimpleVob) -> Allowed {
        let mut words: Vec<u32> = set.as_slice().iter().copied().take(self.len.div_ceil(32)).collect();
        let rest = self.len % 32;
        if let Some(last) = words.last_mut().filter(|_| rest > 0) {
            *last &= (1 << rest) - 1;
        }
        Allowed(words.into())
    }
}

/// What stands for a token in grammars: its bytes, or its name with a mark if it has a meaning in place of a text; nothing if it is not to be
/// generated.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let is_control =
        matches!(tokenizer.kind(id), Some(TokenKind::Control | TokenKind::Unknown)) || tokenizer.is_eog(id);
    if is_control {
        bytes = marked(tokenizer.token_text(id).unwrap_or_default());
    } else {
        tokenizer.token_bytes(id, SpecialTokens::Skip, &mut bytes);
    }
    if bytes.len() > MOST_TOKEN_BYTES { Vec::new() } else { bytes }
}

fn marked(name: &[u8]) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER], name].concat()
}

/// Whether the tree of all tokens has few enough nodes.
fn check_nodes(words: &[Vec<u8>]) -> Result<()> {
    let mut sorted: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    sorted.sort_unstable();
    let in_common = |a: &[u8], b: &[u8]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    // Those that are equal have a node each.
    let new = |pair: &[&[u8]]| (pair[1].len() - in_common(pair[0], pair[1])).max(1);
    let nodes = sorted.windows(2).map(new).sum::<usize>() + sorted.first().map_or(0, |first| first.len());
    if nodes > MOST_NODES {
        return Err(Error::Model(format!(
            "its vocabulary is too large for forms: {nodes} nodes, {MOST_NODES} are the most"
        )));
    }
    Ok(())
}

/// What llguidance says, without its state.
fn said(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    let text = ["\n<", "<non-verbose"].iter().fold(text.as_str(), |text, mark| text.split(mark).next().unwrap_or(text));
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace(" without 'referencing' feature", "").chars().take(MOST_SAID).collect()
}

/// Tokens, as bits: bit `id % 32` of number `id / 32` is that of token `id`.
#[derive(Clone, PartialEq, Eq)]
pub struct Allowed(Arc<[u32]>);

impl fmt::Debug for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Allowed({})", self.count())
    }
}

impl Allowed {
    /// These, of a vocabulary of so many.
    pub fn new(n_vocab: usize, ids: impl IntoIterator<Item = u32>) -> Allowed {
        let mut words = vec![0; n_vocab.div_ceil(32)];
        for id in ids.into_iter().filter(|id| (*id as usize) < n_vocab) {
            words[id as usize / 32] |= 1 << (id % 32);
        }
        Allowed(words.into())
    }

    /// Whether a token is one of them.
    pub fn has(&self, id: u32) -> bool {
        self.0.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
    }

    /// How many they are.
    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The same of a vocabulary of `n_vocab`.
    pub(crate) fn resized(&self, n_vocab: usize) -> Allowed {
        let words = n_vocab.div_ceil(32);
        if words == self.0.len() {
            return self.clone();
        }
        Allowed((0..words).map(|i| self.0.get(i).copied().unwrap_or(0)).collect())
    }

    /// Whether there is one of them below `n_vocab` that the numbers do not exclude.
    pub(crate) fn has_any(&self, n_vocab: usize, bias: Option<&[f32]>) -> bool {
        let excluded = |id: usize| bias.and_then(|bias| bias.get(id)) == Some(&f32::NEG_INFINITY);
        (0..n_vocab).any(|id| self.has(id as u32) && !excluded(id))
    }

    /// As blocks of Q4_0, which are -65536 for all others.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = [u8; 18]> {
        self.0.iter().map(|word| {
            // 8192 as an f16; of it there is -8 or, for these, 0.
            let mut block = [0; 18];
            block[1] = 0x70;
            for (i, byte) in block[2..].iter_mut().enumerate() {
                *byte = ((word >> i & 1) << 3 | (word >> (i + 16) & 1) << 7) as u8;
            }
            block
        })
    }

    /// What is added to the logits of a vocabulary of `n_vocab`: minus infinity for all others, and for these what `bias` says, or nothing.
    pub(crate) fn bias(&self, n_vocab: usize, bias: Option<&[f32]>) -> Arc<[f32]> {
        let added = |id: usize| bias.and_then(|bias| bias.get(id)).copied().unwrap_or(0.0);
        (0..n_vocab).map(|id| if self.has(id as u32) { added(id) } else { f32::NEG_INFINITY }).collect()
    }
}

/// A compiled form. Clones are the same one; any number of texts may have it.
#[derive(Clone)]
pub struct Constraint(Arc<Compiled>);

struct Compiled {
    vocabulary: Arc<Vocabulary>,
    /// At the beginning of a text.
    matcher: Matcher,
    /// What a text may begin with.
    first: Allowed,
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").field("first", &self.0.first).finish_non_exhaustive()
    }
}

impl Constraint {
    /// A text of the form, at its beginning.
    pub fn begin(&self) -> FormedText {
        FormedText { constraint: self.clone(), matcher: self.0.matcher.clone() }
    }

    /// Tokens of the vocabulary that it was compiled for.
    pub(crate) fn n_vocab(&self) -> usize {
        self.0.vocabulary.len
    }
}

/// How far a text of a form has come.
pub struct FormedText {
    constraint: Constraint,
    matcher: Matcher,
}

impl fmt::Debug for FormedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FormedText").field("constraint", &self.constraint).finish_non_exhaustive()
    }
}

impl FormedText {
    /// What it may begin with.
    pub fn first(&self) -> Allowed {
        self.constraint.0.first.clone()
    }

    /// Takes a token, which is not one that ends a text, and gives those that may follow: `None` if the text is complete and nothing may. If it may end
    /// here, tokens that end a text are among them.
    ///
    /// Fails with [`Error::Request`] if it costs too much to find out, or if the model has no tokens to go on with.
    pub fn push(&mut self, id: u32) -> Result<Option<Allowed>> {
        let wrong = |why: String| Error::Request(format!("the text cannot go on as its form wants it: {why}"));
        self.matcher.consume_token(id).map_err(|e| wrong(said(&e)))?;
        if self.matcher.is_stopped() {
            return Ok(None);
        }
        let set = self.matcher.compute_mask().map_err(|e| match self.matcher.stop_reason() {
            StopReason::NoExtensionBias => wrong("the model's vocabulary has no token for what has to follow".into()),
            _ => wrong(said(&e)),
        })?;
        let allowed = self.constraint.0.vocabulary.allowed(&set);
        Ok((!allowed.is_empty()).then_some(allowed))
    }
}

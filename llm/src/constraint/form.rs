//! What a text is to be, as those say it who ask for it.

use super::{annotations, cost, drafts, gbnf, numbers, said};
use llguidance::api::TopLevelGrammar;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;

/// Bytes of a form, at most.
pub const MOST_FORM_BYTES: usize = 64 << 10;
/// Blanks between two parts of JSON: models that may write blanks forever do.
const JSON_BLANKS: &str = r"[\x20\x0A\x0D\x09]{1,40}";

/// What a text has to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

    /// One of these texts.
    pub fn one_of(texts: &[String]) -> Form {
        Form::Regex(texts.iter().map(|text| regex::escape(text)).collect::<Vec<_>>().join("|"))
    }

    /// What it is, for people.
    pub fn kind(&self) -> &'static str {
        match self {
            Form::JsonObject => "JSON object",
            Form::JsonSchema(_) => "JSON schema",
            Form::Regex(_) => "regular expression",
            Form::Lark(_) | Form::Gbnf(_) => "grammar",
        }
    }

    /// What llguidance says of it, in words that those know who have written it.
    pub(super) fn said(&self, error: &impl fmt::Display) -> String {
        let said = said(error);
        match self {
            // Its options cannot be set here.
            Form::JsonSchema(_) => match said.split_once(". Enable 'coerce_one_of'") {
                Some((not_supported, _)) => {
                    format!("{not_supported}; anyOf is, and is the same where no two of its schemas match")
                }
                None => match said.split_once("does not contain a multiple of ") {
                    Some((_, multiple)) => format!("no multiple of {multiple} is within its bounds"),
                    None => match said.split_once("Unimplemented keys: ") {
                        Some((_, keys)) => format!("what there is nothing for here: {}", keys.trim_matches(['[', ']'])),
                        None => said,
                    },
                },
            },
            Form::Lark(_) => format!("{said} (it was read as Lark: no line begins a rule as in GBNF, with NAME ::=)"),
            _ => said,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Form::JsonObject => 0,
            Form::JsonSchema(text) | Form::Regex(text) | Form::Lark(text) | Form::Gbnf(text) => text.len(),
        }
    }

    pub(super) fn grammar(&self) -> std::result::Result<TopLevelGrammar, String> {
        match self {
            Form::JsonObject => Ok(TopLevelGrammar::from_json_schema(with_blanks(json!({"type": "object"})))),
            Form::JsonSchema(text) => {
                let mut schema: Value = serde_json::from_str(text).map_err(|e| format!("it is not JSON: {e}"))?;
                match &schema {
                    Value::Object(keys) if keys.contains_key("x-guidance") => {
                        return Err("'x-guidance' is not taken: how JSON is written is decided here".into());
                    }
                    Value::Object(_) | Value::Bool(_) => {}
                    _ => return Err("a schema is an object, or true or false".into()),
                }
                annotations::leave_out(&mut schema);
                drafts::check(&schema)?;
                cost::check(&schema)?;
                numbers::bound(&mut schema)?;
                Ok(TopLevelGrammar::from_json_schema(with_blanks(schema)))
            }
            Form::Regex(text) => {
                cost::check_regex(text)?;
                Ok(TopLevelGrammar::from_regex(text))
            }
            // What schemas cost is counted for those that are asked for by themselves.
            Form::Lark(text) if text.contains("%json") => {
                Err("'%json' is not taken within a grammar: ask for a JSON schema by itself".into())
            }
            // What is common to several expressions takes exponentially long to find out, in one step that nothing bounds.
            Form::Lark(text) if text.contains('&') => {
                Err("'&' is not taken in a grammar: write '\\x26' where the character is meant".into())
            }
            Form::Lark(text) => {
                cost::check_regex(text)?;
                Ok(TopLevelGrammar::from_lark(text.clone()))
            }
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

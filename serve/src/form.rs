//! The form that an answer is to have: `response_format` and `text.format` of OpenAI's APIs, and what llama-server and vLLM call the same.

use crate::blocking::Length;
use crate::error::{ApiError, Result};
use crate::params::{BY_TEMPLATE, Params};
use crate::room::Room;
use crate::service::Service;
use http::StatusCode;
use outboard::llm::constraint::MOST_FORM_BYTES;
use outboard::{Constraint, Error, Form, Model};
use serde_json::{Value, json};
use std::sync::Arc;

/// Bytes of a schema's name.
const MOST_NAME: usize = 256;

/// Texts of which one is wanted.
const MOST_CHOICES: usize = 1024;

/// A form, and the parameter that asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    form: Form,
    param: String,
    /// What was said of the schema.
    name: Option<String>,
}

impl Wanted {
    pub(crate) fn new(form: Form, param: impl Into<String>) -> Wanted {
        Wanted { form, param: param.into(), name: None }
    }

    /// What asks for it.
    pub(crate) fn param(&self) -> &str {
        &self.param
    }

    /// The schema of JSON; `None` for another form.
    pub(crate) fn schema(&self) -> Result<Option<Value>> {
        let wrong =
            |why: &str| ApiError::of_param(self.param.clone(), format!("'{}': the JSON schema {why}", self.param));
        match &self.form {
            Form::JsonObject => Ok(Some(json!({"type": "object"}))),
            Form::JsonSchema(schema) if schema.len() > MOST_FORM_BYTES => {
                Err(wrong(&format!("has {} bytes, and {MOST_FORM_BYTES} are the most", schema.len())))
            }
            Form::JsonSchema(schema) => {
                serde_json::from_str(schema).map(Some).map_err(|e| wrong(&format!("is not JSON: {e}")))
            }
            Form::Regex(_) | Form::Lark(_) | Form::Gbnf(_) => Ok(None),
        }
    }

    /// As answers of `/v1/responses` say it.
    pub(crate) fn format(&self) -> Value {
        match &self.form {
            Form::JsonObject => json!({"type": "json_object"}),
            Form::JsonSchema(schema) => {
                let schema: Value = serde_json::from_str(schema).unwrap_or_default();
                json!({"type": "json_schema", "name": self.name.as_deref().unwrap_or("answer"), "schema": schema, "strict": true})
            }
            Form::Regex(_) | Form::Lark(_) | Form::Gbnf(_) => json!({"type": "text"}),
        }
    }
}

/// Takes what says which form an answer is to have: none if it may be any text.
pub(crate) fn take(params: &mut Params) -> Result<Option<Wanted>> {
    let mut wanted = Vec::new();
    if let Some(format) = params.object("response_format")? {
        wanted.extend(take_format(format, "json_schema")?);
    }
    wanted.extend(take_named(
        params,
        &["json_schema", "guided_json"],
        &["regex", "guided_regex"],
        &["grammar", "guided_grammar"],
        "guided_choice",
    )?);
    if let Some(mut outputs) = params.object("structured_outputs")? {
        wanted.extend(take_structured(&mut outputs)?);
        outputs.finish()?;
    }
    match wanted.len() {
        0 | 1 => Ok(wanted.pop()),
        _ => Err(two(&wanted[0], &wanted[1])),
    }
}

/// One of some texts, as vLLM's `guided_choice` wants it.
fn take_choice(params: &mut Params, name: &str) -> Result<Option<Wanted>> {
    if params.seen(name).is_none() {
        return Ok(None);
    }
    let choices = params.strings(name, MOST_CHOICES)?;
    if choices.is_empty() {
        let at = params.name(name);
        return Err(ApiError::of_param(at.clone(), format!("'{at}' has no text to choose")));
    }
    Ok(Some(Wanted::new(Form::one_of(&choices), params.name(name))))
}

/// Forms that are said with these names.
fn take_named(
    params: &mut Params,
    schemas: &[&str],
    regexes: &[&str],
    grammars: &[&str],
    choice: &str,
) -> Result<Vec<Wanted>> {
    let mut wanted = Vec::new();
    for name in schemas {
        let form = params.take(name).map(|value| match value {
            // vLLM takes its text as well.
            Value::String(text) => Form::JsonSchema(text),
            schema => Form::JsonSchema(schema.to_string()),
        });
        wanted.extend(form.map(|form| Wanted::new(form, params.name(name))));
    }
    for (names, form) in [(regexes, Form::Regex as fn(String) -> Form), (grammars, Form::of_grammar)] {
        for name in names {
            // llama-server's clients send an empty one for none.
            let text = params.string(name)?.filter(|text| !text.is_empty());
            wanted.extend(text.map(|text| Wanted::new(form(text), params.name(name))));
        }
    }
    wanted.extend(take_choice(params, choice)?);
    Ok(wanted)
}

/// vLLM's `structured_outputs`: a form, by its kind.
fn take_structured(outputs: &mut Params) -> Result<Vec<Wanted>> {
    let mut wanted = take_named(outputs, &["json"], &["regex"], &["grammar"], "choice")?;
    if outputs.boolean("json_object")? == Some(true) {
        wanted.push(Wanted::new(Form::JsonObject, outputs.name("json_object")));
    }
    Ok(wanted)
}

/// The error of a request that wants two forms.
fn two(first: &Wanted, second: &Wanted) -> ApiError {
    let message = format!("a text has one form: '{}' and '{}' are two", first.param, second.param);
    ApiError::of_param(second.param.clone(), message)
}

/// The same of `/v1/responses`, whose schema is beside its type.
pub(crate) fn take_text(params: &mut Params) -> Result<Option<Wanted>> {
    let Some(mut text) = params.object("text")? else { return take(params) };
    text.absent("verbosity", BY_TEMPLATE, |_| false)?;
    let format = text.object("format")?;
    text.finish()?;
    let format = format.map(|format| take_format(format, "")).transpose()?.flatten();
    match (format, take(params)?) {
        (Some(format), Some(other)) => Err(two(&format, &other)),
        (format, other) => Ok(format.or(other)),
    }
}

/// A format, whose schema is in the object `within`, or beside its type.
pub(crate) fn take_format(mut format: Params, within: &str) -> Result<Option<Wanted>> {
    let (name, kind) = (format.name("type"), format.string("type")?.unwrap_or_default());
    let wanted = match kind.as_str() {
        "text" => None,
        // llama-server takes a schema with it.
        "json_object" if format.seen("schema").is_some() => Some(take_schema(&mut format)?),
        "json_object" => Some(Wanted::new(Form::JsonObject, name)),
        "json_schema" if within.is_empty() => Some(take_schema(&mut format)?),
        "json_schema" => {
            format.check_there(within)?;
            let Some(mut within) = format.object(within)? else { return Ok(None) };
            let wanted = take_schema(&mut within)?;
            within.finish()?;
            Some(wanted)
        }
        _ => {
            let message = format!("'{name}' must be text, json_object or json_schema");
            return Err(ApiError::of_param(name, message));
        }
    };
    format.finish()?;
    Ok(wanted)
}

/// The schema, and what is said of it. An answer has the form whether `strict` is said or not.
fn take_schema(params: &mut Params) -> Result<Wanted> {
    let (at, name) = (params.name("name"), params.string("name")?);
    if name.as_ref().is_some_and(|name| name.len() > MOST_NAME) {
        return Err(ApiError::of_param(at.clone(), format!("'{at}' has at most {MOST_NAME} bytes")));
    }
    params.string("description")?;
    params.boolean("strict")?;
    let (param, schema) = (params.name("schema"), params.take("schema"));
    // Without one, any JSON, as in OpenAI's API.
    let schema = schema.unwrap_or_else(|| json!({}));
    Ok(Wanted { name, ..Wanted::new(Form::JsonSchema(schema.to_string()), param) })
}

/// Compiles a form, which may take long. An error names the parameter.
pub(crate) async fn compile(
    service: &Service,
    room: &Arc<Room>,
    wanted: Option<&Wanted>,
) -> Result<Option<Constraint>> {
    let Some(Wanted { form, param, .. }) = wanted.cloned() else { return Ok(None) };
    let wrong = move |error: Error| match error {
        Error::Request(why) => ApiError::of_param(param.clone(), format!("'{param}': {why}")),
        // Where the model's file is, is no client's business.
        Error::Io { detail, .. } => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, detail),
        other => other.into(),
    };
    let processes = service.engine().forms.clone();
    let compile = move |model: &Model| {
        let compiled = match processes {
            Some(processes) => processes.constraint(form),
            None => model.constraint(&form),
        };
        compiled.map_err(wrong)
    };
    service.work_of(Length::Form, room, compile).await.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(text: &str, of: fn(&mut Params) -> Result<Option<Wanted>>) -> Result<Option<Wanted>> {
        let mut params = Params::parse(text.as_bytes()).unwrap();
        let wanted = of(&mut params)?;
        params.finish().map(|()| wanted)
    }

    #[test]
    fn a_form_is_said_in_many_ways() {
        let schema = |param: &str| Some(Wanted::new(Form::JsonSchema(r#"{"type":"null"}"#.into()), param));
        let choice = || Form::one_of(&["a".to_owned(), "b+".to_owned()]);
        let named = |param: &str| schema(param).map(|wanted| Wanted { name: Some("x".into()), ..wanted });
        for (text, want) in [
            ("{}", None),
            (r#"{"grammar": ""}"#, None),
            (r#"{"response_format": {"type": "text"}}"#, None),
            (
                r#"{"response_format": {"type": "json_object"}}"#,
                Some(Wanted::new(Form::JsonObject, "response_format.type")),
            ),
            (
                r#"{"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": {"type": "null"}}}}"#,
                named("response_format.json_schema.schema"),
            ),
            (r#"{"guided_json": {"type": "null"}}"#, schema("guided_json")),
            (r#"{"guided_json": "{\"type\":\"null\"}"}"#, schema("guided_json")),
            (r#"{"regex": "a+"}"#, Some(Wanted::new(Form::Regex("a+".into()), "regex"))),
            (r#"{"structured_outputs": {"json": {"type": "null"}}}"#, schema("structured_outputs.json")),
            (
                r#"{"structured_outputs": {"choice": ["a", "b+"]}}"#,
                Some(Wanted::new(choice(), "structured_outputs.choice")),
            ),
            (r#"{"guided_choice": ["a", "b+"]}"#, Some(Wanted::new(choice(), "guided_choice"))),
            (
                r#"{"response_format": {"type": "json_object", "schema": {"type": "null"}}}"#,
                schema("response_format.schema"),
            ),
            (r#"{"grammar": "start: \"a\""}"#, Some(Wanted::new(Form::Lark("start: \"a\"".into()), "grammar"))),
        ] {
            assert_eq!(wanted(text, take), Ok(want), "{text}");
        }
        let of_responses = r#"{"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "null"}}}}"#;
        assert_eq!(wanted(of_responses, take_text), Ok(named("text.format.schema")));
        assert_eq!(wanted(r#"{"text": {}}"#, take_text), Ok(None));
    }

    #[test]
    fn what_is_wrong_with_a_format_is_named() {
        let format = json!({"type": "json_schema", "json_schema": {"name": "x".repeat(MOST_NAME + 1)}});
        let long_name = json!({"response_format": format}).to_string();
        for (text, param) in [
            (r#"{"response_format": {"type": "yaml"}}"#, "response_format.type"),
            (r#"{"response_format": "json"}"#, "response_format"),
            (r#"{"response_format": {"type": "json_schema"}}"#, "response_format.json_schema"),
            (r#"{"response_format": {"type": "json_object", "x": 1}}"#, "response_format.x"),
            (r#"{"regex": 5}"#, "regex"),
            (&long_name, "response_format.json_schema.name"),
            (r#"{"regex": "a", "grammar": "b"}"#, "grammar"),
            (r#"{"structured_outputs": {"regex": "a", "choice": ["b"]}}"#, "structured_outputs.choice"),
        ] {
            let error = wanted(text, take).unwrap_err().openai();
            assert_eq!(error["error"]["param"], param, "{text}: {error}");
        }
    }
}

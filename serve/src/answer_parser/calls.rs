//! Calls of tools as models write them: where one ends, and what it says.

use crate::style::CallSyntax;
use outboard::Tool;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Bytes of white space that wait for what follows them: more of it is text. Nothing that waits is looked at too often.
pub(super) const MOST_SPACE: usize = 4 << 10;
/// Bytes of what may be a name before arguments.
const MOST_NAME: usize = 256;

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

/// What is known of a tool while a text is written: little, as many texts may wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Callable {
    name: Box<str>,
    /// The schema of its arguments, as JSON.
    parameters: Box<str>,
    /// Whether a call has its name and arguments, and nothing else: where an answer may be other JSON.
    is_exact: bool,
}

impl Callable {
    /// These tools.
    pub(crate) fn of(tools: &[Tool], is_exact: bool) -> Arc<[Callable]> {
        let callable = |tool: &Tool| Callable {
            name: tool.name.as_str().into(),
            parameters: tool.parameters.to_string().into(),
            is_exact,
        };
        tools.iter().map(callable).collect()
    }

    /// What calls name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

/// Where the body of a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Behind so many bytes of what is to be read, and of all.
    At { content: usize, whole: usize },
    /// It is none.
    Never,
    /// More has to come.
    Later,
}

/// Looks for the end of a call in what has come, without beginning anew each time.
#[derive(Clone, Debug, Default)]
pub(super) struct Scan {
    /// Bytes that were looked at.
    at: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Scan {
    pub(super) fn end(&mut self, syntax: CallSyntax, body: &str) -> End {
        match syntax {
            CallSyntax::Tagged => self.tag(body),
            CallSyntax::Bracketed => self.json(body, char::is_alphanumeric),
            CallSyntax::Bare | CallSyntax::Listed | CallSyntax::Channels => self.json(body, |_| false),
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
        if body.len() - start.len() > MOST_SPACE {
            return End::Never;
        }
        match start.chars().next() {
            None => return End::Later,
            Some('[' | '{') => {}
            Some(c) if begins_name(c) => match start.find(['{', '\n']).filter(|&at| at <= MOST_NAME) {
                // In what stands before it there are other brackets.
                Some(at) if start[at..].starts_with('{') => self.at = self.at.max(body.len() - start.len() + at),
                None if start.len() <= MOST_NAME => return End::Later,
                _ => return End::Never,
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
pub(super) fn read(syntax: CallSyntax, body: &str, tools: &[Callable]) -> Option<Vec<Call>> {
    let body = body.trim();
    let is_exact = tools.iter().any(|tool| tool.is_exact);
    let mut calls = Vec::new();
    match syntax {
        // Some models leave out the end of one before the next.
        CallSyntax::Tagged => {
            for body in body.split("<tool_call>").map(str::trim).filter(|body| !body.is_empty()) {
                if body.starts_with("<function=") {
                    calls.push(function(body, tools)?);
                } else {
                    values(body, is_exact, &mut calls)?;
                }
            }
        }
        CallSyntax::Bracketed if !body.starts_with(['[', '{']) => {
            let (head, arguments) = body.split_at(body.find('{')?);
            let name = head.split('[').next().unwrap_or_default().trim();
            calls.push(Call { name: name.into(), arguments: serde_json::from_str(arguments).ok()? });
        }
        _ => values(body, is_exact, &mut calls)?,
    }
    let is_offered = |call: &Call| tools.iter().any(|tool| *tool.name == call.name);
    (!calls.is_empty() && calls.iter().all(is_offered)).then_some(calls)
}

/// The calls of objects, or lists of them, that follow one another.
fn values(body: &str, is_exact: bool, calls: &mut Vec<Call>) -> Option<()> {
    for value in serde_json::Deserializer::from_str(body).into_iter::<Value>() {
        match value.ok()? {
            value if is_exact => calls.push(exact(value)?),
            Value::Array(list) => list.into_iter().try_for_each(|value| named(value).map(|call| calls.push(call)))?,
            value => calls.push(named(value)?),
        }
    }
    Some(())
}

/// A call that has a name and arguments, and nothing else.
fn exact(value: Value) -> Option<Call> {
    let keys = value.as_object()?;
    let has_arguments = ["arguments", "parameters"].iter().any(|key| keys.get(*key).is_some_and(Value::is_object));
    if keys.len() == 2 && keys.get("name").is_some_and(Value::is_string) && has_arguments { named(value) } else { None }
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

/// What a parameter says that is written as a text: JSON, unless its schema has it be a string.
fn argument(text: &str, schema: &Value, root: &Value) -> Value {
    let kinds = kinds(schema, root);
    match serde_json::from_str(text) {
        Ok(Value::Null) if kinds.contains(&"null") => Value::Null,
        Ok(parsed) if !kinds.is_empty() && !kinds.contains(&"string") => parsed,
        _ => text.into(),
    }
}

/// The types that a schema allows, as far as its first parts say them: it is a stranger's, and may refer to itself.
fn kinds<'s>(schema: &'s Value, root: &'s Value) -> Vec<&'s str> {
    const MOST: usize = 64;
    let (mut parts, mut kinds, mut next) = (vec![schema], Vec::new(), 0);
    while let Some(schema) = parts.get(next).copied() {
        next += 1;
        match &schema["type"] {
            Value::Array(several) => kinds.extend(several.iter().take(MOST).filter_map(Value::as_str)),
            kind => kinds.extend(kind.as_str()),
        }
        let to = schema["$ref"].as_str().and_then(|to| root.pointer(to.strip_prefix('#')?));
        let lists = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|key| schema[key].as_array()).flatten();
        parts.extend(to.into_iter().chain(lists).take(MOST - parts.len().min(MOST)));
    }
    kinds
}

/// A call in Qwen3-Coder's tags. What a parameter is, its schema says.
fn function(body: &str, tools: &[Callable]) -> Option<Call> {
    let (name, mut rest) = body.strip_prefix("<function=")?.split_once('>')?;
    let tool = tools.iter().find(|tool| &*tool.name == name.trim())?;
    let schema: Value = serde_json::from_str(&tool.parameters).unwrap_or_default();
    let mut arguments = Map::new();
    while let Some((_, parameter)) = rest.split_once("<parameter=") {
        let (key, behind) = parameter.split_once('>')?;
        let (value, behind) = behind.split_once("</parameter>")?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        let value = value.strip_suffix('\n').unwrap_or(value);
        arguments.insert(key.to_owned(), argument(value, &schema["properties"][key], &schema));
        rest = behind;
    }
    Some(Call { name: tool.name.to_string(), arguments })
}

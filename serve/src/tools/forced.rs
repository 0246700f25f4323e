//! The form of an answer that has to be a call: a schema of the object that models write for one.

use super::Choice;
use crate::error::{ApiError, Result};
use crate::form::Wanted;
use crate::style::{CallSyntax, Style};
use outboard::{Form, Tool};
use serde_json::{Map, Value, json};

/// Where schemas have definitions, which are found from their root.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Keywords of a schema of arguments that allow none and forbid none.
const DESCRIBES: [&str; 6] = ["type", "properties", "title", "description", "required", "$schema"];

/// The form of an answer that has to be a call of one of the tools; `None` where the model may choose. It is read without tags as well.
pub(super) fn form(tools: &[Tool], choice: &Choice, style: &Style) -> Result<Option<Wanted>> {
    let among: Vec<(usize, &Tool)> = match choice {
        Choice::Auto | Choice::None => return Ok(None),
        Choice::Required => tools.iter().enumerate().collect(),
        Choice::Named(name) => tools.iter().enumerate().filter(|(_, tool)| tool.name == *name).collect(),
    };
    let param = match among[..] {
        [] => {
            let message = "'tool_choice' wants a call of a tool that is not among 'tools'";
            return Err(ApiError::of_param("tool_choice", message));
        }
        [(i, _)] => name_of(i),
        _ => "tools".to_owned(),
    };
    let mut definitions = Map::new();
    let calls = calls(&among, style, &mut definitions)?;
    Ok(Some(Wanted::new(one_of(calls, definitions), param)))
}

/// The form of an answer that is JSON of this schema, which `param` asks for, or a call of a tool.
pub(super) fn or_call(mut answer: Value, param: &str, tools: &[Tool], style: &Style) -> Result<Wanted> {
    let mut definitions = Map::new();
    let among: Vec<(usize, &Tool)> = tools.iter().enumerate().collect();
    let mut schemas = calls(&among, style, &mut definitions)?;
    take_definitions(&mut answer, &mut definitions, param)?;
    schemas.push(answer);
    Ok(Wanted::new(one_of(schemas, definitions), param))
}

fn calls(among: &[(usize, &Tool)], style: &Style, definitions: &mut Map<String, Value>) -> Result<Vec<Value>> {
    let arguments = key_of_arguments(style).ok_or_else(|| {
        let why = "a model that writes calls like this one is not made to call a tool; it is asked with 'auto'";
        ApiError::unsupported("tool_choice", why)
    })?;
    among.iter().map(|&(i, tool)| call(tool, &name_of(i), arguments, definitions)).collect()
}

fn one_of(mut schemas: Vec<Value>, definitions: Map<String, Value>) -> Form {
    let mut schema = match schemas.len() {
        1 => schemas.remove(0),
        _ => json!({"anyOf": schemas}),
    };
    if let Value::Object(keys) = &mut schema {
        keys.extend(definitions);
    }
    Form::JsonSchema(schema.to_string())
}

/// What errors call a tool.
fn name_of(i: usize) -> String {
    format!("tools[{i}]")
}

/// What a model calls the arguments of a call, if its calls are JSON that it can be made to write.
pub(super) fn key_of_arguments(style: &Style) -> Option<&'static str> {
    match style.calls {
        Some(CallSyntax::Tagged) => Some("arguments"),
        Some(CallSyntax::Bare) => Some("parameters"),
        _ => None,
    }
}

/// The schema of a call, without the definitions of its arguments' schema, which are added to the others. `at` is the tool.
fn call(tool: &Tool, at: &str, arguments: &str, definitions: &mut Map<String, Value>) -> Result<Value> {
    let mut parameters = tool.parameters.clone();
    check_object(&mut parameters, at)?;
    take_definitions(&mut parameters, definitions, at)?;
    Ok(json!({
        "type": "object", "properties": {"name": {"const": tool.name}, arguments: parameters},
        "required": ["name", arguments], "additionalProperties": false,
    }))
}

/// Moves the definitions of a schema that becomes a part of another one. `at` is the parameter with it.
fn take_definitions(schema: &mut Value, definitions: &mut Map<String, Value>, at: &str) -> Result<()> {
    if !refers_to_definitions(schema) {
        let why =
            "a '$ref' of a schema that becomes part of another one has to begin with '#/$defs/' or '#/definitions/'";
        return Err(ApiError::unsupported(at, why));
    }
    for place in DEFINITIONS {
        let found = schema.as_object_mut().and_then(|keys| keys.remove(place));
        if let Some(Value::Object(found)) = found {
            merge_definitions(found, definitions.entry(place).or_insert_with(|| json!({})), at)?;
        }
    }
    Ok(())
}

fn merge_definitions(found: Map<String, Value>, known: &mut Value, at: &str) -> Result<()> {
    let Value::Object(known) = known else { return Ok(()) };
    for (name, schema) in found {
        if known.get(&name).is_some_and(|other| *other != schema) {
            let why = format!("something else is '{name}' in the definitions of an earlier one");
            return Err(ApiError::unsupported(at, &why));
        }
        known.insert(name, schema);
    }
    Ok(())
}

/// Makes a schema of arguments one of an object, which arguments are. `at` is the tool.
fn check_object(parameters: &mut Value, at: &str) -> Result<()> {
    let is_object =
        |kind: &Value| kind == "object" || kind.as_array().is_some_and(|kinds| kinds.contains(&"object".into()));
    let Value::Object(keys) = parameters else { return Ok(()) };
    if keys.get("type").is_some_and(|kind| !is_object(kind)) {
        return Err(ApiError::of_param(
            at,
            format!("'{at}': the arguments of a call are an object, and its schema has another 'type'"),
        ));
    }
    keys.insert("type".into(), "object".into());
    // Of one that names no arguments there are none, in the words of OpenAI's API.
    let names_none = keys.get("properties").is_none_or(|names| *names == json!({}));
    if names_none && keys.keys().all(|key| DESCRIBES.contains(&key.as_str())) {
        keys.insert("additionalProperties".into(), false.into());
    }
    Ok(())
}

/// Whether all references of a schema are to its definitions, which stay where they are when the schema is a part of another.
fn refers_to_definitions(schema: &Value) -> bool {
    match schema {
        Value::Array(list) => list.iter().all(refers_to_definitions),
        Value::Object(keys) => keys.iter().all(|(key, value)| match value {
            Value::String(to) if key == "$ref" => {
                DEFINITIONS.iter().any(|place| to.starts_with(&format!("#/{place}/")))
            }
            _ => refers_to_definitions(value),
        }),
        _ => true,
    }
}

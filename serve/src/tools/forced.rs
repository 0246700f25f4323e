//! The form of an answer that has to be a call: a schema of the object that models write for one.

use super::Choice;
use crate::error::{ApiError, Result};
use crate::form::Wanted;
use crate::style::{CallSyntax, Style};
use outboard::{Form, Tool};
use serde_json::{Map, Value, json};

/// Where schemas have definitions, which are found from their root.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

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
    let arguments = key_of_arguments(style)?;
    let mut definitions = Map::new();
    let call = |&(i, tool): &(usize, &Tool)| call(tool, &name_of(i), arguments, &mut definitions);
    let mut calls = among.iter().map(call).collect::<Result<Vec<Value>>>()?;
    let mut schema = match calls.len() {
        1 => calls.remove(0),
        _ => json!({"anyOf": calls}),
    };
    if let Value::Object(keys) = &mut schema {
        keys.extend(definitions);
    }
    Ok(Some(Wanted::new(Form::JsonSchema(schema.to_string()), param)))
}

/// What errors call a tool.
fn name_of(i: usize) -> String {
    format!("tools[{i}]")
}

/// What a model calls the arguments of a call.
fn key_of_arguments(style: &Style) -> Result<&'static str> {
    match style.calls {
        Some(CallSyntax::Tagged) => Ok("arguments"),
        Some(CallSyntax::Bare) => Ok("parameters"),
        _ => {
            let why = "a model that writes calls like this one is not made to call a tool; it is asked with 'auto'";
            Err(ApiError::unsupported("tool_choice", why))
        }
    }
}

/// The schema of a call, without the definitions of its arguments' schema, which are added to the others. `at` is the tool.
fn call(tool: &Tool, at: &str, arguments: &str, definitions: &mut Map<String, Value>) -> Result<Value> {
    let mut parameters = tool.parameters.clone();
    check_object(&mut parameters, at)?;
    if !refers_to_definitions(&parameters) {
        let why = "a '$ref' of a tool's schema has to begin with '#/$defs/' or '#/definitions/' where a model is made to call it";
        return Err(ApiError::unsupported(at, why));
    }
    for place in DEFINITIONS {
        let found = parameters.as_object_mut().and_then(|keys| keys.remove(place));
        if let Some(Value::Object(found)) = found {
            merge_definitions(found, definitions.entry(place).or_insert_with(|| json!({})), at)?;
        }
    }
    Ok(json!({
        "type": "object", "properties": {"name": {"const": tool.name}, arguments: parameters},
        "required": ["name", arguments], "additionalProperties": false,
    }))
}

fn merge_definitions(found: Map<String, Value>, known: &mut Value, at: &str) -> Result<()> {
    let Value::Object(known) = known else { return Ok(()) };
    for (name, schema) in found {
        if known.get(&name).is_some_and(|other| *other != schema) {
            let why = format!("an earlier tool has something else as '{name}' in its definitions; name one tool");
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

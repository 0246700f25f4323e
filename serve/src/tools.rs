//! Tools: those that a request offers to the model. What its messages say of their calls is in `history`.

mod forced;
mod history;

pub(crate) use history::{History, take_call, take_calls};

use crate::answer_parser::Calls;
use crate::error::{ApiError, Result};
use crate::form::Wanted;
use crate::limits::{TOOL_BYTES, TOOLS};
use crate::params::{Params, is_nothing, kind};
use crate::style::Style;
use outboard::Tool;
use serde_json::{Value, json};
use std::sync::Arc;

/// Characters of a tool's name.
const NAME: usize = 128;

const TELLS_NOT_OF_TOOLS: &str = "the chat template of this model does not tell it of tools, their calls and results; ask without them, or another model";

/// What a request offers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offer {
    /// None: the model is told of none, and writes no calls.
    pub(crate) tools: Arc<[Tool]>,
    pub(crate) calls: Calls,
    /// The form of an answer that is a call and nothing else.
    pub(crate) form: Option<Wanted>,
}

/// Whether the model is to call something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Choice {
    /// As it likes.
    #[default]
    Auto,
    /// It is told of no tools.
    None,
    /// It must call one.
    Required,
    /// It must call this one.
    Named(String),
}

impl Offer {
    /// OpenAI's `tools`, `tool_choice` and `parallel_tool_calls`: of chats, where a function is in an object of its own.
    pub(crate) fn of_chat(params: &mut Params, style: &Style) -> Result<Offer> {
        for (name, instead) in [("functions", "tools"), ("function_call", "tool_choice")] {
            params.absent(name, &format!("it is of an earlier form of the API; use '{instead}'"), |value| {
                is_nothing(value) || value == "none" || value == "auto"
            })?;
        }
        Offer::of_openai(params, style, |params| {
            check_type(params, "function")?;
            let at = params.name("function");
            let inner = Params::of(params.required("function")?, &at)?;
            Ok(std::mem::replace(params, inner))
        })
    }

    /// The same of responses, where the type and the function are in one object.
    pub(crate) fn of_responses(params: &mut Params, style: &Style) -> Result<Offer> {
        Offer::of_openai(params, style, |params| {
            check_type(params, "function")?;
            Ok(Params::default())
        })
    }

    /// `unwrap` leaves the function in the parameters, and gives what is around it.
    fn of_openai(params: &mut Params, style: &Style, unwrap: impl Fn(&mut Params) -> Result<Params>) -> Result<Offer> {
        let parallel = params.boolean("parallel_tool_calls")?.unwrap_or(true);
        let choice = match params.take("tool_choice") {
            None => Choice::Auto,
            Some(Value::String(text)) => match text.as_str() {
                "auto" => Choice::Auto,
                "none" => Choice::None,
                "required" => Choice::Required,
                _ => {
                    let message = "'tool_choice' must be none, auto, required or a function";
                    return Err(ApiError::of_param("tool_choice", message));
                }
            },
            Some(value) => {
                let mut params = Params::of(value, "tool_choice")?;
                let around = unwrap(&mut params)?;
                let name = params.required_string("name")?;
                params.finish()?;
                around.finish()?;
                Choice::Named(name)
            }
        };
        let list = params.list("tools", TOOLS)?.unwrap_or_default();
        let tool = |(i, value): (usize, Value)| {
            let mut params = Params::of(value, &format!("tools[{i}]"))?;
            params.without_effect(&["cache_control"]);
            let around = unwrap(&mut params)?;
            let tool = tool(&mut params, "parameters")?;
            params.finish()?;
            around.finish()?;
            Ok(tool)
        };
        // A model that is free to call does without those that a service has.
        let may_do_without = matches!(choice, Choice::Auto | Choice::None);
        let is_ours = |(_, value): &(usize, Value)| !may_do_without || !is_of_service(value);
        let tools = list.into_iter().enumerate().filter(is_ours).map(tool).collect::<Result<Vec<_>>>()?;
        Offer::new(tools, &choice, if parallel { Calls::Any } else { Calls::One }, style)
    }

    /// Anthropic's `tools` and `tool_choice`.
    pub(crate) fn of_messages(params: &mut Params, style: &Style) -> Result<Offer> {
        let (mut choice, mut calls) = (Choice::Auto, Calls::Any);
        if let Some(mut params) = params.object("tool_choice")? {
            choice = match params.required_string("type")?.as_str() {
                "auto" => Choice::Auto,
                "none" => Choice::None,
                "any" => Choice::Required,
                "tool" => Choice::Named(params.required_string("name")?),
                _ => {
                    let message = "'tool_choice.type' must be auto, any, tool or none";
                    return Err(ApiError::of_param("tool_choice.type", message));
                }
            };
            if params.boolean("disable_parallel_tool_use")?.unwrap_or(false) {
                calls = Calls::One;
            }
            params.finish()?;
        }
        let list = params.list("tools", TOOLS)?.unwrap_or_default();
        let tool = |(i, value): (usize, Value)| {
            let mut params = Params::of(value, &format!("tools[{i}]"))?;
            check_type(&mut params, "custom")?;
            // What a program asks of a larger service, and what only explains the schema.
            params.without_effect(&["cache_control", "eager_input_streaming", "input_examples", "allowed_callers"]);
            let tool = tool(&mut params, "input_schema")?;
            params.finish()?;
            Ok(tool)
        };
        let tools = list.into_iter().enumerate().map(tool).collect::<Result<Vec<_>>>()?;
        Offer::new(tools, &choice, calls, style)
    }

    fn new(tools: Vec<Tool>, choice: &Choice, calls: Calls, style: &Style) -> Result<Offer> {
        check_bytes(&tools)?;
        for (i, tool) in tools.iter().enumerate() {
            if tools[..i].iter().any(|other| other.name == tool.name) {
                let message = format!("two tools have the name '{}'", tool.name);
                return Err(ApiError::of_param(format!("tools[{i}]"), message));
            }
        }
        if *choice == Choice::None || (tools.is_empty() && *choice == Choice::Auto) {
            return Ok(Offer { calls, ..Offer::default() });
        }
        if !style.knows_tools {
            return Err(ApiError::unsupported("tools", TELLS_NOT_OF_TOOLS));
        }
        if style.calls.is_none() {
            let why = "it is not known here how this model writes calls: its chat template says none of the forms that are read";
            return Err(ApiError::unsupported("tools", why));
        }
        let form = forced::form(&tools, choice, style)?;
        Ok(Offer { tools: tools.into(), calls, form })
    }

    /// The form of the answer: of the call that it has to be, or what else was asked for.
    pub(crate) fn form_or(&self, wanted: Option<Wanted>, style: &Style) -> Result<Option<Wanted>> {
        match (&self.form, wanted) {
            (Some(_), Some(other)) => Err(ApiError::of_param(
                other.param(),
                format!("an answer that has to be a call has no other form, such as '{}'", other.param()),
            )),
            // A form holds from the first token on, and the model is to be free to call.
            (None, Some(wanted)) if !self.tools.is_empty() => match wanted.schema()? {
                Some(schema) if forced::key_of_arguments(style).is_some() => {
                    forced::or_call(schema, wanted.param(), &self.tools, style).map(Some)
                }
                _ => {
                    let why = "beside tools that the model is free to call: say 'tool_choice' none for a text of this form, or required for a call";
                    Err(ApiError::unsupported(wanted.param(), why))
                }
            },
            (form, wanted) => Ok(wanted.or_else(|| form.clone())),
        }
    }
}

/// Refuses tools that take too much: they are kept until the texts have ended.
fn check_bytes(tools: &[Tool]) -> Result<()> {
    let size = |tool: &Tool| tool.name.len() + tool.description.len() + tool.parameters.to_string().len();
    let bytes: usize = tools.iter().map(size).sum();
    if bytes <= TOOL_BYTES {
        return Ok(());
    }
    let message =
        format!("'tools' have {bytes} bytes of names, descriptions and schemas, and at most {TOOL_BYTES} are taken");
    Err(ApiError::of_param("tools", message))
}

/// Whether a tool is one that OpenAI's service runs by itself, and that programs such as Codex offer to every model.
fn is_of_service(tool: &Value) -> bool {
    let kind = tool["type"].as_str().unwrap_or_default();
    ["web_search", "file_search", "code_interpreter", "image_generation"].iter().any(|known| kind.starts_with(known))
}

fn check_type(params: &mut Params, only: &str) -> Result<()> {
    let found = params.string("type")?.unwrap_or_else(|| only.to_owned());
    if found == only {
        return Ok(());
    }
    let found: String = found.chars().take(40).collect();
    Err(ApiError::unsupported(params.name("type"), &format!("'{found}'; there is '{only}'")))
}

/// A tool of an API that calls the schema of its arguments this.
fn tool(params: &mut Params, schema: &str) -> Result<Tool> {
    let at = params.name("name");
    let name = params.required_string("name")?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > NAME || !name.chars().all(is_name) {
        let message = format!("'{at}' must be 1 to {NAME} letters, digits, '_', '-' and '.'");
        return Err(ApiError::of_param(at, message));
    }
    let description = params.string("description")?.unwrap_or_default();
    // A call that a model has to write is of the schema in any case, one that it is free to write is as it writes it.
    params.boolean("strict")?;
    let parameters = match params.take(schema) {
        None => json!({"type": "object", "properties": {}}),
        Some(Value::Object(map)) => Value::Object(map),
        Some(other) => {
            let at = params.name(schema);
            let message = format!("'{at}' must be a JSON schema, not {}", kind(&other));
            return Err(ApiError::of_param(at, message));
        }
    };
    Ok(Tool { name, description, parameters })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::style::CallSyntax;

    fn style() -> Style {
        Style { calls: Some(CallSyntax::Tagged), knows_tools: true, ..Style::default() }
    }

    fn chat(body: &Value, style: &Style) -> Result<Offer> {
        let mut params = Params::parse(body.to_string().as_bytes()).unwrap();
        let offer = Offer::of_chat(&mut params, style)?;
        params.finish().map(|()| offer)
    }

    fn param(error: &ApiError) -> String {
        error.openai()["error"]["param"].as_str().unwrap_or_default().to_owned()
    }

    #[test]
    fn what_the_apis_call_a_tool_is_the_same_tool() {
        let schema = json!({"type": "object", "properties": {"z": {}, "a": {}}});
        let function = json!({"name": "f", "description": "d", "parameters": schema});
        let offer = chat(&json!({"tools": [{"type": "function", "function": function}]}), &style()).unwrap();
        assert_eq!((offer.tools[0].description.as_str(), offer.calls), ("d", Calls::Any));
        // In the order in which they were given.
        assert_eq!(offer.tools[0].parameters.to_string(), schema.to_string());
        let of = |body: Value| Params::parse(body.to_string().as_bytes()).unwrap();
        let flat = json!({"type": "function", "name": "f", "description": "d", "parameters": schema, "strict": false});
        let mut params = of(json!({"tools": [flat], "parallel_tool_calls": false}));
        let responses = Offer::of_responses(&mut params, &style()).unwrap();
        assert_eq!((&responses.tools, responses.calls), (&offer.tools, Calls::One));
        let tool = json!({"name": "f", "description": "d", "input_schema": schema, "cache_control": {}});
        let choice = json!({"type": "auto", "disable_parallel_tool_use": true});
        let mut params = of(json!({"tools": [tool], "tool_choice": choice}));
        let messages = Offer::of_messages(&mut params, &style()).unwrap();
        assert_eq!((&messages.tools, messages.calls), (&offer.tools, Calls::One));
        let none = chat(&json!({"tools": [{"function": function}], "tool_choice": "none"}), &Style::default()).unwrap();
        assert!(none.tools.is_empty());
    }

    #[test]
    fn what_is_wrong_or_not_there_is_named() {
        let tools = |tool: Value| json!({"tools": [{"type": "function", "function": tool}]});
        let with = |name: &str, value: Value| {
            let mut body = tools(json!({"name": "f"}));
            body[name] = value;
            body
        };
        for (body, at) in [
            (tools(json!({})), "tools[0].function.name"),
            (tools(json!({"name": "f g"})), "tools[0].function.name"),
            (tools(json!({"name": "f", "strict": 1})), "tools[0].function.strict"),
            (tools(json!({"name": "f", "parameters": "x"})), "tools[0].function.parameters"),
            (tools(json!({"name": "f", "more": 1})), "tools[0].function.more"),
            (json!({"tools": [{"type": "web_search"}], "tool_choice": "required"}), "tools[0].type"),
            (json!({"tools": [{"type": "custom", "name": "f"}]}), "tools[0].type"),
            (json!({"tools": [{"type": "function", "function": {"name": "f"}, "more": 1}]}), "tools[0].more"),
            (json!({"tools": [{"function": {"name": "f"}}, {"function": {"name": "f"}}]}), "tools[1]"),
            (json!({"functions": [{"name": "f"}]}), "functions"),
            (json!({"function_call": {"name": "f"}}), "function_call"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (with("tool_choice", json!("other")), "tool_choice"),
            (with("tool_choice", json!({"type": "function", "function": {"name": "g"}})), "tool_choice"),
            (with("tool_choice", json!({"type": "allowed_tools"})), "tool_choice.type"),
        ] {
            assert_eq!(param(&chat(&body, &style()).unwrap_err()), at, "{body}");
        }
        let large = "x".repeat(TOOL_BYTES);
        assert_eq!(param(&chat(&tools(json!({"name": "f", "description": large})), &style()).unwrap_err()), "tools");
        let error = |style: &Style| param(&chat(&tools(json!({"name": "f"})), style).unwrap_err());
        assert_eq!(error(&Style { knows_tools: false, ..style() }), "tools");
        assert_eq!(error(&Style { calls: None, ..style() }), "tools");
        let listed = Style { calls: Some(CallSyntax::Listed), ..style() };
        assert_eq!(param(&chat(&with("tool_choice", json!("required")), &listed).unwrap_err()), "tool_choice");
    }

    #[test]
    fn an_answer_that_has_to_be_a_call_has_its_form() {
        let tool = |name: &str, of: &str| {
            let parameters =
                json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/T"}}, "$defs": {"T": {"type": of}}});
            json!({"type": "function", "function": {"name": name, "parameters": parameters, "strict": true}})
        };
        let named = json!({"type": "function", "function": {"name": "f"}});
        let schema = |tools: Value, choice: &Value| {
            let offer = chat(&json!({"tools": tools, "tool_choice": choice}), &style())?;
            let format = offer.form.as_ref().map(Wanted::format).unwrap_or_default();
            Ok::<_, ApiError>(format["schema"].clone())
        };
        let one = schema(json!([tool("f", "string"), tool("g", "null")]), &named).unwrap();
        assert_eq!(
            (&one["properties"]["name"], &one["$defs"]["T"]["type"]),
            (&json!({"const": "f"}), &json!("string"))
        );
        assert_eq!(
            one["properties"]["arguments"],
            json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/T"}}})
        );
        let any = schema(json!([tool("f", "string"), tool("g", "string")]), &json!("required")).unwrap();
        assert_eq!(any["anyOf"].as_array().unwrap().len(), 2);
        let error = schema(json!([tool("f", "string"), tool("g", "null")]), &json!("required")).unwrap_err();
        assert_eq!(param(&error), "tools[1]");
        let typed = |parameters: Value| schema(json!([{"function": {"name": "f", "parameters": parameters}}]), &named);
        for parameters in [json!({}), json!({"type": "object"}), json!({"type": ["null", "object"]})] {
            let kind = typed(parameters).map(|schema| schema["properties"]["arguments"]["type"].clone());
            assert_eq!(kind, Ok(json!("object")));
        }
        assert_eq!(param(&typed(json!({"type": "string"})).unwrap_err()), "tools[0]");
        let recursive =
            json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"$ref": "#"}}}}});
        assert_eq!(param(&schema(json!([recursive]), &named).unwrap_err()), "tools[0]");
        let offer = chat(&json!({"tools": [tool("f", "string")], "tool_choice": named}), &style()).unwrap();
        assert!(offer.form_or(Some(Wanted::new(outboard::Form::JsonObject, "x")), &style()).is_err());
        let without = |function: Value| schema(json!([{"function": function}]), &named).unwrap();
        let none = without(json!({"name": "f"}))["properties"]["arguments"].clone();
        assert_eq!(none["additionalProperties"], false, "one that names no arguments has none");
    }

    #[test]
    fn a_form_beside_tools_that_may_be_called_is_of_an_answer_or_a_call() {
        let parameters =
            json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/T"}}, "$defs": {"T": {"type": "null"}}});
        let tools =
            json!([{"function": {"name": "f", "parameters": parameters, "strict": true}}, {"type": "web_search"}]);
        let offer = chat(&json!({"tools": tools}), &style()).unwrap();
        assert_eq!((offer.tools.len(), &offer.form), (1, &None));
        let form = |form| offer.form_or(Some(Wanted::new(form, "p")), &style());
        let of = |schema: Value| outboard::Form::JsonSchema(schema.to_string());
        let schema = form(of(json!({"$ref": "#/$defs/A", "$defs": {"A": {"type": "array"}}})))
            .unwrap()
            .unwrap()
            .schema()
            .unwrap()
            .unwrap();
        assert_eq!(
            (&schema["anyOf"][1], &schema["$defs"]),
            (&json!({"$ref": "#/$defs/A"}), &json!({"T": {"type": "null"}, "A": {"type": "array"}}))
        );
        assert_eq!(schema["anyOf"][0]["properties"]["name"], json!({"const": "f"}));
        for wrong in [
            of(json!({"$defs": {"T": {"type": "string"}}})),
            of(json!({"$ref": "#"})),
            outboard::Form::JsonSchema("{".into()),
            outboard::Form::JsonSchema(" ".repeat(outboard::llm::constraint::MOST_FORM_BYTES + 1)),
            outboard::Form::Regex("a".into()),
        ] {
            assert_eq!(param(&form(wrong).unwrap_err()), "p");
        }
        let channels = Style { calls: Some(CallSyntax::Channels), ..style() };
        let error = offer.form_or(Some(Wanted::new(outboard::Form::JsonObject, "p")), &channels).unwrap_err();
        assert_eq!(param(&error), "p", "its calls are no JSON");
        let none = json!({"tools": [{"type": "web_search"}], "tool_choice": "none"});
        assert!(chat(&none, &style()).unwrap().tools.is_empty());
    }
}

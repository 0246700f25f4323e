//! Chat templates: from messages to the prompt that a model was trained with.
//!
//! A model's file holds the template as Jinja source (`tokenizer.chat_template`). It is rendered as Hugging Face's
//! `apply_chat_template` does: blocks trimmed, Python's string methods and JSON, `raise_exception` and `strftime_now`. Tools, their calls and results
//! have the shape that Hugging Face gives them. Steps and depth are bounded, because the source comes from the file; the memory of the strings that it builds is not.

use crate::error::{Error, Result};
use crate::gguf::{Gguf, shown};
use crate::python_json::to_json;
use crate::tokenizer::Tokenizer;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value, context};
use serde_json::{Map, json};
use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest template in bytes: those with tools and several languages have some ten thousand.
const MAX_TEMPLATE: usize = 1 << 20;
/// Most steps of a rendering. Templates take some dozens for each message.
const MAX_STEPS: u64 = 10_000_000;
/// Deepest nesting of calls and macros.
const MAX_DEPTH: usize = 100;
/// Longest prompt in bytes.
const MAX_PROMPT: usize = 64 << 20;
const NAME: &str = "chat_template";
/// What is set here and by nobody else.
const OWN_VARIABLES: [&str; 7] =
    ["messages", "add_generation_prompt", "bos_token", "eos_token", "tools", "documents", "strftime_now"];

/// A text that fails to grow beyond the longest prompt.
struct Limited(Vec<u8>);

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(MAX_PROMPT - self.0.len());
        self.0.extend_from_slice(bytes.get(..taken).unwrap_or_default());
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What stands behind the messages of a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenerationPrompt {
    /// The beginning of the assistant's answer, for the model to go on from.
    Add,
    /// Nothing.
    Omit,
}

/// What a template is told beside messages and tools, by its names there, such as `enable_thinking`.
pub type Variables = Map<String, serde_json::Value>;

/// A tool that a model may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// What the model calls it.
    pub name: String,
    /// What it does.
    pub description: String,
    /// The JSON schema of its arguments.
    pub parameters: serde_json::Value,
}

impl Tool {
    fn value(&self) -> Value {
        let Tool { name, description, parameters } = self;
        let function = json!({"name": name, "description": description, "parameters": parameters});
        Value::from(Serde(json!({"type": "function", "function": function})))
    }
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// By which its result says what it is the result of.
    pub id: String,
    /// The tool.
    pub name: String,
    /// What it is called with.
    pub arguments: Map<String, serde_json::Value>,
}

impl ToolCall {
    fn value(&self) -> serde_json::Value {
        let ToolCall { id, name, arguments } = self;
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    }
}

/// One message of a chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who says it: `system`, `user`, `assistant`, or `tool` for a result; templates may know more.
    pub role: String,
    /// What is said.
    pub content: String,
    /// What the assistant thought before; empty: nothing that is known.
    pub reasoning: String,
    /// What the assistant calls.
    pub calls: Vec<ToolCall>,
    /// Of a tool's result: the id of its call, and the tool's name.
    pub result_of: Option<(String, String)>,
}

impl Message {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        let (role, content) = (role.into(), content.into());
        Message { role, content, reasoning: String::new(), calls: Vec::new(), result_of: None }
    }

    /// What a tool has answered to a call.
    pub fn result(id: impl Into<String>, tool: impl Into<String>, content: impl Into<String>) -> Message {
        Message { result_of: Some((id.into(), tool.into())), ..Message::new("tool", content) }
    }

    /// What a template gets. It has only what there is, because templates ask whether something is defined.
    fn value(&self) -> Value {
        let mut value = json!({"role": self.role, "content": self.content});
        if !self.reasoning.is_empty() {
            value["reasoning_content"] = self.reasoning.as_str().into();
            // What gpt-oss calls it; beside a text and calls it would be one too many for its template.
            if self.content.is_empty() || self.calls.is_empty() {
                value["thinking"] = self.reasoning.as_str().into();
            }
        }
        if !self.calls.is_empty() {
            value["tool_calls"] = self.calls.iter().map(ToolCall::value).collect();
        }
        if let Some((id, name)) = &self.result_of {
            value["tool_call_id"] = id.as_str().into();
            value["name"] = name.as_str().into();
        }
        Value::from(Serde(value))
    }
}

/// The chat template of a model.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
    strip_bos: bool,
    knows_tools: OnceLock<bool>,
    /// Those that callers may set.
    variables: OnceLock<HashSet<String>>,
}

impl ChatTemplate {
    /// The template of a file, with the special tokens of its tokenizer.
    pub fn from_gguf(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
        let source = gguf.str("tokenizer.chat_template").filter(|s| !s.trim().is_empty()).ok_or_else(|| {
            Error::Request(
                "this model has no chat template (tokenizer.chat_template): it is not made for chats, and continues texts; or its file is old"
                    .into(),
            )
        })?;
        if source.len() > MAX_TEMPLATE {
            return Err(Error::Model(format!("the chat template has {} bytes (at most {MAX_TEMPLATE})", source.len())));
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| Error::Model(e.to_string()))?);
        environment.set_fuel(Some(MAX_STEPS));
        environment.set_recursion_limit(MAX_DEPTH);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function(
            "raise_exception",
            |message: String| -> std::result::Result<String, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        environment
            .add_template_owned(NAME, source.to_owned())
            .map_err(|e| Error::Model(format!("the chat template is not usable: {}", shown(&e.to_string()))))?;
        let text = |id: Option<u32>| {
            let text = id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default();
            String::from_utf8_lossy(text).into_owned()
        };
        Ok(ChatTemplate {
            environment,
            bos: text(tokenizer.bos()),
            eos: text(tokenizer.eos()),
            strip_bos: tokenizer.adds_bos(),
            knows_tools: OnceLock::new(),
            variables: OnceLock::new(),
        })
    }

    /// The prompt for some messages, to be encoded with special tokens parsed and with BOS: if the tokenizer adds BOS, the
    /// template's own is taken away here. `now` is the date, in UTC, for templates that mention it.
    pub fn render(&self, messages: &[Message], answer: GenerationPrompt, now: SystemTime) -> Result<String> {
        self.render_with(messages, &[], &Variables::new(), answer, now)
    }

    /// Whether the template looks at a variable of this name that callers may set.
    pub fn has_variable(&self, name: &str) -> bool {
        let variables = self.variables.get_or_init(|| {
            let template = self.environment.get_template(NAME);
            let mut found = template.map_or_else(|_| HashSet::new(), |template| template.undeclared_variables(false));
            let is_taken = |name: &str| {
                OWN_VARIABLES.contains(&name) || self.environment.globals().any(|(global, _)| global == name)
            };
            found.retain(|name| !is_taken(name));
            found
        });
        variables.contains(name)
    }

    /// The same with tools that the model may call, and variables of its own. A template that does not know of any leaves them out:
    /// [`ChatTemplate::knows_tools`], [`ChatTemplate::has_variable`].
    pub fn render_with(
        &self,
        messages: &[Message],
        tools: &[Tool],
        variables: &Variables,
        answer: GenerationPrompt,
        now: SystemTime,
    ) -> Result<String> {
        let wrong = |e: minijinja::Error| {
            let reason = match e.kind() {
                ErrorKind::OutOfFuel => format!("it takes more than {MAX_STEPS} steps"),
                _ => shown(e.detail().unwrap_or(&e.to_string())),
            };
            Error::Request(format!("the model's chat template cannot render these messages: {reason}"))
        };
        let messages: Vec<Value> = messages.iter().map(Message::value).collect();
        let tools: Vec<Value> = tools.iter().map(Tool::value).collect();
        let template = self.environment.get_template(NAME).map_err(wrong)?;
        let mut text = Limited(Vec::new());
        let rendered = template.render_captured_to(
            context! {
                messages,
                add_generation_prompt => answer == GenerationPrompt::Add,
                bos_token => self.bos.as_str(),
                eos_token => self.eos.as_str(),
                // None is what callers without tools pass in Python.
                tools => if tools.is_empty() { Value::from(()) } else { Value::from(tools) },
                documents => Value::from(()),
                strftime_now => Value::from_function(move |format: String| strftime(&format, now)),
                // They replace none of those above.
                ..Value::from(Serde(variables.clone()))
            },
            &mut text,
        );
        if text.0.len() >= MAX_PROMPT {
            return Err(Error::Request(format!(
                "the model's chat template makes more than {MAX_PROMPT} bytes of these messages"
            )));
        }
        rendered.map_err(wrong)?;
        let text = String::from_utf8(text.0).map_err(|e| Error::Internal(e.to_string()))?;
        match text.strip_prefix(&self.bos) {
            Some(rest) if self.strip_bos && !self.bos.is_empty() => Ok(rest.to_owned()),
            _ => Ok(text),
        }
    }

    /// Whether the template tells a model what tools there are: its text is another with one.
    pub fn knows_tools(&self) -> bool {
        *self.knows_tools.get_or_init(|| {
            let parameters =
                json!({"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]});
            let tool = Tool { name: "say".into(), description: "Says a word.".into(), parameters };
            let text = |tools: &[Tool]| {
                let messages = [Message::new("user", "x")];
                self.render_with(&messages, tools, &Variables::new(), GenerationPrompt::Add, UNIX_EPOCH).ok()
            };
            text(std::slice::from_ref(&tool)).is_some_and(|with| text(&[]).as_ref() != Some(&with))
        })
    }
}

/// The directives of `strftime` that date formats in templates use; others stay as they are.
fn strftime(format: &str, time: SystemTime) -> String {
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let days = seconds / 86400;
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let weekday = DAYS.get((days % 7) as usize).copied().unwrap_or_default();
    let month_name = MONTHS.get(month as usize - 1).copied().unwrap_or_default();
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out += &year.to_string(),
            Some('y') => out += &format!("{:02}", year % 100),
            Some('m') => out += &format!("{month:02}"),
            Some('d') => out += &format!("{day:02}"),
            Some('e') => out += &format!("{day:2}"),
            Some('B') => out += month_name,
            Some('b') => out += month_name.get(..3).unwrap_or_default(),
            Some('A') => out += weekday,
            Some('a') => out += weekday.get(..3).unwrap_or_default(),
            Some('H') => out += &format!("{hour:02}"),
            Some('I') => out += &format!("{:02}", (hour + 11) % 12 + 1),
            Some('p') => out += if hour < 12 { "AM" } else { "PM" },
            Some('M') => out += &format!("{minute:02}"),
            Some('S') => out += &format!("{second:02}"),
            Some('F') => out += &format!("{year}-{month:02}-{day:02}"),
            Some('T') => out += &format!("{hour:02}:{minute:02}:{second:02}"),
            Some('%') => out.push('%'),
            other => {
                out.push('%');
                out.extend(other);
            }
        }
    }
    out
}

/// Year, month and day of a number of days after 1970-01-01 (the Gregorian calendar counted from 1 March, so that leap days
/// come last in a year of 365 or 366 days).
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::GgufWriter;

    fn template(source: &str, add_bos: bool) -> Result<ChatTemplate> {
        let mut w = GgufWriter::new();
        w.text("tokenizer.ggml.model", "llama").texts("tokenizer.ggml.tokens", &["<unk>", "<s>", "</s>"]);
        w.f32s("tokenizer.ggml.scores", &[0.0; 3]).bool("tokenizer.ggml.add_bos_token", add_bos);
        if !source.is_empty() {
            w.text("tokenizer.chat_template", source);
        }
        let gguf = Gguf::parse(w.finish().unwrap().into()).unwrap();
        ChatTemplate::from_gguf(&gguf, &Tokenizer::from_gguf(&gguf).unwrap())
    }

    fn render(source: &str) -> Result<String> {
        // 2024-02-29 13:05:09 UTC.
        let now = UNIX_EPOCH + Duration::from_secs(1_709_211_909);
        let messages = [Message::new("user", " <Hi> "), Message::new("assistant", "Yo")];
        template(source, false)?.render(&messages, GenerationPrompt::Add, now)
    }

    #[test]
    fn renders_like_python() {
        let source = "{{ bos_token }}\n{% for m in messages %}\n  {% if m['role'] == 'user' %}\nU:{{ m.content.strip() | upper }}\n  \
                      {% else %}\nA:{{ m.content + eos_token }}\n  {%- endif %}\n{% endfor %}\n\
                      {%- if add_generation_prompt and not tools and m is not defined %}G{% endif %}";
        assert_eq!(render(source).unwrap(), "<s>\nU:<HI>\nA:Yo</s>G");
    }

    #[test]
    fn bos_is_not_there_twice() {
        let render = |template: ChatTemplate| template.render(&[], GenerationPrompt::Omit, UNIX_EPOCH).unwrap();
        let text = |add_bos| render(template("{{ bos_token }}x", add_bos).unwrap());
        assert_eq!((&*text(false), &*text(true)), ("<s>x", "x"));
    }

    /// In the form of Qwen's, Mistral's and gpt-oss's templates.
    const TOOLS: &str = "{%- for tool in tools %}{{ tool | tojson }}\n{% endfor %}\
        {%- for m in messages %}[{{ m.role }}{% if m.name is defined %} {{ m.name }}/{{ m.tool_call_id }}{% endif %}]{{ m.content }}\
        {%- if m.thinking is defined %}({{ m.thinking }}){% endif %}\
        {%- for call in m.tool_calls %}{% set f = call.function %}<{{ call.id }} {{ f.name }} {{ f.arguments | tojson }} {{ (f | tojson)[:-1] }}>\
        {%- endfor %}{% endfor %}";

    fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
        ToolCall { id: id.into(), name: name.into(), arguments: serde_json::from_str(arguments).unwrap() }
    }

    #[test]
    fn tools_calls_and_results_are_as_hugging_face_gives_them() {
        let template = template(TOOLS, false).unwrap();
        let parameters = json!({"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "number"}}});
        let tool = Tool { name: "look".into(), description: "<It> isn't \u{e9}".into(), parameters };
        let mut asks = Message::new("assistant", "");
        asks.reasoning = "hm".into();
        asks.calls = vec![call("1", "look", r#"{"z": "x & y", "a": 1}"#), call("2", "look", "{}")];
        let mut both = Message { content: "so".into(), ..asks.clone() };
        both.calls.truncate(1);
        let messages = [Message::new("user", "Hi"), asks, Message::result("1", "look", "it"), both];
        let none = Variables::new();
        let text = template.render_with(&messages, &[tool], &none, GenerationPrompt::Omit, UNIX_EPOCH).unwrap();
        let expected = r#"{"type": "function", "function": {"name": "look", "description": "<It> isn't \u00e9", "parameters": {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "number"}}}}}
[user]Hi[assistant](hm)<1 look {"z": "x & y", "a": 1} {"name": "look", "arguments": {"z": "x & y", "a": 1}><2 look {} {"name": "look", "arguments": {}>[tool look/1]it[assistant]so<1 look {"z": "x & y", "a": 1} {"name": "look", "arguments": {"z": "x & y", "a": 1}>"#;
        assert_eq!(text, expected.replace("\\u00e9", "\u{e9}"));
        let plain = template.render(&messages[..1], GenerationPrompt::Omit, UNIX_EPOCH).unwrap();
        assert_eq!(plain, "[user]Hi");
        assert!(template.knows_tools());
    }

    #[test]
    fn variables_are_for_templates_that_have_them() {
        let source = "{% set x = 1 %}{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}{{ messages[0].content }}";
        let template = template(source, false).unwrap();
        let has = ["enable_thinking", "messages", "x", "documents", ""].map(|name| template.has_variable(name));
        assert_eq!(has, [true, false, false, false, false]);
        let text = |variables: serde_json::Value| {
            let (messages, variables) = ([Message::new("user", "Hi")], variables.as_object().unwrap().clone());
            template.render_with(&messages, &[], &variables, GenerationPrompt::Add, UNIX_EPOCH).unwrap()
        };
        assert_eq!(text(json!({})), "Hi");
        assert_eq!(text(json!({"enable_thinking": true})), "Hi");
        assert_eq!(text(json!({"enable_thinking": false, "messages": "mine"})), "<think></think>Hi");
    }

    #[test]
    fn whether_a_template_knows_tools_is_seen_by_what_it_writes() {
        let knows = |source| template(source, false).unwrap().knows_tools();
        assert!(!knows("{% for m in messages %}{{ m.content }}{% endfor %}"));
        assert!(!knows("{% if tools %}{{ raise_exception('no tools') }}{% endif %}x"));
        assert!(knows("{% if not tools %}{{ raise_exception('no chats') }}{% endif %}x"));
        assert!(knows("{% if tools is not none %}{{ tools | length }}{% endif %}"));
    }

    #[test]
    fn dates() {
        let text = render("{{ strftime_now('%d %B %Y|%a %b %e %H:%M:%S|%I %p|%F|%y %A|%%|%q') }}").unwrap();
        assert_eq!(text, "29 February 2024|Thu Feb 29 13:05:09|01 PM|2024-02-29|24 Thursday|%|%q");
        assert_eq!((civil(0), civil(365), civil(11_016)), ((1970, 1, 1), (1971, 1, 1), (2000, 2, 29)));
    }

    #[test]
    fn errors_are_one_line() {
        let error = |source| render(source).unwrap_err().to_string();
        assert!(error("").contains("no chat template"));
        assert!(error("{% for %}").contains("the chat template is not usable"));
        assert!(error("{{ raise_exception('roles must\nalternate') }}").ends_with("messages: roles must\\nalternate"));
        assert!(error("{{ x.y }}").contains("cannot render"));
        let endless = "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}";
        assert!(error(endless).contains("more than 10000000 steps"));
        assert!(error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").contains("cannot render"));
    }
}

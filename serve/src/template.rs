//! What a chat tells the model's template beside its messages and tools: whether to reason, and how much.

use crate::error::{ApiError, Result};
use crate::limits::VARIABLE_BYTES;
use crate::params::Params;
use crate::style::Style;
use outboard::{Model, Variables};
use serde_json::Value;

/// Says whether to reason, in the templates of most models that can do both.
const THINKS: &str = "enable_thinking";
/// Says how much, in those of gpt-oss and others.
const EFFORT: &str = "reasoning_effort";
/// OpenAI's and Anthropic's words for it.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Variables for a model's template.
#[derive(Debug)]
pub(crate) struct TemplateVariables<'m> {
    model: &'m Model,
    /// Whether the model may write reasoning.
    pub(crate) reasons: bool,
    pub(crate) variables: Variables,
}

impl<'m> TemplateVariables<'m> {
    /// Takes `chat_template_kwargs`, as llama-server and vLLM have it.
    pub(crate) fn take(model: &'m Model, style: &Style, params: &mut Params) -> Result<TemplateVariables<'m>> {
        let mut template = TemplateVariables { model, reasons: style.reasons(), variables: Variables::new() };
        template.take_named(params)?;
        Ok(template)
    }

    fn has(&self, variable: &str) -> bool {
        self.model.template().is_ok_and(|template| template.has_variable(variable))
    }

    /// Sets one, by the parameter of this name. Fails if another one has said something else.
    fn set(&mut self, at: &str, variable: &str, value: impl Into<Value>) -> Result<()> {
        let value = value.into();
        match self.variables.insert(variable.into(), value.clone()) {
            Some(other) if other != value => Err(ApiError::of_param(
                at,
                format!("'{at}' says something else of '{variable}' than 'chat_template_kwargs'"),
            )),
            _ => Ok(()),
        }
    }

    fn take_named(&mut self, params: &mut Params) -> Result<()> {
        let Some(mut given) = params.object("chat_template_kwargs")? else { return Ok(()) };
        if given.bytes() > VARIABLE_BYTES {
            let message =
                format!("'chat_template_kwargs' has {} bytes, and at most {VARIABLE_BYTES} are taken", given.bytes());
            return Err(ApiError::of_param("chat_template_kwargs", message));
        }
        for name in given.names() {
            let at = given.name(&name);
            let Some(value) = given.take(&name) else { continue };
            if self.has(&name) {
                self.set(&at, &name, value)?;
            } else if self.reasons || name != THINKS || value != false {
                return Err(ApiError::unsupported(at, "the chat template of this model has no such variable"));
            }
        }
        Ok(())
    }

    /// How much to reason, said by the parameter of this name.
    pub(crate) fn take_effort(&mut self, params: &mut Params, name: &str) -> Result<()> {
        let (at, Some(effort)) = (params.name(name), params.string(name)?) else { return Ok(()) };
        if !EFFORTS.contains(&effort.as_str()) {
            return Err(ApiError::of_param(at.clone(), format!("'{at}' must be one of {}", EFFORTS.join(", "))));
        }
        match (self.has(THINKS), self.has(EFFORT)) {
            (true, false) => self.set(&at, THINKS, effort != "none"),
            (true, true) if effort == "none" => self.set(&at, THINKS, false),
            (_, true) => self.set(&at, EFFORT, effort),
            (false, false) if effort == "none" && self.reasons => {
                let why = "this model always reasons: its chat template does not ask; leave it out";
                Err(ApiError::unsupported(at, why))
            }
            // Programs say it of every model; this one reasons as it does, or never.
            (false, false) => Ok(()),
        }
    }

    /// Whether to reason, for templates that ask.
    pub(crate) fn think(&mut self, thinks: bool) -> Result<()> {
        if self.has(THINKS) { self.set("thinking", THINKS, thinks) } else { Ok(()) }
    }
}

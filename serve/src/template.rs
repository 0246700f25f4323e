//! What a chat tells the model's template beside its messages and tools: whether to reason, and how much.

use crate::error::{ApiError, Result};
use crate::params::Params;
use outboard::{Model, Variables};
use serde_json::Value;

/// Says whether to reason, in the templates of most models that can do both.
const THINKS: &str = "enable_thinking";
/// Says how much, in those of gpt-oss and others.
const EFFORT: &str = "reasoning_effort";
const EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];

/// Variables for a model's template.
#[derive(Debug)]
pub(crate) struct TemplateVariables<'m> {
    model: &'m Model,
    pub(crate) variables: Variables,
}

impl<'m> TemplateVariables<'m> {
    pub(crate) fn new(model: &'m Model) -> TemplateVariables<'m> {
        TemplateVariables { model, variables: Variables::new() }
    }

    fn has(&self, variable: &str) -> bool {
        self.model.template().is_ok_and(|template| template.has_variable(variable))
    }

    fn set(&mut self, variable: &str, value: impl Into<Value>) {
        self.variables.insert(variable.into(), value.into());
    }

    /// `chat_template_kwargs`, as llama-server and vLLM have it.
    pub(crate) fn take(&mut self, params: &mut Params) -> Result<()> {
        let Some(mut given) = params.object("chat_template_kwargs")? else { return Ok(()) };
        for name in given.names() {
            let at = given.name(&name);
            if !self.has(&name) {
                return Err(ApiError::unsupported(at, "the chat template of this model has no such variable"));
            }
            if let Some(value) = given.take(&name) {
                self.set(&name, value);
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
            (true, false) => self.set(THINKS, effort != "none"),
            (true, true) if effort == "none" => self.set(THINKS, false),
            (_, true) => self.set(EFFORT, effort),
            (false, false) => {
                let why = "the chat template of this model does not ask how much to reason: it always does, or never";
                return Err(ApiError::unsupported(at, why));
            }
        }
        Ok(())
    }

    /// Whether to reason, for templates that ask.
    pub(crate) fn think(&mut self, thinks: bool) {
        if self.has(THINKS) {
            self.set(THINKS, thinks);
        }
    }
}

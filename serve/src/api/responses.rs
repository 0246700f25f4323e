//! OpenAI's `/v1/responses`: one text for a list of messages. Nothing is stored, so that a conversation is sent anew each time.

mod events;
mod input;
mod output;

use super::common::{id, now};
use crate::body;
use crate::chat::Chat;
use crate::counted_body::json_answer;
use crate::error::{ApiError, Result};
use crate::form;
use crate::params::Params;
use crate::queue::Client;
use crate::service::Service;
use crate::settings::Settings;
use crate::stream::{self, Out};
use crate::template::TemplateVariables;
use crate::tools::Offer;
use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use events::Events;
use input::take_messages;
use outboard::llm::N_TOP;
use output::{Head, Repeated};
use serde_json::Value;

/// So often the log-probabilities of a text are among its last events.
const COPIES: usize = 4;

pub(crate) async fn answer(
    State(service): State<Service>,
    Extension(client): Extension<Client>,
    request: Request,
) -> Result<Response> {
    let (service, mut params, room) = body::read(service, request).await?;
    let mut settings = Settings::take(&mut params, &["max_output_tokens"], "stop", 1)?;
    let style = service.style();
    settings.log_probs = take_log_probs(&mut params)?;
    settings.check_log_probs(COPIES, service.context())?;
    let form = form::take_text(&mut params)?;
    let streams = params.boolean("stream")?.unwrap_or(false);
    let said =
        |name: &str, default: &str| params.seen(name).map_or_else(|| default.to_owned(), Value::to_string).into();
    let repeated = Repeated { tools: said("tools", "[]"), tool_choice: said("tool_choice", "\"auto\"") };
    let offer = Offer::of_responses(&mut params, style)?;
    let mut template = TemplateVariables::take(service.model(), style, &mut params)?;
    if let Some(mut reasoning) = params.object("reasoning")? {
        template.take_effort(&mut reasoning, "effort")?;
        // All of it is given.
        reasoning.without_effect(&["summary", "generate_summary"]);
        reasoning.finish()?;
    }
    let variables = template.variables;
    let (messages, instructions) = take_messages(params, style)?;
    let (format, calls) = (form.clone(), offer.calls);
    let chat = Chat { messages, variables, offer, opening: String::new() };
    let (answers, splitter) = chat.begin(&service, &client, room, form, &mut settings).await?;
    let (input, style, name) = (answers.prompt_tokens, style.clone(), service.name().to_owned());
    let head = Head {
        id: id("resp_"),
        created: now(),
        model: service.model().clone(),
        name,
        style,
        instructions,
        input,
        calls,
        repeated,
        settings,
        format,
    };
    let mut events = Events::new(head, splitter);
    if streams {
        return Ok(stream::respond(answers, events));
    }
    stream::feed(answers, &mut events).await?;
    json_answer(events.close(&mut Out::new()).1.to_string(), service.rooms().enter(client))
}

/// `include` and `top_logprobs`: how many of the most probable tokens come with each token and its log-probability. Reasoning that is sent back is asked for
/// encrypted by clients that have nothing stored: here it is there as it is.
fn take_log_probs(params: &mut Params) -> Result<Option<usize>> {
    const LOG_PROBS: &str = "message.output_text.logprobs";
    const INCLUDES: usize = 16;
    const REASONING: &str = "reasoning.encrypted_content";
    let (at, mut include) = (params.name("include"), params.strings("include", INCLUDES)?);
    include.retain(|name| name != REASONING);
    if let Some(other) = include.iter().find(|name| *name != LOG_PROBS) {
        let other: String = other.chars().take(60).collect();
        return Err(ApiError::unsupported(at, &format!("'{other}'; there are '{LOG_PROBS}' and '{REASONING}'")));
    }
    let top = params.count("top_logprobs", 0..=N_TOP as i64)?.unwrap_or(0);
    if include.is_empty() && top > 0 {
        let message = format!("'top_logprobs' needs 'include' to have '{LOG_PROBS}'");
        return Err(ApiError::of_param("top_logprobs", message));
    }
    Ok((!include.is_empty()).then_some(top))
}

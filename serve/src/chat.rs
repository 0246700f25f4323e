//! A chat that is to be answered: from its messages to a prompt, and to texts behind it.

use crate::answer_parser::{Callable, Splitter};
use crate::engine::Answers;
use crate::error::{ApiError, Result};
use crate::form::{self, Wanted};
use crate::queue::Client;
use crate::room::Room;
use crate::service::Service;
use crate::settings::Settings;
use crate::tools::Offer;
use outboard::{Message, Variables};
use std::sync::Arc;

const IS_REASONING: &str = "the template of this model begins its reasoning, and what is asked for would begin before that ends; ask for none \
                            (chat_template_kwargs, reasoning_effort), where the template lets you";

/// A chat that is to be answered.
pub(crate) struct Chat {
    pub(crate) messages: Vec<Message>,
    pub(crate) variables: Variables,
    pub(crate) offer: Offer,
    /// What the answer begins with: the model goes on from it.
    pub(crate) opening: String,
}

impl Chat {
    /// Its tokens, and what takes the answer to it apart. `form` is the form that the answer is to have.
    pub(crate) async fn encode(
        self,
        service: &Service,
        room: &Arc<Room>,
        form: Option<&Wanted>,
    ) -> Result<(Vec<u32>, Splitter)> {
        let (style, param) = (service.style().clone(), form.map(|form| form.param().to_owned()));
        // An answer of a form is a call only if it says so plainly.
        let is_exact = form.is_some() && self.offer.form.is_none();
        let Chat { messages, variables, offer: Offer { tools, calls, .. }, opening } = self;
        service
            .work(room, move |model| {
                let prompt = model.chat_with(&messages, &tools, &variables).map_err(|e| of_messages(e.into()))?;
                let is_reasoning = style.is_reasoning(&prompt);
                if let Some(param) = param.filter(|_| is_reasoning) {
                    return Err(ApiError::unsupported(param, &format!("{IS_REASONING}, or without the form")));
                }
                if is_reasoning && !opening.is_empty() {
                    return Err(ApiError::unsupported("messages", &format!("{IS_REASONING}, or for a new answer")));
                }
                let splitter = Splitter::new(&style, Callable::of(&tools, is_exact), calls, is_reasoning);
                Ok((model.encode(&(prompt + &opening))?, splitter))
            })
            .await
    }

    /// Begins its texts. What has no room is refused before work is done for it; then `settings` gets the tokens that
    /// are seen and the compiled form, and the prompt is encoded.
    pub(crate) async fn begin(
        self,
        service: &Service,
        client: &Client,
        room: Arc<Room>,
        form: Option<Wanted>,
        settings: &mut Settings,
    ) -> Result<(Answers, Splitter)> {
        let form = self.offer.form_or(form, service.style())?;
        service.check_room(client, settings.n)?;
        settings.shown = service.style().shown.clone();
        settings.constraint = form::compile(service, &room, form.as_ref()).await?;
        let (prompt, splitter) = self.encode(service, &room, form.as_ref()).await?;
        drop(room);
        Ok((service.begin(client, &[prompt], settings)?, splitter))
    }
}

/// An error about what the template makes of messages.
fn of_messages(error: ApiError) -> ApiError {
    error.about("messages")
}

//! `outboard run --chat` without a prompt: a conversation in the terminal. What the cache has of it is not read again: a turn reads only what is
//! new.

use super::{Args, Opened, Show};
use crate::hints::hint;
use anyhow::Result;
use outboard::Model;
use outboard_llm::chat::{ChatTemplate, GenerationPrompt, Message};
use outboard_llm::tokenizer::{Bos, SpecialText};
use outboard_llm::{Error, Finish, GenerateOptions, Sequence};
use outboard_output as output;
use std::io::BufRead;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

pub(super) fn main(mut talk: Talk, mut opened: Opened, options: &GenerateOptions) -> Result<ExitCode> {
    let sequence = opened.engine.open()?;
    output::errln("say something; an empty line or the end of the input ends the conversation")?;
    let mut lines = std::io::stdin().lock().lines();
    loop {
        output::err("> ")?;
        let Some(line) = lines.next().transpose()?.filter(|line| !line.trim().is_empty()) else { break };
        talk.turn(&mut opened, sequence, options, line)?;
        if opened.interrupted.load(Ordering::Relaxed) {
            return Ok(ExitCode::from(130));
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) struct Talk {
    template: ChatTemplate,
    messages: Vec<Message>,
    /// What the sequence has.
    tokens: Vec<u32>,
    /// The date that templates ask for stays that of the first turn, so that what was read stays as it was.
    begun: SystemTime,
}

impl Talk {
    /// One in which nothing was said yet, of a model that has a chat template.
    pub(super) fn new(args: &Args, model: &Model) -> Result<Talk> {
        let template = ChatTemplate::from_gguf(model.inner().gguf(), model.tokenizer())?;
        let system = args.system.iter().map(|s| Message::new("system", s.as_str()));
        Ok(Talk { template, messages: system.collect(), tokens: Vec::new(), begun: SystemTime::now() })
    }

    /// What somebody has said, and the answer.
    fn turn(&mut self, opened: &mut Opened, sequence: Sequence, options: &GenerateOptions, line: String) -> Result<()> {
        self.messages.push(Message::new("user", line));
        let text = self.template.render(&self.messages, GenerationPrompt::Add, self.begun)?;
        let all = opened.loaded.tokenizer().encode(&text, SpecialText::Parse, Bos::Add)?;
        // One token at least is read, to go on from.
        let most = all.len().saturating_sub(1);
        let known = self.tokens.iter().zip(&all).take(most).take_while(|(a, b)| a == b).count();
        opened.engine.truncate(sequence, known)?;
        self.tokens.truncate(known);
        let new = all.get(known..).unwrap_or_default();
        let answer = match opened.generate(sequence, new, options, Show::Text) {
            Ok(answer) => answer,
            Err(e) if matches!(e.downcast_ref(), Some(Error::ContextFull { .. })) => {
                // The conversation can go on with something shorter.
                let hint = hint(&e).unwrap_or_default();
                output::errln(format_args!("{e:#}: {hint}"))?;
                self.messages.pop();
                return Ok(());
            }
            Err(e) => return Err(e),
        };
        self.tokens.extend_from_slice(new);
        // The last token has not gone through the model.
        self.tokens.extend(answer.tokens.iter().take(answer.tokens.len().saturating_sub(1)));
        output::outln("")?;
        if answer.finish == Finish::Context {
            output::errln("the context is full; -c makes it larger")?;
        }
        self.messages.push(Message::new("assistant", answer.text));
        Ok(())
    }
}

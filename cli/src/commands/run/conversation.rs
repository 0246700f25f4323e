//! `outboard run --chat` without a prompt: a conversation in the terminal. What the cache has of it is not read again: a turn reads only what is
//! new.

use super::{Args, Opened, Show};
use crate::hints::hint;
use crate::interrupt::status;
use anyhow::{Context, Result};
use outboard::Model;
use outboard_llm::chat::{ChatTemplate, GenerationPrompt, Message};
use outboard_llm::tokenizer::{Bos, SpecialText};
use outboard_llm::{Error, Finish, GenerateOptions, Sequence};
use outboard_output as output;
use std::io::BufRead;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, SystemTime};

/// How soon a wait for a line notices Ctrl-C.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

pub(super) fn main(mut talk: Talk, mut opened: Opened, options: &GenerateOptions) -> Result<ExitCode> {
    let sequence = opened.engine.open()?;
    output::errln("say something; an empty line or the end of the input ends the conversation")?;
    let lines = lines()?;
    loop {
        output::err("> ")?;
        let Some(line) = next_line(&lines, &opened.interrupted)? else { return Ok(status(&opened.interrupted)) };
        talk.turn(&mut opened, sequence, options, line)?;
    }
}

/// What is typed, line by line: on a thread of its own, so that a wait for it can be ended.
fn lines() -> Result<Receiver<std::io::Result<String>>> {
    let (sender, lines) = channel();
    let read = move || drop(std::io::stdin().lock().lines().try_for_each(|line| sender.send(line)));
    std::thread::Builder::new().name("typed".into()).spawn(read).context("cannot read what is typed")?;
    Ok(lines)
}

/// The next line; `None` if it is empty, at the end of the input, and after Ctrl-C.
fn next_line(lines: &Receiver<std::io::Result<String>>, interrupted: &AtomicBool) -> Result<Option<String>> {
    while !interrupted.load(Ordering::Relaxed) {
        match lines.recv_timeout(LOOK_AGAIN) {
            Ok(line) => return Ok(Some(line?).filter(|line| !line.trim().is_empty())),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
    Ok(None)
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

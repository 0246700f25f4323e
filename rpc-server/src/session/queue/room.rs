//! Room that a queue's commands take, and the marks that give it back.

use super::QueueRunner;
use crate::limits::{MARK_COMMANDS, MARK_KIB};
use crate::session::answers::To;
use crate::session::flight::{Hold, Load};
use bytes::Bytes;
use outboard_core::{Pending, Result};

impl QueueRunner {
    /// Waits for room for a command with so many bytes of payload.
    pub(super) async fn take(&mut self, bytes: u64) -> Result<()> {
        let load = self.session.while_open(self.flight.command()).await??;
        let mut hold = Hold::new(&self.flight, load);
        if bytes > 0 {
            // Its own place is not part of what is marked.
            hold.load += self.payload(bytes).await?;
        }
        self.unmarked += std::mem::take(&mut hold.load);
        Ok(())
    }

    /// Waits for room for a payload.
    pub(super) async fn payload(&mut self, bytes: u64) -> Result<Load> {
        if let Some(load) = self.flight.try_payload(bytes) {
            return Ok(load);
        }
        // What it waits for may be its own, which is given back only behind a mark.
        self.mark_payloads()?;
        self.session.while_open(self.flight.payload(bytes)).await?
    }

    /// Waits for room for a command that gives it back apart from those before it. Gives what those have, and what it has.
    pub(super) async fn take_apart(&mut self, bytes: u64) -> Result<(Hold, Hold)> {
        match self.flight.try_payload(bytes) {
            Some(payload) => {
                let before = self.hold();
                self.unmarked += payload;
                self.take(0).await?;
                Ok((before, self.hold()))
            }
            None => {
                self.mark_payloads()?;
                let before = self.hold();
                self.take(bytes).await?;
                Ok((before, self.hold()))
            }
        }
    }

    /// Sends a result when it is there. All before it is done then.
    pub(super) fn answer(&mut self, pending: Pending<Bytes>, to: To) {
        let hold = self.hold();
        self.answers.when(pending, to, hold);
    }

    /// What was taken since the last answer.
    pub(super) fn hold(&mut self) -> Hold {
        Hold::new(&self.flight, std::mem::take(&mut self.unmarked))
    }

    /// After enough commands, asks how far the device is.
    pub(super) fn mark(&mut self) -> Result<()> {
        if self.unmarked.commands < MARK_COMMANDS && self.unmarked.kib() < MARK_KIB { Ok(()) } else { self.mark_now() }
    }

    /// Where a command waits for payloads since the last mark, they need one, or it waits for ever.
    fn mark_payloads(&mut self) -> Result<()> {
        if self.unmarked.kib() > 0 { self.mark_now() } else { Ok(()) }
    }

    fn mark_now(&mut self) -> Result<()> {
        let pending = self.queue.get()?.read(&self.anchor)?;
        self.answer(pending, To::Mark);
        Ok(())
    }
}

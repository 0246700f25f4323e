//! The card and what a client has of it.

use crate::clock::Clock;
use crate::memory::{CardBuffer, CardExecutable, inner, tails};
use crate::stream::CardStream;
use outboard_core::device::fresh_uid;
use outboard_core::local::{Backend, Context, Funds, Stream};
use outboard_core::{
    Buffer, Client, Device, DeviceInfo, Executable, Graph, Host, MemoryAccount, MemoryShare, Placement, Result,
    TensorId, Usage,
};
use outboard_host::{Kernels, MemoryBudget};
use outboard_reference::{Reference, reference_device};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A card: a reference device that nobody else knows of, and a way to it that takes time.
pub(crate) struct Card {
    pub(crate) silicon: Arc<dyn Device>,
    pub(crate) latency: Duration,
    pub(crate) clock: Clock,
}

impl Card {
    pub(crate) fn new(latency: Duration) -> Card {
        let silicon = reference_device(&Host::new(), "silicon", &MemoryBudget::new(None));
        Card { silicon, latency, clock: Clock::new() }
    }
}

impl Backend for Card {
    fn supports(&self, graph: &Graph, id: TensorId) -> bool {
        Reference.supports(graph, id)
    }

    fn context(&self, funds: Funds) -> Arc<dyn Context> {
        let client = Client { turns: fresh_uid(), room: fresh_uid(), account: Arc::new(OnFunds(funds.clone())) };
        // A reference device can be shared by clients, each with scratch memory of its own.
        let silicon = self.silicon.for_client(client).unwrap_or_else(|_| self.silicon.clone());
        Arc::new(CardContext { card: Arc::new(Card { silicon, ..*self }), funds })
    }

    fn progress(&self) -> Option<u64> {
        self.silicon.progress()
    }

    fn graphs_ahead(&self) -> usize {
        2
    }
}

/// The card's memory is paid for by the client that has it.
#[derive(Debug)]
struct OnFunds(Funds);

impl MemoryAccount for OnFunds {
    fn take(&self, _: u64, _: &DeviceInfo, bytes: u64) -> Result<MemoryShare> {
        Ok(Box::new(self.0.pay(bytes)?))
    }
}

struct CardContext {
    card: Arc<Card>,
    funds: Funds,
}

impl Context for CardContext {
    fn alloc(&self, size: u64, usage: Usage) -> Result<Arc<dyn Buffer>> {
        let inner = self.card.silicon.alloc(size, usage)?;
        Ok(Arc::new(CardBuffer { inner, device: self.funds.device() }))
    }

    fn compile(&self, graph: Arc<Graph>, placement: Placement) -> Result<Arc<dyn Executable>> {
        let silicon = &self.card.silicon;
        let tails = tails(&graph, &placement, self.funds.info().weight_tail)?;
        let outer: Vec<_> = graph.ids().map(|id| placement.get(id).cloned()).collect();
        let slices = outer.iter().map(|slice| slice.as_ref().map(inner).transpose()).collect::<Result<Vec<_>>>()?;
        let placement = Placement::new(&graph, silicon.as_ref(), slices)?;
        let inner = silicon.compile(graph, placement)?;
        let _buffers = outer.into_iter().flatten().collect();
        Ok(Arc::new(CardExecutable { inner, device: self.funds.device(), tails, _buffers }))
    }

    fn stream(&self, cancel: Arc<AtomicBool>) -> Result<Box<dyn Stream>> {
        Ok(Box::new(CardStream::start(self.card.clone(), self.funds.info().id.as_str().into(), cancel)?))
    }
}

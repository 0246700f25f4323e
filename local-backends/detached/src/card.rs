//! The card and what a client has of it.

use crate::clock::Clock;
use crate::memory::{CardBuffer, CardExecutable, inner};
use crate::stream::CardStream;
use outboard_core::local::{Backend, Context, Funds, Stream};
use outboard_core::{Buffer, Device, Executable, Graph, Host, Placement, Result, TensorId, Usage};
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
        let card = Card { silicon: self.silicon.clone(), ..*self };
        Arc::new(CardContext { card: Arc::new(card), funds })
    }

    fn progress(&self) -> Option<u64> {
        self.silicon.progress()
    }

    fn graphs_ahead(&self) -> usize {
        2
    }
}

struct CardContext {
    card: Arc<Card>,
    funds: Funds,
}

impl Context for CardContext {
    fn alloc(&self, size: u64, usage: Usage) -> Result<Arc<dyn Buffer>> {
        let payment = self.funds.pay(size)?;
        let inner = self.card.silicon.alloc(size, usage)?;
        Ok(Arc::new(CardBuffer { inner, device: self.funds.device(), _payment: payment }))
    }

    fn compile(&self, graph: Arc<Graph>, placement: Placement) -> Result<Arc<dyn Executable>> {
        let silicon = &self.card.silicon;
        let outer: Vec<_> = graph.ids().map(|id| placement.get(id).cloned()).collect();
        let slices = outer.iter().map(|slice| slice.as_ref().map(inner).transpose()).collect::<Result<Vec<_>>>()?;
        let placement = Placement::new(&graph, silicon.as_ref(), slices)?;
        let inner = silicon.compile(graph, placement)?;
        let _buffers = outer.into_iter().flatten().collect();
        Ok(Arc::new(CardExecutable { inner, device: self.funds.device(), _buffers }))
    }

    fn stream(&self, cancel: Arc<AtomicBool>) -> Result<Box<dyn Stream>> {
        Ok(Box::new(CardStream::start(self.card.clone(), self.funds.info().id.as_str().into(), cancel)?))
    }
}

//! What is missing when a model does not fit.

use super::predict::{Member, longest_context, missing};
use super::report::ModelRow;
use crate::commands::print_json;
use crate::print;
use anyhow::Result;
use outboard::Error;
use outboard::Model;
use outboard_core::error::Bytes;
use outboard_llm::Parts;
use outboard_output as output;
use serde::Serialize;

/// Contexts that are proposed are multiples of this many tokens.
const CTX_STEP: usize = 256;

/// The document of a model that does not fit.
#[derive(Debug, Serialize)]
struct Shortage {
    model: ModelRow,
    n_ctx: usize,
    fits: bool,
    error: String,
    weight_bytes: u64,
    cache_bytes: u64,
    /// What one more device would have to hold; `None` if only the memory for results has no room.
    missing_bytes: Option<u64>,
    /// A context with which weights and cache fit, if there is one.
    n_ctx_that_fits: Option<usize>,
    devices: Vec<Room>,
}

#[derive(Debug, Serialize)]
struct Room {
    id: String,
    host: String,
    free_bytes: u64,
}

/// Whether a load failed for want of memory.
pub(super) fn is_shortage(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<Error>(),
        Some(Error::DoesNotFit { .. } | Error::TensorTooLarge { .. } | Error::OutOfMemory { .. })
    )
}

/// Says what is there, what is needed, and what would help.
pub(super) fn tell(json: bool, loaded: &Model, parts: &Parts, members: &[Member], error: &anyhow::Error) -> Result<()> {
    let shortage = Shortage::new(loaded, parts, members, error);
    if json {
        print_json(&shortage)?;
    } else {
        output::out(shortage.text())?;
    }
    Ok(())
}

impl Shortage {
    fn new(loaded: &Model, parts: &Parts, members: &[Member], error: &anyhow::Error) -> Shortage {
        let missing_bytes = missing(parts, members);
        let room = |m: &Member| Room { id: m.id.clone(), host: m.host.clone(), free_bytes: m.capacity };
        Shortage {
            model: ModelRow::of(loaded),
            n_ctx: parts.n_ctx,
            fits: false,
            error: output::one_line(&format!("{error:#}")),
            weight_bytes: parts.all().map(|p| p.weight_bytes).sum(),
            cache_bytes: parts.all().map(|p| p.cache_bytes).sum(),
            missing_bytes,
            n_ctx_that_fits: missing_bytes.and_then(|_| longest_context(parts, members, CTX_STEP)),
            devices: members.iter().map(room).collect(),
        }
    }

    fn text(&self) -> String {
        let mut table = print::table(&["device", "free"], &[1]);
        for room in &self.devices {
            table.add_row([room.id.clone(), Bytes(room.free_bytes).to_string()]);
        }
        let (weights, cache) = (Bytes(self.weight_bytes), Bytes(self.cache_bytes));
        let mut out = print::indented(&table);
        out += &format!("\nneeded   weights {weights}, KV cache {cache} ({} tokens), memory for results\n", self.n_ctx);
        out += &match self.missing_bytes {
            Some(bytes) => format!("missing  {}, on one more device\n", Bytes(bytes)),
            None => "missing  room for results, beside weights and cache\n".to_owned(),
        };
        if let Some(n) = self.n_ctx_that_fits {
            out += &format!("with a context of {n} tokens (-c {n}), weights and cache would fit\n");
        }
        out
    }
}

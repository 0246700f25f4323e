//! What to do about an error, in the words of the command line: the libraries know no flags.

use outboard::Error;

/// The flags or commands that help against an error; none if there are none.
pub(crate) fn hint(error: &anyhow::Error) -> Option<String> {
    if let Some(error) = error.downcast_ref::<outboard_llm::Error>() {
        return of_model(error).map(str::to_owned).or_else(|| of(&error.clone().into()));
    }
    error.downcast_ref::<Error>().and_then(of)
}

/// What only programs see that use a model themselves.
fn of_model(error: &outboard_llm::Error) -> Option<&'static str> {
    use outboard_llm::Error as Llm;
    match error {
        Llm::ChunkTooShort { .. } => Some("make it larger with -c"),
        Llm::TextTooShort { .. } => Some("take a longer one, or make chunks smaller with -c"),
        Llm::NotFinite { .. } => Some("`outboard smoke` finds out which"),
        _ => None,
    }
}

fn of(error: &Error) -> Option<String> {
    let hint = match error {
        Error::ContextFull { .. } => "make it larger with -c, or the prompt shorter",
        Error::ContextTooLarge { most, .. } => return Some(format!("make the context smaller (-c {most})")),
        Error::PartsOfSplit { .. } => "-ts needs one for each",
        Error::CacheFull { .. } => "make it larger with -c, or have fewer texts at a time",
        Error::DoesNotFit { .. } | Error::TensorTooLarge { .. } | Error::OutOfMemory { .. } => {
            "add a device, make the context smaller (-c), or place less there (-ts, and -ot for single weights)"
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_come_with_errors_of_either_library() {
        let of = |error: anyhow::Error| hint(&error).unwrap_or_default();
        let full = outboard_llm::Error::ContextFull { tokens: 9, used: 0, n_ctx: 8 };
        assert!(of(full.clone().into()).contains("-c") && of(Error::from(full).into()).contains("-c"));
        let large = outboard_llm::Error::ContextTooLarge { arch: "llama".into(), most: 256 };
        assert!(of(large.into()).contains("-c 256"));
        let rooms = Vec::new();
        assert!(of(outboard_llm::Error::DoesNotFit { needed: 1, rooms }.into()).contains("-ts"));
        assert!(of(Error::PartsOfSplit { parts: 1, devices: 2 }.into()).contains("-ts"));
        assert_eq!(hint(&Error::Cancelled.into()), None);
        assert_eq!(hint(&anyhow::anyhow!("something else")), None);
    }
}

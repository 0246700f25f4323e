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
        Error::CacheFull { .. } => "make it larger with -c",
        Error::DoesNotFit { .. } => {
            "add a device, make the context smaller (-c), or place less there (-ts, and -ot for single weights)"
        }
        _ => return None,
    };
    Some(hint.to_owned())
}

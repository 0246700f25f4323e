//! What the parts of a JSON schema are: a property may be called as a keyword is.

/// Keywords whose values have a schema under each name.
const NAMES: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// Keywords whose values a text is compared with.
pub(super) const VALUES: [&str; 2] = ["const", "enum"];
/// Keywords whose values are not looked at.
const DESCRIBE: [&str; 2] = ["default", "examples"];

/// What a part of a schema is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Schema,
    /// Schemas by names that are no keywords.
    Names,
    /// Anything else.
    Value,
}

impl Place {
    /// Of what is under a name.
    pub(super) fn within(self, name: &str) -> Place {
        match self {
            Place::Schema if NAMES.contains(&name) => Place::Names,
            Place::Schema if VALUES.contains(&name) || DESCRIBE.contains(&name) => Place::Value,
            Place::Schema | Place::Names => Place::Schema,
            Place::Value => Place::Value,
        }
    }
}

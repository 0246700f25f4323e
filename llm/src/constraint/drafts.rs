//! What llguidance takes otherwise than the draft of a JSON schema does: an error, since the text would be another one.

use serde_json::Value;

/// Fails with what is wrong if a schema has such a part.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    check_items(schema)?;
    parts(schema).try_for_each(check_part)
}

fn check_part(part: &Value) -> Result<(), String> {
    // References below it begin at it, and not at the root.
    if part.get("$id").is_some_and(Value::is_string) {
        return Err("a part of it has an address of its own ('$id'), for which there is nothing here".into());
    }
    check_items(part)?;
    parts(part).try_for_each(check_part)
}

fn check_items(part: &Value) -> Result<(), String> {
    if part.get("prefixItems").is_some_and(Value::is_array) && part.get("additionalItems").is_some() {
        return Err("'prefixItems' and 'additionalItems' are of different drafts".into());
    }
    Ok(())
}

fn parts(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Object(keys) => Box::new(keys.values()),
        Value::Array(parts) => Box::new(parts.iter()),
        _ => Box::new(std::iter::empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_drafts_say_differently_is_refused() {
        let error = |text: &str| check(&serde_json::from_str(text).unwrap()).err().unwrap_or_default();
        assert!(error(r#"{"$defs": {"a": {"$id": "http://x/a", "type": "null"}}}"#).contains("$id"));
        assert!(
            error(r#"{"anyOf": [{"prefixItems": [true], "additionalItems": false}]}"#).contains("different drafts")
        );
        assert!(error(r#"{"prefixItems": [true], "additionalItems": false}"#).contains("different drafts"));
        for taken in [
            r#"{"$id": "http://x/a", "type": "null"}"#,
            r#"{"properties": {"$id": {"type": "string"}, "prefixItems": true, "additionalItems": true}}"#,
            r#"{"items": [true], "additionalItems": false}"#,
        ] {
            assert_eq!(error(taken), "", "{taken}");
        }
    }
}

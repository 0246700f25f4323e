//! A test whose model is missing is left out, unless models are required: then it fails.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_integration::model;
use std::process::{Command, Output};

#[test]
fn needs_a_model() {
    if model("smollm2").is_some() {
        println!("it is here");
    }
}

/// Runs that test in a process of its own, without models.
fn without_models(required: Option<&str>) -> Output {
    let empty = tempfile::tempdir().unwrap();
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["--exact", "needs_a_model"]).env("OUTBOARD_TEST_MODELS", empty.path());
    match required {
        Some(value) => test.env("OUTBOARD_REQUIRE_MODELS", value),
        None => test.env_remove("OUTBOARD_REQUIRE_MODELS"),
    };
    test.output().unwrap()
}

#[test]
fn a_missing_model_is_a_failure_where_models_are_required() {
    for not_required in [None, Some(""), Some("0")] {
        let left_out = without_models(not_required);
        assert!(left_out.status.success(), "{left_out:?}");
        assert!(String::from_utf8_lossy(&left_out.stderr).contains("skipped needs_a_model"), "{left_out:?}");
    }
    let failed = without_models(Some("1"));
    assert!(!failed.status.success(), "{failed:?}");
    let said = String::from_utf8_lossy(&failed.stdout).into_owned();
    assert!(said.contains("smollm2.gguf") && said.contains("OUTBOARD_REQUIRE_MODELS"), "{failed:?}");
}

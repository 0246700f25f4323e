//! What the documents say of the code.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

type Arrows = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

fn short(package: &str) -> String {
    package.trim_start_matches("outboard-").to_owned()
}

/// The lines `a -> b c` of ARCHITECTURE.md.
fn said() -> Arrows {
    let arrow = |line: &str| {
        let (from, to) = line.split_once("->")?;
        Some((from.trim().to_owned(), to.split_whitespace().map(str::to_owned).collect()))
    };
    text("ARCHITECTURE.md").lines().filter_map(arrow).collect()
}

/// Dependencies of every member of the workspace on others, but for those that consist of tests.
fn built() -> Arrows {
    let manifest = text("Cargo.toml");
    let members = manifest.split_once("members = [").unwrap().1.split_once(']').unwrap().0;
    let members = members.split(',').map(|m| m.trim().trim_matches('"')).filter(|m| !m.is_empty());
    let mut arrows = Arrows::new();
    for member in members.filter(|m| !["integration", "fuzz", "gpu-check"].contains(m)) {
        let manifest = text(&format!("{member}/Cargo.toml"));
        let name = manifest.lines().find_map(|l| l.strip_prefix("name = ")).unwrap().trim_matches('"').to_owned();
        let dependencies = manifest.split("\n[").find_map(|section| section.strip_prefix("dependencies]"));
        let names = dependencies.unwrap_or_default().lines().filter_map(|l| l.split_once([' ', '.'])).map(|(n, _)| n);
        arrows.insert(short(&name), names.filter(|n| n.starts_with("outboard")).map(short).collect());
    }
    arrows
}

#[test]
fn the_arrows_of_the_architecture_are_those_of_the_manifests() {
    assert_eq!(said(), built());
}

#[test]
fn links_between_documents_lead_somewhere() {
    let mut documents: Vec<PathBuf> = Vec::new();
    for folder in ["", "docs", "docs/notes", "bench", "bench/lan", "bench/results", "fuzz"] {
        let files = std::fs::read_dir(root().join(folder)).unwrap().map(|file| file.unwrap().path());
        documents.extend(files.filter(|file| file.extension().is_some_and(|e| e == "md")));
    }
    assert!(documents.len() > 15, "{documents:?}");
    let mut missing = Vec::new();
    for document in documents {
        let text = std::fs::read_to_string(&document).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            let file = link.split('#').next().unwrap_or_default();
            if !link.contains("://") && !file.is_empty() && !document.parent().unwrap().join(file).exists() {
                missing.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Every Rust file of the repository, as one text.
fn sources(folder: &Path, out: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            if name != "target" && !name.to_string_lossy().starts_with('.') {
                sources(&path, out);
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn tests_that_the_security_page_names_are_there() {
    let text = text("SECURITY.md");
    let table = text.split_once("What a review found").unwrap().1;
    let is_test = |name: &&str| {
        name.len() > 8
            && name.contains('_')
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let names: BTreeSet<&str> = table.split('`').skip(1).step_by(2).filter(is_test).collect();
    assert!(names.len() > 40, "{names:?}");
    let mut code = String::new();
    sources(&root(), &mut code);
    let missing: Vec<&&str> = names.iter().filter(|name| !code.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

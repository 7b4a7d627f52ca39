//! What the rest of the project may rely on without reading it: each exported function documents the same things, nothing inside
//! the library calls an exported function (another library's of that name might answer), and the texts name files that are there.
#![cfg(feature = "capi")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use nvte::capi::api::NAMES;

const LABELS: [&str; 8] = ["Shapes:", "Units:", "Pointers:", "Alignment:", "Aliasing:", "Stream order:", "Determinism:", "Errors:"];

/// (name, documentation) of every function declared in the header.
fn functions() -> Vec<(String, String)> {
    let (mut out, mut doc) = (Vec::new(), String::new());
    let (_, declarations) = include_str!("../include/nvte.h").split_once("extern \"C\" {").unwrap();
    let (declarations, _) = declarations.split_once("struct nvte_api_t {").unwrap();
    for line in declarations.lines() {
        if let Some(text) = line.strip_prefix("//") {
            doc += text;
            doc += "\n";
        } else if let Some((before, _)) = line.split_once('(').filter(|_| line.starts_with(|c: char| c.is_alphabetic())) {
            out.push((before.rsplit([' ', '*']).next().unwrap().to_owned(), std::mem::take(&mut doc)));
        }
    }
    out
}

#[test]
fn every_function_documents_the_same_things() {
    let functions = functions();
    assert_eq!(functions.len(), NAMES.len() + 1, "the table's functions and nvte_api: {functions:#?}");
    let mut missing = Vec::new();
    for (name, doc) in &functions {
        for label in LABELS.iter().filter(|l| !doc.contains(**l)) {
            missing.push(format!("{name}: {label}"));
        }
        for mark in ["`", "# ", "[`", "::", "unsafe", "panic", "Option", "&mut"].iter().filter(|m| doc.contains(**m)) {
            missing.push(format!("{name}: {mark:?} means nothing to a C reader"));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

fn rust_files(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

#[test]
fn nothing_inside_calls_an_exported_function() {
    let mut files = Vec::new();
    rust_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    if files.is_empty() {
        return println!("not run: no sources here");
    }
    let mut calls = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        // Unit tests stand at the end of a file and may call what they test.
        let body = text.split("#[cfg(test)]").next().unwrap();
        for (i, line) in body.lines().enumerate().filter(|(_, l)| !l.trim_start().starts_with("//")) {
            for name in NAMES.iter().chain(&["nvte_api"]) {
                for (at, _) in line.match_indices(&format!("{name}(")) {
                    let own = line[..at].ends_with("fn ");
                    let longer = line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
                    if !own && !longer {
                        calls.push(format!("{}:{}: {}", path.display(), i + 1, line.trim()));
                    }
                }
            }
        }
    }
    assert!(calls.is_empty(), "{calls:#?}");
}

/// The C++ wrapper reaches every function, and only through the table.
#[test]
fn the_cpp_wrapper_has_every_function() {
    let text = include_str!("../bindings/cpp/include/nvte.hpp");
    for name in NAMES {
        let field = name.strip_prefix("nvte_").unwrap();
        assert!(text.contains(&format!("().{field}(")), "nvte.hpp does not call {name}");
        assert!(!text.contains(&format!("{name}(")), "nvte.hpp calls {name} past the table");
    }
}

/// Files that the texts link to, and those that they name by a path from the root.
#[test]
fn files_that_the_texts_name_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut missing = Vec::new();
    for text in ["README.md", "docs/performance.md", "benches/results/README.md"] {
        let (content, folder) = (fs::read_to_string(root.join(text)).unwrap(), root.join(text).parent().unwrap().to_owned());
        let links = content.split("](").skip(1).map(|s| s.split(')').next().unwrap()).filter(|l| !l.starts_with("http"));
        missing.extend(links.filter(|l| !folder.join(l).exists()).map(|l| format!("{text}: {l}")));
        for word in content.split('`').skip(1).step_by(2).flat_map(str::split_whitespace) {
            let own = ["benches/", "bindings/", "docs/", "examples/", "include/", "src/", "tools/"].iter().any(|f| word.starts_with(f));
            if own && !root.join(word).exists() {
                missing.push(format!("{text}: {word}"));
            }
        }
        for word in content.split('`').skip(1).step_by(2).filter(|w| w.starts_with("h200-")) {
            if !root.join("benches/results").join(word).exists() {
                missing.push(format!("{text}: {word}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn tools_say_what_they_take_and_do_nothing_else() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (tool, word) in [("test", "NVTE_TEST_NO_TORCH"), ("pack", "NVTE_PACK_PYTHON"), ("run.sh", "sanitize [NAME...]")] {
        let run = |argument| std::process::Command::new(root.join("tools").join(tool)).arg(argument).current_dir("/").output().unwrap();
        let (help, wrong) = (run("--help"), run("--nonsense"));
        let text = String::from_utf8(help.stdout).unwrap();
        assert!(help.status.success() && text.contains(word) && !text.contains('#') && help.stderr.is_empty(), "{tool}: {text}");
        assert_eq!(wrong.status.code(), Some(2), "{tool}");
        assert!(String::from_utf8(wrong.stderr).unwrap().contains(word) && wrong.stdout.is_empty(), "{tool}");
    }
}

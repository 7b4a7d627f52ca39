//! The README's programs are programs: C, C++ and Python blocks run as they stand (the Rust block is a documentation test).
#![cfg(all(feature = "capi", target_os = "linux"))]

mod common;

use common::cc::{available, link, succeeded, Workshop};

/// The one block in this language.
fn block(language: &str) -> String {
    let text = include_str!("../README.md");
    let start = format!("```{language}\n");
    let (_, rest) = text.split_once(&start).unwrap_or_else(|| panic!("the README has no {language} block"));
    rest.split_once("```").unwrap().0.to_owned()
}

fn run(language: &str, file: &str) -> Option<String> {
    if !available() {
        return None;
    }
    let (w, link) = (Workshop::new(&[(file, &block(language))]), link());
    let link: Vec<&str> = link.iter().map(String::as_str).collect();
    let arguments = [&[file, "-I.", "-o", "program"], &link[..]].concat();
    if language == "c" {
        w.c(&arguments);
    } else {
        w.cpp(&arguments);
    }
    Some(succeeded(w.command("program").output().unwrap()))
}

#[test]
fn c_block() {
    if let Some(out) = run("c", "readme.c") {
        assert_eq!(out.trim(), "code of 600 * 0.5: 0x79, scale_inv 2, amax 600");
    }
}

#[test]
fn cpp_block() {
    if let Some(out) = run("cpp", "readme.cpp") {
        assert_eq!(out.trim(), "9");
    }
}

//! C11 and C++17 programs against the shared library: warnings are errors, the header is included twice and from two files, and both
//! sanitizers watch.
#![cfg(all(feature = "capi", target_os = "linux"))]

mod common;

use common::cc::{available, link, succeeded, Workshop, SANITIZERS};

const SECOND: (&str, &str) = ("second.c", include_str!("c/second.c"));

fn run(w: &Workshop) {
    let mut command = w.command("program");
    command.env("ASAN_OPTIONS", "detect_leaks=1:strict_string_checks=1");
    assert_eq!(succeeded(command.output().unwrap()).trim(), "passed");
}

#[test]
fn a_c11_program() {
    if !available() {
        return;
    }
    let w = Workshop::new(&[SECOND, ("program.c", include_str!("c/program.c"))]);
    let link = link();
    let link: Vec<&str> = link.iter().map(String::as_str).collect();
    w.c(&[&SANITIZERS[..], &["program.c", "second.c", "-o", "program"], &link, &["-lm"]].concat());
    run(&w);
}

#[test]
fn a_cpp17_program() {
    if !available() {
        return;
    }
    let w = Workshop::new(&[SECOND, ("program.cpp", include_str!("c/program.cpp"))]);
    let link = link();
    let link: Vec<&str> = link.iter().map(String::as_str).collect();
    w.c(&["-c", "second.c", "-o", "second.o"]);
    w.cpp(&[&SANITIZERS[..], &["program.cpp", "second.o", "-o", "program"], &link].concat());
    run(&w);
}

/// The second file of the C program is also C++.
#[test]
fn header_is_cpp_too() {
    if available() {
        Workshop::new(&[("second.cpp", SECOND.1)]).cpp(&["-fsyntax-only", "second.cpp"]);
    }
}

/// tests/abi.rs holds the golden layouts to be the crate's; here a C compiler holds them to be the header's.
#[test]
fn c_layouts_are_the_golden_ones() {
    if !available() {
        return;
    }
    let mut text = String::from("#include \"nvte.h\"\n");
    for line in include_str!("golden/layouts.txt").lines() {
        let (what, number) = line.split_once(' ').unwrap();
        text += &match what.split_once('.') {
            None => format!("_Static_assert(sizeof({what}) == {number}, \"{what}\");\n"),
            Some((name, field)) => format!("_Static_assert(offsetof({name}, {field}) == {number}, \"{what}\");\n"),
        };
    }
    let w = Workshop::new(&[("layouts.c", &text), ("layouts.cpp", &text.replace("_Static_assert", "static_assert"))]);
    w.c(&["-fsyntax-only", "layouts.c"]);
    w.cpp(&["-fsyntax-only", "layouts.cpp"]);
}

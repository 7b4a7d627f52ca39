//! C and C++ programs built and run by tests, in a temporary folder with the headers, against the shared library.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::elf;

/// A folder with the headers and the sources asked for.
pub struct Workshop {
    folder: tempfile::TempDir,
}

/// The compilers, or nothing where NVTE_TEST_NO_CC says that there are none. That they are missing is otherwise an error.
pub fn available() -> bool {
    let skipped = std::env::var_os("NVTE_TEST_NO_CC").is_some();
    if skipped {
        println!("not run: NVTE_TEST_NO_CC is set");
    }
    !skipped
}

fn compiler(variable: &str, default: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| default.to_owned())
}

/// Warnings are errors, in the strictest usual setting.
pub const C: [&str; 5] = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"];
/// Likewise for C++.
pub const CPP: [&str; 5] = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic"];
/// Both sanitizers; the first finding ends the program.
pub const SANITIZERS: [&str; 3] = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

impl Workshop {
    pub fn new(sources: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let headers = [("nvte.h", include_str!("../../include/nvte.h")), ("nvte.hpp", include_str!("../../bindings/cpp/include/nvte.hpp"))];
        for (name, text) in headers.iter().chain(&[("check.h", include_str!("../c/check.h"))]).chain(sources) {
            fs::write(folder.path().join(name), text).unwrap();
        }
        Self { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a compiler here.
    pub fn build(&self, compiler: &str, arguments: &[&str]) {
        let out = Command::new(compiler).args(arguments).current_dir(self.folder.path()).output();
        let out = out.unwrap_or_else(|e| panic!("{compiler}: {e} (NVTE_TEST_NO_CC=1 leaves these tests out)"));
        assert!(out.status.success(), "{compiler} {arguments:?}:\n{}", String::from_utf8_lossy(&out.stderr));
    }

    pub fn c(&self, arguments: &[&str]) {
        self.build(&compiler("CC", "cc"), &[&C[..], arguments].concat());
    }

    pub fn cpp(&self, arguments: &[&str]) {
        self.build(&compiler("CXX", "c++"), &[&CPP[..], arguments].concat());
    }

    /// A shared library for tests, from C sources that need not be beautiful.
    pub fn shared(&self, out: &str, sources: &[&str]) {
        self.build(&compiler("CC", "cc"), &[&["-shared", "-fPIC", "-w", "-o", out], sources].concat());
    }

    /// A command for something built here that finds the library.
    pub fn command(&self, program: &str) -> Command {
        let mut c = Command::new(self.path(program));
        c.current_dir(self.folder.path());
        c
    }
}

/// Options that link with the library and have it found at run time.
pub fn link() -> [String; 3] {
    let library = elf::library();
    let folder = library.parent().unwrap_or(Path::new(".")).display().to_string();
    ["-lnvte".to_owned(), format!("-L{folder}"), format!("-Wl,-rpath,{folder}")]
}

/// The program succeeded; its standard output.
pub fn succeeded(out: Output) -> String {
    let (stdout, stderr) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{}\n{stdout}\n{stderr}", out.status);
    stdout.into_owned()
}

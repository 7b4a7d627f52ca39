//! NVIDIA's library exports names of ours and is loaded with RTLD_GLOBAL. A fake that exports *all* of them (but for `nvte_api`) comes
//! first here; Python's ctypes, and a C++ plugin linked with our library and opened afterwards, must still reach ours.
#![cfg(all(feature = "capi", target_os = "linux"))]

mod common;

use std::process::Command;

use common::{
    cc::{available, link, succeeded, Workshop},
    elf::library,
};
use nvte::capi::api::NAMES;

/// Names of NVIDIA's library, whether ours has them or not.
const THEIRS: [&str; 12] = [
    "nvte_cast",
    "nvte_quantize",
    "nvte_dequantize",
    "nvte_transpose",
    "nvte_cast_transpose",
    "nvte_cublas_gemm",
    "nvte_layernorm_fwd",
    "nvte_layernorm_bwd",
    "nvte_rmsnorm_fwd",
    "nvte_rmsnorm_bwd",
    "nvte_gelu",
    "nvte_swiglu",
];

/// Every function of the fake answers with this.
const FAKE: i32 = 77777;

fn workshop() -> Workshop {
    let mut names: Vec<&str> = NAMES.iter().copied().chain(THEIRS).collect();
    names.sort_unstable();
    names.dedup();
    let text: String = names.iter().map(|n| format!("int {n}(void) {{ return {FAKE}; }}\n")).collect();
    let w = Workshop::new(&[("fake.c", &text), ("clash.py", include_str!("c/clash.py"))]);
    w.shared("libfake.so", &["fake.c"]);
    w
}

#[test]
fn ctypes_reaches_ours() {
    if !available() {
        return;
    }
    let w = workshop();
    let python = std::env::var("NVTE_PYTHON").unwrap_or_else(|_| "python3".into());
    let mut c = Command::new(&python);
    c.arg(w.path("clash.py")).arg(w.path("libfake.so")).arg(library()).arg(nvte::VERSION);
    assert_eq!(succeeded(c.output().unwrap_or_else(|e| panic!("{python}: {e}"))).trim(), "passed");
}

#[test]
fn a_plugin_opened_later_reaches_ours_through_the_table() {
    if !available() {
        return;
    }
    let w = workshop();
    for (name, text) in [("plugin.cpp", include_str!("c/plugin.cpp")), ("host.c", include_str!("c/clash_host.c"))] {
        std::fs::write(w.path(name), text).unwrap();
    }
    let (link, version) = (link(), format!("-DNVTE_VERSION_WANTED=\"{}\"", nvte::VERSION));
    let link: Vec<&str> = link.iter().map(String::as_str).collect();
    w.cpp(&[&["-shared", "-fPIC", &version, "plugin.cpp", "-o", "libplugin.so"], &link[..]].concat());
    w.c(&["host.c", "-o", "host", "-ldl"]);
    let mut c = w.command("host");
    c.arg(w.path("libfake.so")).arg(w.path("libplugin.so"));
    // The direct call is the reason for the table: if it reached ours, this test would test nothing.
    assert_eq!(succeeded(c.output().unwrap()).trim(), format!("direct {FAKE} table 0"));
}

//! Drivers as one meets them in the field, made of a few lines of C: none, a file that is no library, one without a device, one that
//! lacks a function, one that returns a number no header knows. Each gives a clear status; nothing panics, aborts or prints.
#![cfg(all(feature = "capi", feature = "cuda", target_os = "linux"))]

mod common;

use common::{
    cc::{available, link, succeeded, Workshop},
    rng,
};
use nvte::cuda_testing::driver_symbols;
use rand::RngExt;

/// A workshop with the child program, linked with the library.
fn workshop(sources: &[(&str, &str)]) -> Workshop {
    let child = [("driver_child.c", include_str!("c/driver_child.c"))];
    let w = Workshop::new(&[&child, sources].concat());
    let link = link();
    let link: Vec<&str> = link.iter().map(String::as_str).collect();
    w.c(&[&["driver_child.c", "-o", "child"], &link[..]].concat());
    std::fs::create_dir(w.path("driver")).unwrap();
    w
}

/// Builds `driver/libcuda.so.1` from a source and, as stubs, every function in `symbols` that the source leaves out.
fn build_driver(w: &Workshop, source: &str, symbols: &[&str]) {
    let mut stubs = String::new();
    for s in symbols {
        stubs += &format!("__attribute__((weak)) int {s}(void) {{ return 0; }}\n");
    }
    std::fs::write(w.path("stubs.c"), stubs).unwrap();
    w.shared("driver/libcuda.so.1", &[source, "stubs.c"]);
}

/// Runs the child among the libraries in `driver/`; returns what it printed of the context's creation.
fn run(w: &Workshop, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let mut c = w.command("child");
    for name in ["NVTE_DEBUG", "NVTE_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH"] {
        c.env_remove(name);
    }
    c.env("LD_LIBRARY_PATH", w.path("driver")).env("NVTE_CACHE_DIR", w.path("cache")).envs(variables.iter().copied()).args(arguments);
    let out = c.output().unwrap();
    assert!(out.stderr.is_empty(), "printed: {}", String::from_utf8_lossy(&out.stderr));
    let text = succeeded(out);
    assert_eq!(text.lines().count(), 1, "printed: {text}");
    text
}

#[test]
fn no_driver() {
    if !available() {
        return;
    }
    let w = workshop(&[]);
    // Whatever this machine has.
    assert!(run(&w, &[], &[]).starts_with("NVTE_"));
    // Files of the driver's names that are no libraries: the search ends there, also on a machine that has a driver.
    for name in ["libcuda.so.1", "libcuda.so"] {
        std::fs::write(w.path("driver").join(name), "not a library, and longer than the sixty-four bytes of a header of the ELF format")
            .unwrap();
    }
    let text = run(&w, &[], &[]);
    assert!(text.starts_with("NVTE_ERROR_NO_DRIVER 0 no CUDA driver"), "{text}");
}

#[test]
fn a_driver_without_a_device() {
    if !available() {
        return;
    }
    let w = workshop(&[("driver.c", include_str!("c/fake_libcuda_no_device.c"))]);
    build_driver(&w, "driver.c", &driver_symbols());
    let text = run(&w, &[], &[]);
    assert!(text.starts_with("NVTE_ERROR_NO_DEVICE 100 "), "{text}");
    let text = run(&w, &[], &[("FAKE_COUNTS_NONE", "1")]);
    assert!(text.starts_with("NVTE_ERROR_NO_DEVICE 0 ") && text.contains("ordinal = 0"), "{text}");
}

#[test]
fn a_driver_that_lacks_a_function() {
    if !available() {
        return;
    }
    let w = workshop(&[("driver.c", include_str!("c/fake_libcuda_lacking.c"))]);
    let all: Vec<&str> = driver_symbols().into_iter().filter(|s| *s != "cuInit").collect();
    let mut rng = rng("a_driver_that_lacks_a_function");
    for lacking in [all[0], all[all.len() - 1], all[rng.random_range(0..all.len())]] {
        build_driver(&w, "driver.c", &all.iter().copied().filter(|s| *s != lacking).collect::<Vec<_>>());
        let text = run(&w, &[], &[]);
        assert!(text.starts_with("NVTE_ERROR_DRIVER_TOO_OLD 0 ") && text.contains(&format!("lacks {lacking}:")), "{lacking}: {text}");
    }
}

#[test]
fn a_driver_that_returns_an_unknown_number() {
    if !available() {
        return;
    }
    let w = workshop(&[("driver.c", include_str!("c/fake_libcuda_unknown_status.c")), ("nvrtc.c", include_str!("c/fake_libnvrtc.c"))]);
    build_driver(&w, "driver.c", &driver_symbols());
    for function in [
        "cuInit",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetAttribute",
        "cuDeviceGetName",
        "cuDeviceTotalMem",
        "cuDevicePrimaryCtxRetain",
    ] {
        let text = run(&w, &[], &[("FAKE_FAILS", function)]);
        let wanted = format!("NVTE_ERROR_CUDA 12345 {function} returned 12345 (unknown to this driver)");
        assert!(text.starts_with(&wanted), "{text}");
    }
    // The report survives it too.
    assert!(run(&w, &[], &[("FAKE_FAILS", "cuDriverGetVersion")]).starts_with("NVTE_OK 0 "));

    w.shared("driver/libnvrtc.so.13", &["nvrtc.c"]);
    assert!(run(&w, &["use"], &[]).starts_with("NVTE_OK 0 "));
}

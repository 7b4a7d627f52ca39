//! Link options of the shared library, and where its header lies for crates that depend on it.

use std::{env, path::PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    // Reaches dependents as DEP_NVTE_INCLUDE.
    println!("cargo:include={}", root.join("include").display());
    if env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        // Our calls bind to our own functions, whatever a library loaded earlier exports under the same names.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
        // Thread pools and cached kernels outlive a dlclose.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvte.so");
    }
}

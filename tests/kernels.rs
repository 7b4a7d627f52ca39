//! Every kernel the library may ask for compiles to machine code for every architecture, without spills.
#![cfg(feature = "cuda")]

use std::path::PathBuf;

use nvte::cuda_testing::{compile, nvrtc, variants, Variant};

const ARCHITECTURES: [(&str, i32); 5] = [("sm_80", 80), ("sm_89", 89), ("sm_90a", 90), ("sm_100a", 100), ("sm_120a", 120)];

/// What ptxas must not say: spilled registers, serialised wgmma, ignored setmaxnreg.
fn complaints(log: &str) -> Vec<&str> {
    log.lines()
        .filter(|l| {
            let spills = l.contains("bytes spill stores") && !l.contains(" 0 bytes spill stores, 0 bytes spill loads");
            spills || l.contains("C75") || l.contains("serialized")
        })
        .collect()
}

#[test]
fn every_kernel_compiles_for_every_architecture() {
    let dirs: Vec<PathBuf> = Vec::new();
    // With no NVRTC on the machine there is nothing to test with, and CI says that it must be there.
    let version = match nvrtc(&dirs) {
        Ok(v) => v,
        Err(e) if std::env::var_os("NVTE_TEST_REQUIRE_NVRTC").is_none() => return println!("not run: {e}"),
        Err(e) => panic!("{e}"),
    };
    // While at work on one: NVTE_TEST_KERNELS=norm_fwd tests those whose file names contain that.
    let part = std::env::var("NVTE_TEST_KERNELS").unwrap_or_default();
    let jobs: Vec<(Variant, &str)> = variants()
        .into_iter()
        .filter(|v| v.file.name().contains(&part))
        .flat_map(|v| {
            ARCHITECTURES
                .into_iter()
                .filter(move |(_, n)| (v.min_arch..=v.max_arch).contains(n))
                .map(move |(a, _)| (v.clone(), a))
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(!jobs.is_empty(), "NVTE_TEST_KERNELS: no kernel's file name contains {part:?}");
    println!("{} modules with {version}", jobs.len());
    let next = std::sync::atomic::AtomicUsize::new(0);
    let bad = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(2, |n| n.get()) {
            s.spawn(|| {
                while let Some((v, arch)) = jobs.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    let outcome = match compile(v, arch, &dirs) {
                        Err(e) => Some(e.to_string()),
                        Ok((cubin, log)) if cubin.is_empty() => Some(format!("no cubin\n{log}")),
                        Ok((_, log)) => Some(complaints(&log).join("\n")).filter(|c| !c.is_empty()),
                    };
                    if let Some(text) = outcome {
                        bad.lock().unwrap().push(format!("{:?} {:?} for {arch}: {text}", v.file, v.defines));
                    }
                }
            });
        }
    });
    let bad = bad.into_inner().unwrap();
    assert!(bad.is_empty(), "{} of {}:\n{}", bad.len(), jobs.len(), bad.join("\n"));
}

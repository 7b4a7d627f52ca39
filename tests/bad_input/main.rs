//! Every kind of bad input at every exported function, on the back end under test: the right status, a message that names the argument,
//! outputs untouched.
#![cfg(feature = "capi")]

#[path = "../common/mod.rs"]
mod common;

mod activation;
mod cast;
mod cross_entropy;
mod dropout;
mod faults;
mod framework;
mod gemm;
mod layers;
mod lists;
mod norm;
mod rope;
mod scaling;
mod softmax;

use framework::{create, message, try_everything, Function};
use nvte::capi::{api::NAMES, context::*, info::*, types::*};
use std::{mem::size_of, ptr};

/// Functions that take no data; those with arguments are tried in this file.
const BASE: [&str; 12] = [
    "nvte_version",
    "nvte_abi_version",
    "nvte_status_name",
    "nvte_last_error",
    "nvte_last_error_code",
    "nvte_set_log",
    "nvte_info",
    "nvte_context_create",
    "nvte_context_destroy",
    "nvte_context_trim",
    "nvte_context_synchronize",
    "nvte_capability",
];

/// One list of descriptions per family.
fn functions() -> Vec<Function> {
    [
        activation::functions(),
        cast::functions(),
        cross_entropy::functions(),
        dropout::functions(),
        gemm::functions(),
        layers::functions(),
        norm::functions(),
        scaling::functions(),
        softmax::functions(),
        rope::functions(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[test]
fn every_function_is_tried() {
    let described = functions();
    for name in NAMES {
        let by_hand = [&gemm::BY_HAND[..], &layers::BY_HAND, &lists::BY_HAND, &rope::BY_HAND].iter().any(|names| names.contains(name));
        let tried = BASE.contains(name) || by_hand || described.iter().any(|f| f.name == *name);
        assert!(tried, "{name} has no description in tests/bad_input");
    }
}

#[test]
fn functions_that_take_data() {
    let wrong: Vec<String> = functions().iter().flat_map(try_everything).collect();
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

/// The same on a CUDA context, on machines that have none: a driver of a few lines of C that knows memory and runs no kernel.
#[test]
#[cfg(all(feature = "cuda", target_os = "linux"))]
fn the_same_with_a_driver_that_runs_nothing() {
    use common::cc::{available, succeeded, Workshop};
    if common::on_cuda() || !available() {
        return;
    }
    let symbols = nvte::cuda_testing::driver_symbols();
    let stubs: String = symbols.iter().map(|s| format!("__attribute__((weak)) int {s}(void) {{ return 0; }}\n")).collect();
    let w = Workshop::new(&[
        ("driver.c", include_str!("../c/fake_libcuda_unknown_status.c")),
        ("memory.c", include_str!("../c/fake_libcuda_memory.c")),
        ("nvrtc.c", include_str!("../c/fake_libnvrtc.c")),
        ("stubs.c", &stubs),
    ]);
    w.shared("libcuda.so.1", &["-DFAKE_HAS_MEMORY", "driver.c", "memory.c", "stubs.c"]);
    w.shared("libnvrtc.so.13", &["nvrtc.c"]);
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.env("LD_LIBRARY_PATH", w.path("")).env("NVTE_CACHE_DIR", w.path("cache")).env_remove("NVTE_LIBRARY_PATH");
    again.env("NVTE_TEST_BACKEND", "cuda").env(framework::NO_KERNELS, "1");
    succeeded(again.output().unwrap());
}

#[test]
fn functions_about_plans_of_products() {
    gemm::the_rest();
}

#[test]
fn functions_about_layers() {
    layers::the_rest();
}

#[test]
fn functions_about_angles() {
    rope::the_rest();
}

#[test]
fn functions_about_lists() {
    lists::the_rest();
}

#[test]
fn contexts() {
    let mut ctx = ptr::null_mut();
    let refused = |status: i32, wanted: i32, text: &str| {
        assert_eq!(status, wanted, "{}", message());
        assert!(message().contains(text), "{}", message());
    };
    let sized = nvte_context_options_t {
        struct_size: size_of::<nvte_context_options_t>() as u32,
        num_threads: 0,
        cache_dir: ptr::null(),
        library_dirs: ptr::null(),
    };
    let create_with = |kind: i32, ordinal: i32, options: *const nvte_context_options_t, out: *mut nvte_context_t| {
        // SAFETY: out-pointers are null or live; structs are live for their size.
        unsafe { nvte_context_create(kind, ordinal, options, out) }
    };
    refused(create_with(NVTE_DEVICE_CPU, 0, ptr::null(), ptr::null_mut()), NVTE_ERROR_NULL_POINTER, "context");
    for kind in [-1, 2, i32::MAX] {
        refused(create_with(kind, 0, ptr::null(), &mut ctx), NVTE_ERROR_INVALID_ENUM, "device_type");
    }
    // 12 and 20 would cut a pointer.
    for size in [0, 7, 12, 20, size_of::<nvte_context_options_t>() as u32 + 1, u32::MAX] {
        let options = nvte_context_options_t { struct_size: size, ..sized };
        refused(create_with(NVTE_DEVICE_CPU, 0, &options, &mut ctx), NVTE_ERROR_INVALID_STRUCT_SIZE, "options.struct_size");
    }
    refused(create_with(NVTE_DEVICE_CPU, 0, ptr::from_ref(&sized).wrapping_byte_add(4), &mut ctx), NVTE_ERROR_MISALIGNED, "options");
    refused(create_with(NVTE_DEVICE_CPU, 1, ptr::null(), &mut ctx), NVTE_ERROR_NO_DEVICE, "ordinal");
    if common::on_cuda() {
        for ordinal in [-1, 4096] {
            refused(create_with(NVTE_DEVICE_CUDA, ordinal, ptr::null(), &mut ctx), NVTE_ERROR_NO_DEVICE, "ordinal");
        }
    }
    assert!(ctx.is_null(), "a refused call wrote the handle");

    assert_eq!(nvte_context_destroy(ptr::null_mut()), NVTE_OK);
    let live = create();
    assert_eq!(nvte_context_destroy(live), NVTE_OK);
    // The slot is used again, the old handle is not.
    let next = create();
    assert_ne!(live, next);
    for bad in [live, ptr::null_mut(), ptr::without_provenance_mut(usize::MAX), ptr::without_provenance_mut(1)] {
        if !bad.is_null() {
            refused(nvte_context_destroy(bad), NVTE_ERROR_INVALID_HANDLE, "context");
        }
        refused(nvte_context_trim(bad), NVTE_ERROR_INVALID_HANDLE, "context");
        // SAFETY: the null stream.
        refused(unsafe { nvte_context_synchronize(bad, ptr::null_mut()) }, NVTE_ERROR_INVALID_HANDLE, "context");
        // SAFETY: null pointers.
        refused(unsafe { nvte_capability(bad, ptr::null_mut()) }, NVTE_ERROR_INVALID_HANDLE, "context");
    }
    assert_eq!(nvte_context_destroy(next), NVTE_OK);
}

#[test]
fn reports() {
    let ctx = create();
    // SAFETY: null pointers and a buffer with its size, here and below.
    unsafe {
        assert_eq!(nvte_capability(ctx, ptr::null_mut()), NVTE_ERROR_NULL_POINTER);
        assert!(message().contains("capability"));
        let mut c: nvte_capability_t = std::mem::zeroed();
        for size in [0, 12, size_of::<nvte_capability_t>() as u32 + 4] {
            c.struct_size = size;
            assert_eq!(nvte_capability(ctx, &mut c), NVTE_ERROR_INVALID_STRUCT_SIZE);
            assert!(message().contains("capability.struct_size"));
            assert_eq!((c.arch, c.multiprocessors, c.name[0]), (0, 0, 0), "written on an error");
        }
        // A caller that knows a shorter struct gets no more than that.
        c.struct_size = std::mem::offset_of!(nvte_capability_t, name) as u32;
        assert_eq!(nvte_capability(ctx, &mut c), NVTE_OK);
        assert!(c.multiprocessors > 0 && c.name[0] == 0);

        let mut needed = 77usize;
        assert_eq!(nvte_info(ctx, ptr::null_mut(), 5, &mut needed), NVTE_ERROR_NULL_POINTER);
        assert!(message().contains("buffer") && needed == 77);
        let mut text = [1; 8];
        assert_eq!(nvte_info(ctx, text.as_mut_ptr(), 5, &mut needed), NVTE_OK);
        assert_eq!(text[4..], [0, 1, 1, 1]);
        assert!(needed > 100);
        assert_eq!(nvte_info(ptr::without_provenance_mut(9), text.as_mut_ptr(), 5, &mut needed), NVTE_ERROR_INVALID_HANDLE);
        assert_eq!(nvte_info(ptr::null_mut(), ptr::null_mut(), 0, ptr::null_mut()), NVTE_OK);
    }
    assert_eq!(nvte_context_destroy(ctx), NVTE_OK);
}

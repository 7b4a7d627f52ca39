//! What cuBLASLt is given, on a machine that has none: a fake one computes on the host what its descriptors say, beside a fake driver
//! whose memory is the host's and whose kernels do not run.
#![cfg(all(feature = "cuda", target_os = "linux"))]

use std::ffi::CString;

use nvte::{
    ops::gemm::{gemm_plans_export, gemm_plans_import, gemm_prepare, gemm_workspace, Accumulate, GemmArgs},
    Context, DType, Status, Stream,
};
use rand::{rngs::StdRng, RngExt};

use crate::{
    case::*,
    common::{
        cc::{available, succeeded, Workshop},
        context, on_cuda, rng, sync, Guarded, Tensor,
    },
};

/// Set in the process that runs among the fakes.
const INSIDE: &str = "NVTE_TEST_FAKE_CUBLASLT";

#[test]
fn products_reach_cublaslt_as_they_are_meant() {
    if on_cuda() || !available() {
        return;
    }
    let stubs = |s: &&str| format!("__attribute__((weak)) int {s}(void) {{ return 0; }}\n");
    let stubs: String = nvte::cuda_testing::driver_symbols().iter().map(stubs).collect();
    let w = Workshop::new(&[
        ("driver.c", include_str!("../c/fake_libcuda_unknown_status.c")),
        ("memory.c", include_str!("../c/fake_libcuda_memory.c")),
        ("nvrtc.c", include_str!("../c/fake_libnvrtc.c")),
        ("lt.c", include_str!("../c/fake_cublaslt.c")),
        ("stubs.c", &stubs),
    ]);
    w.shared("libcuda.so.1", &["-DFAKE_HAS_MEMORY", "driver.c", "memory.c", "stubs.c"]);
    w.shared("libnvrtc.so.13", &["nvrtc.c"]);
    w.shared("libcublasLt.so.13", &["-O2", "lt.c"]);
    let mut inside = std::process::Command::new(std::env::current_exe().unwrap());
    inside.args(["cublaslt::inside", "--exact", "--nocapture"]);
    inside.env("LD_LIBRARY_PATH", w.path("")).env("NVTE_LIBRARY_PATH", w.path("")).env("NVTE_CACHE_DIR", w.path("cache"));
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX", "NVTE_DEBUG"] {
        inside.env_remove(name);
    }
    inside.env("NVTE_TEST_BACKEND", "cuda").env(INSIDE, w.path("libcublasLt.so.13"));
    let text = succeeded(inside.output().unwrap());
    assert!(text.contains("1 passed"), "{text}");
}

/// A counter of the fake library.
fn counter(name: &str) -> i32 {
    let path = CString::new(std::env::var(INSIDE).unwrap()).unwrap();
    let name = CString::new(name).unwrap();
    // SAFETY: C strings; the symbol is an int.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        let p = libc::dlsym(library, name.as_ptr()).cast::<i32>();
        assert!(!p.is_null());
        p.read()
    }
}

/// How many products `f` made cuBLASLt compute.
fn products(f: impl FnOnce()) -> i32 {
    let before = counter("fake_lt_products");
    f();
    counter("fake_lt_products") - before
}

/// While `value` is what the fakes are told under `name`.
fn told<R>(name: &str, value: &str, f: impl FnOnce() -> R) -> R {
    // SAFETY: this process runs one test, on one thread.
    unsafe { std::env::set_var(name, value) };
    let r = f();
    // SAFETY: as above.
    unsafe { std::env::remove_var(name) };
    r
}

/// Up to this K, small FP8 products are the own kernel's: its launch takes less host time.
const LAUNCH_BOUND_K: usize = 512;

/// A random product that meets cuBLASLt's conditions.
fn random_case(rng: &mut StdRng) -> Case {
    let pairs: Vec<(DType, DType)> = pairs().into_iter().filter(|p| *p != (DType::E5m2, DType::E5m2)).collect();
    let (a, b) = pairs[rng.random_range(0..pairs.len())];
    let fp8 = a.is_fp8();
    let unit = if fp8 { 16 } else { 1 };
    let mut side = |unit: usize| rng.random_range(1..=64 / unit) * unit;
    let (m, n, k) = (side(1), side(unit), side(unit) + if fp8 { LAUNCH_BOUND_K } else { 0 });
    let d = if fp8 { HIGH[rng.random_range(0..3)] } else { [a, DType::F32][rng.random_range(0..2)] };
    let mut case = Case::new(m, n, k, a, b, d, MODES[rng.random_range(0..2)]);
    let mut layout = || Layout {
        k_major: fp8 || rng.random(),
        transpose: rng.random(),
        pad: rng.random_range(0..3) * unit,
        offset: rng.random_range(0..5) * unit,
    };
    (case.layout_a, case.layout_b) = (layout(), layout());
    case.alpha = rng.random_range(0.1f32..2.0);
    case.beta = if d != DType::F32 || rng.random() { 0.0 } else { rng.random_range(0.1f32..2.0) };
    (case.c, case.c_is_d) = (d, rng.random());
    (case.pad, case.offset) = (rng.random_range(0..3) * unit, rng.random_range(0..5) * unit);
    if (fp8 || d == DType::F32) && rng.random() {
        case.bias = Some((if fp8 && d == DType::F32 { DType::Bf16 } else { d }, 0));
    }
    case
}

/// Runs among the fakes; elsewhere there is nothing to do.
#[test]
fn inside() {
    if std::env::var_os(INSIDE).is_none() {
        return;
    }
    let mut rng = rng("inside");
    let of_k = |m: usize, k: usize| Case::new(m, 32, k, DType::E4m3, DType::E4m3, DType::Bf16, Accumulate::Fast);
    let plain = |m: usize| of_k(m, LAUNCH_BOUND_K + 48);
    let ctx = context();
    capture(&ctx, &mut rng);
    for _ in 0..100 {
        let case = random_case(&mut rng);
        assert_eq!(products(|| case.run(&ctx, &mut rng)), 1, "{case:?}");
    }

    for (m, k, expected) in
        [(64, LAUNCH_BOUND_K, 0), (1 << 10, LAUNCH_BOUND_K, 0), (1 << 11, LAUNCH_BOUND_K, 1), (64, LAUNCH_BOUND_K + 16, 1)]
    {
        assert_eq!(products(|| call_only(&ctx, &of_k(m, k), &mut rng).unwrap()), expected, "{m} rows, k = {k}");
    }

    // Refusals: the own kernel is launched (and here does nothing), at once where the heuristic finds nothing, for good where the call
    // itself is refused. Other failures are errors.
    let launch = |m: usize, rng: &mut StdRng| call_only(&ctx, &plain(m), rng);
    told("FAKE_LT_REFUSES", "heuristic", || assert_eq!(products(|| launch(201, &mut rng).unwrap()), 0));
    assert_eq!(products(|| launch(201, &mut rng).unwrap()), 0, "the plan is kept");
    told("FAKE_LT_REFUSES", "matmul", || assert_eq!(products(|| launch(202, &mut rng).unwrap()), 1));
    assert_eq!(products(|| launch(202, &mut rng).unwrap()), 0, "refused once");
    ctx.trim();
    assert_eq!(products(|| launch(202, &mut rng).unwrap()), 1, "plans made anew");
    let e = told("FAKE_LT_REFUSES", "fails", || launch(202, &mut rng).unwrap_err());
    assert_eq!((e.status(), e.code()), (Status::CublasLt, 13), "{e}");
    // What it cannot do exactly it is not asked for.
    let mut bias = plain(64);
    bias.bias = Some((DType::F32, 0));
    assert_eq!(products(|| call_only(&ctx, &bias, &mut rng).unwrap()), 0);

    choices(&ctx, &plain(128), &mut rng);

    // One heuristic per description.
    let before = counter("fake_lt_heuristics");
    (0..5).for_each(|_| plain(77).run(&ctx, &mut rng));
    assert_eq!(counter("fake_lt_heuristics") - before, 1);
    threads();
}

/// The call alone: nothing is compared.
fn call_only(ctx: &Context, case: &Case, rng: &mut StdRng) -> nvte::Result<()> {
    let a = Operand::random(ctx, case.a, case.m, case.k, case.layout_a, rng);
    let b = Operand::random(ctx, case.b, case.n, case.k, case.layout_b, rng);
    let bias = case.bias.map(|(t, _)| Tensor::random(ctx, t, 1, case.n, case.n, 0, rng, false).0);
    let out = Tensor::output(ctx, case.d, case.m, case.n, case.n, 0);
    let mut args = GemmArgs::new(a.view, b.view, out.view(), case.mode).with_transposes(a.transpose, b.transpose);
    if let Some(t) = &bias {
        args = args.with_bias(t.ptr(), t.dtype);
    }
    let bytes = gemm_workspace(ctx, &args)?;
    let workspace = Guarded::new(ctx, bytes as usize, 0);
    // SAFETY: everything is live.
    let result = unsafe { call(ctx, &args.with_workspace(workspace.ptr(), bytes), Stream::NULL) };
    sync(ctx);
    workspace.read();
    result
}

/// While a stream captures, cuBLASLt is not initialised; once it is, new plans may be made.
fn capture(ctx: &Context, rng: &mut StdRng) {
    let case = |m| Case::new(m, 16, 16, DType::Bf16, DType::Bf16, DType::F32, Accumulate::Precise);
    let e = told("FAKE_CAPTURING", "1", || call_only(ctx, &case(3), rng).unwrap_err());
    assert_eq!(e.status(), Status::NotCapturable, "{e}");
    case(3).run(ctx, rng);
    told("FAKE_CAPTURING", "1", || case(4).run(ctx, rng));
}

/// Choices made by timing: taken over by other contexts, checked before use, and followed.
fn choices(ctx: &Context, case: &Case, rng: &mut StdRng) {
    let a = Operand::random(ctx, case.a, case.m, case.k, case.layout_a, rng);
    let b = Operand::random(ctx, case.b, case.n, case.k, case.layout_b, rng);
    let out = Tensor::output(ctx, case.d, case.m, case.n, case.n, 0);
    let args = GemmArgs::new(a.view, b.view, out.view(), case.mode);
    let workspace = Guarded::new(ctx, gemm_workspace(ctx, &args).unwrap() as usize, 0);
    let args = args.with_workspace(workspace.ptr(), workspace.bytes() as u64);
    // SAFETY: everything is live.
    unsafe { gemm_prepare(ctx, &args, 3, Stream::NULL) }.unwrap();
    sync(ctx);
    workspace.read();
    let text = gemm_plans_export(ctx);
    assert_eq!(text.lines().count(), 2, "{text}");
    let other = context();
    gemm_plans_import(&other, &text).unwrap();
    let (heuristics, checks) = (counter("fake_lt_heuristics"), counter("fake_lt_checks"));
    let dense = |ctx: &Context, rng: &mut StdRng| case.run_with(ctx, rng, &a, &b);
    let used = products(|| dense(&other, rng));
    // The fake driver measures no time, so whichever was first stays: one of cuBLASLt's.
    assert_eq!(used, 1, "{text}");
    assert_eq!((counter("fake_lt_heuristics") - heuristics, counter("fake_lt_checks") - checks), (0, 1), "{text}");
    other.trim();
    told("FAKE_LT_REFUSES", "check", || dense(&other, rng));
    assert_eq!(counter("fake_lt_heuristics") - heuristics, 1, "an algorithm that is not accepted gives way to the heuristic's");
    let own = text.lines().map(|l| l.split(" lt ").next().unwrap().to_owned()).collect::<Vec<_>>().join("\n");
    gemm_plans_import(&other, &format!("{own} own\n")).unwrap();
    assert_eq!(products(|| call_only(&other, case, rng).unwrap()), 0, "the own kernel was chosen");
}

/// Many threads, one context, more descriptions than it keeps plans.
fn threads() {
    let ctx = context();
    std::thread::scope(|s| {
        for t in 0..4 {
            let ctx = &ctx;
            s.spawn(move || {
                let mut rng = rng(&format!("thread {t}"));
                for i in 0..150 {
                    let (m, k) = (1 + (i * 7 + t * 3) % 90, LAUNCH_BOUND_K + 16 * (1 + i % 5));
                    Case::new(m, 16, k, DType::E4m3, DType::E5m2, DType::F32, MODES[i % 2]).run(ctx, &mut rng);
                }
            });
        }
    });
}

//! Matrix products on CUDA: cuBLASLt where it computes exactly what is specified, the project's own kernels for everything else.
//!
//! Which of them, and which algorithm of cuBLASLt, is decided once per distinct description (see [`plans`]) by its heuristic, so it depends
//! on the description, the device and the version of the library; timing is done only by an explicit `gemm_prepare`.

pub(super) mod cublaslt;
pub(crate) mod kernels;
pub(crate) mod own;
mod plans;
pub mod testing;
mod tile;

use std::sync::{Arc, OnceLock};

use self::{
    cublaslt::{CublasLt, LtPlan, Outcome},
    own::{OwnArgs, OwnKernel},
    plans::{Choice, Key, Plan, Plans},
};
use super::{
    driver::{Handle, Relaxed},
    jit::not_capturing,
    launch::Queue,
    CudaBackend,
};
use crate::{
    context::Stream,
    debug,
    error::Result,
    ops::gemm::{Accumulate, Operand, Problem},
    tensor::Ptr,
};

/// A library handle; cuBLASLt's functions on it are thread-safe.
struct LtHandle(Handle);
// SAFETY: as said.
unsafe impl Send for LtHandle {}
// SAFETY: as said.
unsafe impl Sync for LtHandle {}

/// What a context keeps for its products.
#[derive(Default)]
pub(super) struct GemmState {
    plans: Plans,
    /// Whether cuBLASLt is there is settled once per context, so that the same call takes the same path at every step.
    library: OnceLock<Option<&'static CublasLt>>,
    handle: OnceLock<Option<LtHandle>>,
}

impl GemmState {
    fn library(&self, backend: &CudaBackend) -> Option<&'static CublasLt> {
        *self.library.get_or_init(|| {
            CublasLt::get(backend.jit.library_dirs())
                .inspect_err(|e| debug::log(1, || format!("{e}; products run on the library's own kernels")))
                .ok()
        })
    }

    /// The handle, made at first use; `None` where there is no cuBLASLt or it does not work here.
    fn handle(&self, queue: &Queue<'_>) -> Result<Option<(&'static CublasLt, Handle)>> {
        let Some(lt) = self.library(queue.backend) else { return Ok(None) };
        if self.handle.get().is_none() {
            not_capturing(queue.backend.driver, queue.stream, "cuBLASLt is not initialised yet")?;
        }
        let handle = self.handle.get_or_init(|| {
            lt.new_handle().inspect_err(|e| debug::log(1, || format!("{e}; products run on the library's own kernels"))).ok().map(LtHandle)
        });
        Ok(handle.as_ref().map(|h| (lt, h.0)))
    }

    pub(super) fn trim(&self) {
        self.plans.clear();
    }

    /// Ends the handle. The device's context is current.
    pub(super) fn close(&mut self) {
        if let (Some(Some(lt)), Some(Some(handle))) = (self.library.get(), self.handle.take()) {
            // SAFETY: made by `new_handle`, taken out just now.
            unsafe { lt.end_handle(handle.0) };
        }
    }
}

/// Bytes of workspace: cuBLASLt's scratch memory where it serves (and room to align it), else what the own kernels pack into.
pub(super) fn workspace(backend: &CudaBackend, p: &Problem) -> Result<u64> {
    let arch = backend.capability.arch;
    if cublaslt::serves(arch, p) && backend.gemm.library(backend).is_some() {
        return Ok(cublaslt::scratch(p) + 240);
    }
    own::workspace(arch, &own_args(p, None))
}

/// The most that [`workspace`] says beside packed operands, and whether there may be those. The kernel of sm_90 reads FP8 that lies along K
/// at multiples of 16 bytes as it is.
pub(super) fn scratch_bound(backend: &CudaBackend, fp8: bool) -> (u64, bool) {
    (cublaslt::MOST_SCRATCH + 240, !(fp8 && backend.capability.arch == 90))
}

/// # Safety
/// Problem validated, pointers live.
pub(super) unsafe fn gemm(backend: &CudaBackend, p: &Problem, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    let state = &backend.gemm;
    let key = Key::new(p);
    let plan = match state.plans.get(&key) {
        Some(plan) => plan,
        None => new_plan(&queue, p, key)?,
    };
    if let (Plan::CublasLt(plan), Some(Some(handle))) = (&*plan, state.handle.get()) {
        if stream.is_prepare() {
            warm_up(&queue, plan, handle.0, p)?;
            // And the kernel that serves where cuBLASLt refuses after all.
            // SAFETY: nothing is enqueued.
            return unsafe { own::run(&queue, &fitting(backend, p)?) };
        }
        // SAFETY: forwarded contract; the workspace was checked against `workspace`.
        match unsafe { plan.run(handle.0, p, stream.0)? } {
            Outcome::Enqueued => {
                debug::log(2, || format!("gemm {}: {}", text(p), plan.describe()));
                return Ok(());
            }
            Outcome::Refused(code) => {
                debug::log(1, || format!("gemm {}: cuBLASLt refuses its own choice ({code}): own kernel", text(p)));
                state.plans.insert(key, Plan::Own);
            }
        }
    }
    // SAFETY: forwarded contract.
    unsafe { own::run(&queue, &fitting(backend, p)?) }
}

/// Runs a product of these sizes once, on memory and a stream of its own, and waits for it: cuBLASLt loads a kernel when it first enqueues
/// it, which a stream that captures may not allow. Where there is no memory for it, loading is left to the first call.
#[cold]
fn warm_up(queue: &Queue<'_>, plan: &LtPlan, handle: Handle, p: &Problem) -> Result<()> {
    if plan.has_run() {
        return Ok(());
    }
    let driver = queue.backend.driver;
    let _loading = Relaxed::new(driver);
    let operand = |o: &Operand, rows: i64| if o.k_major { rows * o.ld } else { p.k * o.ld } as u64 * o.dtype.size() as u64;
    let own_c = p.beta != 0.0 && (p.c, p.ldc) != (p.d, p.ldd);
    let sizes = [
        operand(&p.a, p.m),
        operand(&p.b, p.n),
        p.m as u64 * p.ldd as u64 * p.d_dtype.size() as u64,
        if own_c { p.m as u64 * p.ldc as u64 * p.c_dtype.size() as u64 } else { 0 },
        p.n as u64 * 4,
        // Two scales.
        8,
        cublaslt::scratch(p) + 240,
    ]
    .map(|bytes| bytes.next_multiple_of(256));
    let (mut memory, mut stream) = (0, std::ptr::null_mut());
    // SAFETY: an out-pointer.
    if unsafe { (driver.mem_alloc)(&mut memory, sizes.iter().sum::<u64>() as usize) } != 0 {
        debug::log(1, || format!("gemm {}: no memory to load its kernel ahead", text(p)));
        return Ok(());
    }
    let mut end = memory;
    let [a, b, d, c, bias, scales, workspace] = sizes.map(|bytes| {
        end += bytes;
        Ptr(end - bytes)
    });
    let mut trial = *p;
    (trial.a.data, trial.b.data) = (a, b);
    // Given or not as in the call itself: it may decide what cuBLASLt takes.
    for (o, at) in [(&mut trial.a, scales), (&mut trial.b, scales.offset(4))] {
        o.scale_inv = if o.scale_inv.is_null() { Ptr::NULL } else { at };
    }
    (trial.d, trial.c, trial.workspace) = (d, if own_c { c } else { d }, workspace);
    trial.bias = if p.bias.is_null() { Ptr::NULL } else { bias };
    const NON_BLOCKING: u32 = 1;
    // SAFETY: memory of the sizes that the problem says, a stream of our own; both end here, when everything has run.
    unsafe {
        let mut done = driver.check("cuStreamCreate", (driver.stream_create)(&mut stream, NON_BLOCKING));
        if done.is_ok() {
            done = plan.run(handle, &trial, stream).map(|outcome| {
                if let Outcome::Refused(code) = outcome {
                    debug::log(1, || format!("gemm {}: cuBLASLt refuses to run it ahead ({code})", text(p)));
                }
            });
            (driver.stream_synchronize)(stream);
            (driver.stream_destroy)(stream);
        }
        (driver.mem_free)(memory);
        done
    }
}

#[cold]
fn new_plan(queue: &Queue<'_>, p: &Problem, key: Key) -> Result<Arc<Plan>> {
    let backend = queue.backend;
    let plan = match cublaslt_plan(queue, p, &key)? {
        Some(plan) => {
            debug::log(1, || format!("gemm {}: {}", text(p), plan.describe()));
            Plan::CublasLt(plan)
        }
        None => {
            let args = fitting(backend, p)?;
            let (arch, multiprocessors) = (backend.capability.arch, queue.multiprocessors());
            debug::log(1, || format!("gemm {}: {}", text(p), own::describe(arch, multiprocessors, &args).unwrap_or_default()));
            Plan::Own
        }
    };
    Ok(backend.gemm.plans.insert(key, plan))
}

/// Whether an FP8 product is so small that what counts is the host time of its launch. On an H200 cuBLASLt's takes 4 to 6 us more than the own
/// kernel's, which needs 0.2 us more on the device (2.5 us to 3.1 us up to 256 in each direction); with longer K the difference there grows.
fn launch_bound(arch: i32, p: &Problem) -> bool {
    const MOST_K: i64 = 512;
    const MOST_PRODUCTS: i64 = 1 << 24;
    let products = p.m.saturating_mul(p.n).saturating_mul(p.k);
    arch == 90 && p.a.dtype.is_fp8() && p.b.dtype.is_fp8() && p.k <= MOST_K && products <= MOST_PRODUCTS
}

/// cuBLASLt's plan for it: the one chosen by timing, else its heuristic's first.
fn cublaslt_plan(queue: &Queue<'_>, p: &Problem, key: &Key) -> Result<Option<LtPlan>> {
    let state = &queue.backend.gemm;
    if !cublaslt::serves(queue.backend.capability.arch, p) {
        return Ok(None);
    }
    let Some((lt, handle)) = state.handle(queue)? else { return Ok(None) };
    let chosen = match state.plans.choice(key) {
        Some(Choice::Own) => return Ok(None),
        None if launch_bound(queue.backend.capability.arch, p) => return Ok(None),
        Some(Choice::CublasLt(algo)) => LtPlan::with_algo(lt, handle, p, &algo),
        None => None,
    };
    let first = || LtPlan::candidates(lt, handle, p, key, 1).and_then(|all| all.into_iter().next());
    Ok(chosen.or_else(first))
}

/// Times cuBLASLt's candidates and the own kernel, and keeps the fastest.
///
/// # Safety
/// As [`gemm`].
pub(super) unsafe fn prepare(backend: &CudaBackend, p: &Problem, candidates: u32, stream: Stream) -> Result<()> {
    let queue = Queue::new(backend, stream)?;
    not_capturing(backend.driver, stream, "candidates cannot be timed")?;
    let key = Key::new(p);
    if stream.is_prepare() {
        new_plan(&queue, p, key)?;
        return Ok(());
    }
    let found = match cublaslt::serves(backend.capability.arch, p) {
        true => backend.gemm.handle(&queue)?.map(|(lt, handle)| (handle, LtPlan::candidates(lt, handle, p, &key, candidates as usize))),
        false => None,
    };
    // With one way to compute it there is nothing to time.
    let Some((handle, Some(plans))) = found else {
        new_plan(&queue, p, key)?;
        return Ok(());
    };
    let mut best = (f32::INFINITY, Choice::Own);
    for plan in &plans {
        // SAFETY: forwarded contract.
        let once = || unsafe { plan.run(handle, p, stream.0) }.map(|o| matches!(o, Outcome::Enqueued));
        if let Some(t) = milliseconds(&queue, once)? {
            debug::log(1, || format!("gemm {}: {t:.4} ms: {}", text(p), plan.describe()));
            if t < best.0 {
                best = (t, Choice::CublasLt(plan.algo));
            }
        }
    }
    let args = fitting(backend, p)?;
    // SAFETY: forwarded contract.
    if let Some(t) = milliseconds(&queue, || unsafe { own::run(&queue, &args) }.map(|()| true))? {
        debug::log(1, || format!("gemm {}: {t:.4} ms: own kernel", text(p)));
        if t < best.0 {
            best = (t, Choice::Own);
        }
    }
    backend.gemm.plans.choose(key, best.1);
    new_plan(&queue, p, key)?;
    Ok(())
}

/// The least of three measurements of a few calls each; `None` where a call was refused.
fn milliseconds(queue: &Queue<'_>, once: impl Fn() -> Result<bool>) -> Result<Option<f32>> {
    const CALLS: u32 = 5;
    let driver = queue.backend.driver;
    struct Event(Handle, &'static super::driver::Driver);
    impl Drop for Event {
        fn drop(&mut self) {
            // SAFETY: made below, ended once.
            unsafe { (self.1.event_destroy)(self.0) };
        }
    }
    let event = || -> Result<Event> {
        let mut e = std::ptr::null_mut();
        // SAFETY: an out-pointer.
        driver.check("cuEventCreate", unsafe { (driver.event_create)(&mut e, 0) })?;
        Ok(Event(e, driver))
    };
    // SAFETY: a live event and the caller's stream.
    let record = |e: &Event| driver.check("cuEventRecord", unsafe { (driver.event_record)(e.0, queue.stream.0) });
    let (start, end) = (event()?, event()?);
    // The first call loads kernels.
    if !once()? {
        return Ok(None);
    }
    let mut least = f32::INFINITY;
    for _ in 0..3 {
        record(&start)?;
        for _ in 0..CALLS {
            once()?;
        }
        record(&end)?;
        let mut t = 0.0;
        // SAFETY: recorded events; an out-pointer.
        unsafe {
            driver.check("cuEventSynchronize", (driver.event_synchronize)(end.0))?;
            driver.check("cuEventElapsedTime", (driver.event_elapsed)(&mut t, start.0, end.0))?;
        }
        least = least.min(t / CALLS as f32);
    }
    Ok(Some(least))
}

/// Device and version of cuBLASLt, which timed choices depend on.
fn origin(backend: &CudaBackend) -> String {
    let lt = backend.gemm.library(backend).map_or(0, CublasLt::version);
    format!("{} cublasLt {lt} nvte {}", backend.capability.name, crate::VERSION)
}

pub(super) fn export(backend: &CudaBackend) -> String {
    backend.gemm.plans.export(&origin(backend))
}

pub(super) fn import(backend: &CudaBackend, text: &str) -> Result<()> {
    backend.gemm.plans.import(&origin(backend), text)
}

/// For the own kernels. Where cuBLASLt was expected and has refused, the workspace may be too small to pack into: then the kernel that
/// packs nothing serves.
fn fitting(backend: &CudaBackend, p: &Problem) -> Result<OwnArgs> {
    let args = own_args(p, None);
    let needed = own::workspace(backend.capability.arch, &args)?;
    Ok(if needed <= p.workspace_bytes { args } else { own_args(p, Some(OwnKernel::Simt)) })
}

/// What a kernel with the common epilogue does with its accumulators.
pub(super) fn epilogue(p: &Problem) -> kernels::GemmOut {
    own::out(&own_args(p, None), 0, 0)
}

fn own_args(p: &Problem, force: Option<OwnKernel>) -> OwnArgs {
    // To the own kernels an unknown address may have any alignment; here it is promised to be aligned.
    let operand = |o: &Operand| own::Operand {
        dtype: o.dtype,
        data: if o.data.is_null() { Ptr(256) } else { o.data },
        ld: o.ld,
        k_major: o.k_major,
        scale_inv: o.scale_inv,
    };
    OwnArgs {
        m: p.m,
        n: p.n,
        k: p.k,
        a: operand(&p.a),
        b: operand(&p.b),
        d: p.d,
        d_dtype: p.d_dtype,
        ldd: p.ldd,
        c: p.c,
        c_dtype: p.c_dtype,
        ldc: p.ldc,
        bias: p.bias,
        bias_dtype: p.bias_dtype,
        d_scale: p.d_scale,
        d_scale_inv: p.d_scale_inv,
        amax: p.d_amax,
        alpha: p.alpha,
        beta: p.beta,
        fast_accumulate: p.accumulate == Accumulate::Fast,
        workspace: p.workspace,
        workspace_bytes: p.workspace_bytes,
        force,
    }
}

fn text(p: &Problem) -> String {
    let layout = |o: &Operand| if o.k_major { "" } else { "^T" };
    format!(
        "[{}, {}, {}] {}{} x {}{} -> {}{}{} {:?}",
        p.m,
        p.n,
        p.k,
        p.a.dtype.name(),
        layout(&p.a),
        p.b.dtype.name(),
        layout(&p.b),
        p.d_dtype.name(),
        if p.bias.is_null() { "" } else { " + bias" },
        if p.beta == 0.0 { "" } else { " + C" },
        p.accumulate
    )
}

//! Operations captured into a CUDA graph: replays give the bits of the same calls made one by one, with whatever the inputs and the
//! scaling state then hold; and a call that would have to compile or load is refused without harm to the capture.
#![cfg(all(feature = "cuda", target_os = "linux"))]

mod common;

use std::ffi::{c_int, c_uint, c_void};

use common::{context, on_cuda, oracle, rng, streams::driver_symbol as symbol, sync, values, Guarded, POISON};
use nvte::{
    numerics::{AmaxComputeAlgo, DelayedScaling},
    ops::{
        activation::{activation_fwd, Activation, ActivationArgs},
        cast::{cast_to_fp8, cast_to_fp8_current, cast_to_fp8_current_workspace, CastArgs, CurrentCastArgs, CurrentScaling},
        gemm::{fp8_gemm, gemm_workspace, Accumulate, GemmArgs},
        norm::{layernorm_fwd, NormFwdArgs},
        scaling::{scaling_update, ScalingUpdateArgs},
    },
    Context, DType, Ptr, Result, Status, Stream, TensorView,
};
use rand::rngs::StdRng;

type Handle = *mut c_void;

/// The driver's functions that only a program which captures needs.
struct Driver {
    begin: unsafe extern "C" fn(Handle, c_int) -> c_int,
    end: unsafe extern "C" fn(Handle, *mut Handle) -> c_int,
    is_capturing: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    instantiate: unsafe extern "C" fn(*mut Handle, Handle, u64) -> c_int,
    launch: unsafe extern "C" fn(Handle, Handle) -> c_int,
    destroy_graph: unsafe extern "C" fn(Handle) -> c_int,
    destroy_executable: unsafe extern "C" fn(Handle) -> c_int,
    create_stream: unsafe extern "C" fn(*mut Handle, c_uint) -> c_int,
    destroy_stream: unsafe extern "C" fn(Handle) -> c_int,
    retain: unsafe extern "C" fn(*mut Handle, c_int) -> c_int,
    push: unsafe extern "C" fn(Handle) -> c_int,
}

impl Driver {
    fn load() -> Self {
        // SAFETY: the driver's ABI fixes these signatures.
        unsafe {
            use std::mem::transmute as cast;
            Self {
                begin: cast::<Handle, unsafe extern "C" fn(Handle, c_int) -> c_int>(symbol(c"cuStreamBeginCapture_v2")),
                end: cast::<Handle, unsafe extern "C" fn(Handle, *mut Handle) -> c_int>(symbol(c"cuStreamEndCapture")),
                is_capturing: cast::<Handle, unsafe extern "C" fn(Handle, *mut c_int) -> c_int>(symbol(c"cuStreamIsCapturing")),
                instantiate: cast::<Handle, unsafe extern "C" fn(*mut Handle, Handle, u64) -> c_int>(symbol(
                    c"cuGraphInstantiateWithFlags",
                )),
                launch: cast::<Handle, unsafe extern "C" fn(Handle, Handle) -> c_int>(symbol(c"cuGraphLaunch")),
                destroy_graph: cast::<Handle, unsafe extern "C" fn(Handle) -> c_int>(symbol(c"cuGraphDestroy")),
                destroy_executable: cast::<Handle, unsafe extern "C" fn(Handle) -> c_int>(symbol(c"cuGraphExecDestroy")),
                create_stream: cast::<Handle, unsafe extern "C" fn(*mut Handle, c_uint) -> c_int>(symbol(c"cuStreamCreate")),
                destroy_stream: cast::<Handle, unsafe extern "C" fn(Handle) -> c_int>(symbol(c"cuStreamDestroy_v2")),
                retain: cast::<Handle, unsafe extern "C" fn(*mut Handle, c_int) -> c_int>(symbol(c"cuDevicePrimaryCtxRetain")),
                push: cast::<Handle, unsafe extern "C" fn(Handle) -> c_int>(symbol(c"cuCtxPushCurrent_v2")),
            }
        }
    }

    /// A stream that does not wait for the legacy default stream, which must not be touched while it captures.
    fn stream(&self) -> Stream {
        const NON_BLOCKING: c_uint = 1;
        let (mut primary, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: out-pointers; the device exists.
        unsafe {
            assert_eq!((self.retain)(&mut primary, 0), 0, "cuDevicePrimaryCtxRetain");
            assert_eq!((self.push)(primary), 0, "cuCtxPushCurrent");
            assert_eq!((self.create_stream)(&mut stream, NON_BLOCKING), 0, "cuStreamCreate");
        }
        Stream(stream)
    }

    /// What `calls` enqueue on the stream, as a graph. The strictest mode: nothing in the process may allocate or wait meanwhile.
    fn capture(&self, stream: Stream, calls: impl FnOnce()) -> Graph<'_> {
        const GLOBAL: c_int = 0;
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a live stream and out-pointers.
        unsafe {
            assert_eq!((self.begin)(stream.0, GLOBAL), 0, "cuStreamBeginCapture");
            calls();
            assert_eq!((self.end)(stream.0, &mut graph), 0, "cuStreamEndCapture");
            assert!(!graph.is_null());
            assert_eq!((self.instantiate)(&mut executable, graph, 0), 0, "cuGraphInstantiate");
            assert_eq!((self.destroy_graph)(graph), 0, "cuGraphDestroy");
        }
        Graph { driver: self, executable }
    }

    /// Whether the stream's capture is under way and valid.
    fn capture_is_valid(&self, stream: Stream) -> bool {
        const ACTIVE: c_int = 1;
        let mut status = 0;
        // SAFETY: a live stream and an out-pointer.
        let code = unsafe { (self.is_capturing)(stream.0, &mut status) };
        code == 0 && status == ACTIVE
    }
}

struct Graph<'a> {
    driver: &'a Driver,
    executable: Handle,
}

impl Graph<'_> {
    fn replay(&self, ctx: &Context, stream: Stream) {
        // Copies to the device may still be under way on the default stream, for which this one does not wait.
        sync(ctx);
        // SAFETY: a live graph and stream.
        assert_eq!(unsafe { (self.driver.launch)(self.executable, stream.0) }, 0, "cuGraphLaunch");
        ctx.synchronize(stream).unwrap();
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once, after every launch has run.
        unsafe { (self.driver.destroy_executable)(self.executable) };
    }
}

fn bytes_of(dtype: DType, values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| oracle::to_bytes(dtype, *v).0[..dtype.size()].to_vec()).collect()
}

/// The numbers of slots, and of words kept per slot besides the live one.
const SLOTS: usize = 3;
const OLDER: usize = 3;

/// Buffers of a small network step: norm, weight cast, product, activation, and the end of a scaling period.
struct Step {
    rows: i64,
    hidden: i64,
    outputs: i64,
    x: Guarded,
    w: Guarded,
    y: Guarded,
    mu: Guarded,
    rsigma: Guarded,
    wq: Guarded,
    wt: Guarded,
    d: Guarded,
    act: Guarded,
    act_t: Guarded,
    live: Guarded,
    scale: Guarded,
    inverse: Guarded,
    history: Guarded,
    format_max: Guarded,
    workspace: Guarded,
}

impl Step {
    fn new(ctx: &Context, [rows, hidden, outputs]: [usize; 3], weight: &[u8]) -> Self {
        let new = |bytes: usize| Guarded::new(ctx, bytes, 0);
        let floats = |v: &[f32]| Guarded::from_bytes(ctx, &bytes_of(DType::F32, v), 0);
        let mut step = Self {
            rows: rows as i64,
            hidden: hidden as i64,
            outputs: outputs as i64,
            x: new(2 * rows * hidden),
            w: Guarded::from_bytes(ctx, weight, 0),
            y: new(rows * hidden),
            mu: new(4 * rows),
            rsigma: new(4 * rows),
            wq: new(outputs * hidden),
            wt: new(outputs * hidden),
            d: new(2 * rows * outputs),
            act: new(rows * outputs),
            act_t: new(rows * outputs),
            live: floats(&[0.0; SLOTS]),
            scale: floats(&[1.0; SLOTS]),
            inverse: new(4 * SLOTS),
            history: floats(&[0.0; SLOTS * OLDER]),
            format_max: floats(&[448.0; SLOTS]),
            workspace: new(0),
        };
        let bytes = gemm_workspace(ctx, &step.product()).unwrap();
        step.workspace = new(bytes as usize);
        step
    }

    fn slots(&self, view: TensorView, i: u64) -> TensorView {
        let slot = |g: &Guarded| g.ptr().offset(4 * i);
        view.with_scaling(slot(&self.scale), slot(&self.inverse), slot(&self.live))
    }

    fn product(&self) -> GemmArgs {
        let fp8 = |g: &Guarded, rows: i64, i: u64| {
            let mut v = TensorView::new(DType::E4m3, g.ptr(), rows, self.hidden);
            v.scale_inv = self.inverse.ptr().offset(4 * i);
            v
        };
        let d = TensorView::new(DType::Bf16, self.d.ptr(), self.rows, self.outputs);
        let args = GemmArgs::new(fp8(&self.y, self.rows, 0), fp8(&self.wq, self.outputs, 1), d, Accumulate::Precise);
        let bytes = self.workspace.bytes() as u64;
        args.with_workspace(if bytes == 0 { Ptr::NULL } else { self.workspace.ptr() }, bytes)
    }

    fn weight(&self) -> CastArgs {
        let output = TensorView::new(DType::E4m3, self.wq.ptr(), self.outputs, self.hidden).with_transpose(self.wt.ptr(), self.outputs);
        CastArgs { input: TensorView::new(DType::Bf16, self.w.ptr(), self.outputs, self.hidden), output: self.slots(output, 1) }
    }

    fn run(&self, ctx: &Context, stream: Stream) -> Result<()> {
        let (rows, outputs) = (self.rows, self.outputs);
        let norm = NormFwdArgs {
            x: TensorView::new(DType::Bf16, self.x.ptr(), rows, self.hidden),
            residual: None,
            sum: None,
            gamma: None,
            beta: None,
            zero_centered_gamma: false,
            eps: 1e-5,
            y: self.slots(TensorView::new(DType::E4m3, self.y.ptr(), rows, self.hidden), 0),
            mu: self.mu.ptr(),
            rsigma: self.rsigma.ptr(),
        };
        let output = TensorView::new(DType::E4m3, self.act.ptr(), rows, outputs).with_transpose(self.act_t.ptr(), rows);
        let activation = ActivationArgs { kind: Activation::Gelu, input: self.product().d, output: self.slots(output, 2) };
        let update = ScalingUpdateArgs {
            slots: SLOTS as i64,
            live: self.live.ptr(),
            scale: self.scale.ptr(),
            history: self.history.ptr(),
            slot_stride: OLDER as i64,
            step_stride: 1,
            history_len: OLDER as i64 + 1,
            format_max: self.format_max.ptr(),
            algo: AmaxComputeAlgo::MostRecent,
            ..ScalingUpdateArgs::from_recipe(&DelayedScaling::default())
        };
        // SAFETY: everything is live until the stream has passed.
        unsafe {
            layernorm_fwd(ctx, &norm, stream)?;
            cast_to_fp8(ctx, &self.weight(), stream)?;
            fp8_gemm(ctx, &self.product(), stream)?;
            activation_fwd(ctx, &activation, stream)?;
            scaling_update(ctx, &update, stream)
        }
    }

    /// What a step writes, by name; guards are looked at on the way.
    fn results(&self) -> Vec<(&'static str, Vec<u8>)> {
        self.workspace.read();
        vec![
            ("norm", self.y.read()),
            ("mean", self.mu.read()),
            ("rsigma", self.rsigma.read()),
            ("weight", self.wq.read()),
            ("transposed weight", self.wt.read()),
            ("product", self.d.read()),
            ("activation", self.act.read()),
            ("transposed activation", self.act_t.read()),
            ("live amax", self.live.read()),
            ("scale", self.scale.read()),
            ("scale_inv", self.inverse.read()),
            ("history", self.history.read()),
        ]
    }
}

/// Tests of this file in turn: while one captures, others must not allocate.
fn in_turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

/// Sizes that cuBLASLt and aligned kernels take, and sizes that need the others.
const SIZES: [[usize; 3]; 2] = [[96, 256, 128], [37, 67, 51]];

fn inputs(sizes: [usize; 3], deviation: f32, rng: &mut StdRng) -> Vec<u8> {
    let v: Vec<f32> = values(rng, sizes[0] * sizes[1], false).into_iter().map(|v| v * deviation + 0.5).collect();
    bytes_of(DType::Bf16, &v)
}

#[test]
fn replays_equal_calls_made_one_by_one() {
    let _turn = in_turn();
    let (ctx, mut rng) = (context(), rng("replays_equal_calls_made_one_by_one"));
    for sizes in SIZES {
        let weight = bytes_of(DType::Bf16, &values(&mut rng, sizes[2] * sizes[1], false));
        let eager = Step::new(&ctx, sizes, &weight);
        let steps = [1.0, 3.0, 0.25].map(|deviation| inputs(sizes, deviation, &mut rng));
        let wanted: Vec<_> = steps
            .iter()
            .map(|x| {
                eager.x.overwrite(x);
                eager.run(&ctx, Stream::NULL).unwrap();
                sync(&ctx);
                eager.results()
            })
            .collect();
        assert_ne!(wanted[0][9].1, wanted[1][9].1, "scales change from step to step");
        // The CPU has no graphs; its half of the test ends here.
        if !on_cuda() {
            continue;
        }
        let driver = Driver::load();
        let (stream, step) = (driver.stream(), Step::new(&ctx, sizes, &weight));
        let graph = driver.capture(stream, || step.run(&ctx, stream).unwrap());
        ctx.synchronize(stream).unwrap();
        assert!(step.d.read().iter().all(|b| *b == POISON), "a captured call ran");
        for (i, (x, want)) in steps.iter().zip(&wanted).enumerate() {
            step.x.overwrite(x);
            graph.replay(&ctx, stream);
            for ((name, got), (_, want)) in step.results().iter().zip(want) {
                assert!(got == want, "{sizes:?}: {name} of replay {i} differs from the call's");
            }
        }
        drop(graph);
        // SAFETY: nothing is enqueued on it any more.
        assert_eq!(unsafe { (driver.destroy_stream)(stream.0) }, 0);
    }
}

/// Current scaling of one tensor, with all that it writes.
struct Current {
    rows: i64,
    cols: i64,
    x: Guarded,
    q: Guarded,
    qt: Guarded,
    slots: [Guarded; 3],
    workspace: Guarded,
}

impl Current {
    fn new(ctx: &Context, rows: usize, cols: usize, x: &[u8]) -> Self {
        let new = |bytes: usize| Guarded::new(ctx, bytes, 0);
        Self {
            rows: rows as i64,
            cols: cols as i64,
            x: Guarded::from_bytes(ctx, x, 0),
            q: new(rows * cols),
            qt: new(rows * cols),
            slots: [new(4), new(4), new(4)],
            workspace: new(cast_to_fp8_current_workspace(ctx) as usize),
        }
    }

    fn run(&self, ctx: &Context, stream: Stream) {
        let [scale, inverse, amax] = [0, 1, 2].map(|i| self.slots[i].ptr());
        let output = TensorView::new(DType::E4m3, self.q.ptr(), self.rows, self.cols).with_transpose(self.qt.ptr(), self.rows);
        let args = CurrentCastArgs {
            input: TensorView::new(DType::Bf16, self.x.ptr(), self.rows, self.cols),
            output: output.with_scaling(scale, inverse, amax),
            scaling: CurrentScaling::default(),
            workspace: if self.workspace.bytes() == 0 { Ptr::NULL } else { self.workspace.ptr() },
            workspace_bytes: self.workspace.bytes() as u64,
        };
        // SAFETY: everything is live until the stream has passed.
        unsafe { cast_to_fp8_current(ctx, &args, stream) }.unwrap();
    }

    fn results(&self) -> Vec<Vec<u8>> {
        self.workspace.read();
        [&self.q, &self.qt, &self.slots[0], &self.slots[1], &self.slots[2]].map(Guarded::read).into()
    }
}

/// Blocks of these kernels wait for one another, which must not end in kernels of different streams waiting for each other's places.
#[test]
fn current_scaling_on_several_streams_and_in_graphs() {
    let _turn = in_turn();
    let (ctx, mut rng) = (context(), rng("current_scaling_on_several_streams_and_in_graphs"));
    const SHAPES: [(usize, usize); 3] = [(2050, 1032), (8192, 1024), (4096, 2048)];
    let data = |deviation: f32, rng: &mut StdRng| SHAPES.map(|(rows, cols)| inputs([rows, cols, 0], deviation, rng));
    let (first, second) = (data(1.0, &mut rng), data(3.0, &mut rng));
    let make = |x: &[Vec<u8>; 3]| [0, 1, 2].map(|i| Current::new(&ctx, SHAPES[i].0, SHAPES[i].1, &x[i]));
    let wanted = [&first, &second].map(|x| {
        make(x).map(|c| {
            c.run(&ctx, Stream::NULL);
            sync(&ctx);
            c.results()
        })
    });
    assert_ne!(wanted[0][0][2], wanted[1][0][2], "scales differ");
    // The CPU has neither streams nor graphs.
    if !on_cuda() {
        return;
    }
    let driver = Driver::load();
    let (streams, calls) = ([(); 3].map(|()| driver.stream()), make(&first));
    for _ in 0..100 {
        for (c, stream) in calls.iter().zip(streams) {
            for _ in 0..3 {
                c.run(&ctx, stream);
            }
        }
    }
    streams.iter().for_each(|s| ctx.synchronize(*s).unwrap());
    for (c, want) in calls.iter().zip(&wanted[0]) {
        assert!(&c.results() == want, "calls on several streams");
    }
    let graphs = [0, 1, 2].map(|i| driver.capture(streams[i], || (0..8).for_each(|_| calls[i].run(&ctx, streams[i]))));
    for (x, want) in [(&second, &wanted[1]), (&first, &wanted[0])] {
        for (c, x) in calls.iter().zip(x) {
            c.x.overwrite(x);
        }
        sync(&ctx);
        for _ in 0..20 {
            for (graph, stream) in graphs.iter().zip(streams) {
                // SAFETY: a live graph and stream.
                assert_eq!(unsafe { (driver.launch)(graph.executable, stream.0) }, 0, "cuGraphLaunch");
            }
        }
        streams.iter().for_each(|s| ctx.synchronize(*s).unwrap());
        for (c, want) in calls.iter().zip(want) {
            assert!(&c.results() == want, "graphs on several streams");
        }
    }
    drop(graphs);
    for stream in streams {
        // SAFETY: nothing is enqueued on it any more.
        assert_eq!(unsafe { (driver.destroy_stream)(stream.0) }, 0);
    }
}

/// The refusal comes before anything that a capture forbids, so the capture goes on: what was recorded before and after it is replayed.
#[test]
fn a_call_that_would_have_to_load_is_refused_and_the_capture_stays_valid() {
    let _turn = in_turn();
    if !on_cuda() {
        return;
    }
    let (ctx, mut rng) = (context(), rng("a_call_that_would_have_to_load_is_refused_and_the_capture_stays_valid"));
    for sizes in SIZES {
        let weight = bytes_of(DType::Bf16, &values(&mut rng, sizes[2] * sizes[1], false));
        let (step, other) = (Step::new(&ctx, sizes, &weight), Step::new(&ctx, sizes, &weight));
        let x = inputs(sizes, 1.0, &mut rng);
        step.x.overwrite(&x);
        other.x.overwrite(&x);
        step.run(&ctx, Stream::PREPARE).unwrap();
        // Nothing is loaded in this one.
        let fresh = context();
        let driver = Driver::load();
        let stream = driver.stream();
        let graph = driver.capture(stream, || {
            // SAFETY: everything is live until the graph has run.
            unsafe {
                cast_to_fp8(&ctx, &step.weight(), stream).unwrap();
                let refused = [
                    ("cast", cast_to_fp8(&fresh, &other.weight(), stream)),
                    ("product", fp8_gemm(&fresh, &other.product(), stream)),
                    ("step", other.run(&fresh, stream)),
                ];
                for (name, result) in refused {
                    let e = result.expect_err(name);
                    assert_eq!(e.status(), Status::NotCapturable, "{name}: {e}");
                    assert!(e.message().contains("capturing") && e.message().contains("prepare"), "{name}: {e}");
                    assert!(driver.capture_is_valid(stream), "{name}: the capture is broken");
                }
            }
            step.run(&ctx, stream).unwrap();
        });
        graph.replay(&ctx, stream);
        assert!(other.results().iter().take(8).all(|(_, bytes)| bytes.iter().all(|b| *b == POISON)), "a refused call ran");
        // After the capture the same calls go through, and agree.
        // SAFETY: everything is live.
        unsafe { cast_to_fp8(&fresh, &other.weight(), Stream::NULL) }.unwrap();
        other.run(&fresh, Stream::NULL).unwrap();
        sync(&fresh);
        for ((name, got), (_, want)) in step.results().iter().zip(&other.results()) {
            assert!(got == want, "{sizes:?}: {name} differs");
        }
        drop(graph);
        // SAFETY: nothing is enqueued on it any more.
        assert_eq!(unsafe { (driver.destroy_stream)(stream.0) }, 0);
    }
}

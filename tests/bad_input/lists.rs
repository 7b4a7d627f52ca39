//! Operations over lists of tensors: each call is valid but for one thing, and must say which and write nothing.

use std::{ffi::c_void, mem::size_of, ptr};

use nvte::capi::{adamw::*, context::nvte_context_destroy, grad_norm::*, list::*, multi_cast::*, types::*};

use super::framework::{create, message};
use crate::common::{context, sync, Guarded, SlotF32, POISON};

/// Functions tried by [`the_rest`].
pub const BY_HAND: [&str; 11] = [
    "nvte_list_gradients",
    "nvte_adamw_list_workspace",
    "nvte_adamw_list",
    "nvte_adamw",
    "nvte_grad_list_workspace",
    "nvte_grad_list",
    "nvte_grad_norm",
    "nvte_grad_scale",
    "nvte_cast_list_workspace",
    "nvte_cast_list",
    "nvte_multi_cast_to_fp8",
];

const ROWS: i64 = 5;
const COLS: i64 = 12;

fn tensor(dtype: i32, data: *mut c_void) -> nvte_tensor_t {
    // SAFETY: a plain C struct.
    let mut t: nvte_tensor_t = unsafe { std::mem::zeroed() };
    t.struct_size = size_of::<nvte_tensor_t>() as u32;
    (t.dtype, t.data, t.rows, t.cols, t.ld) = (dtype, data, ROWS, COLS, COLS);
    t.scaling = i32::from(dtype >= NVTE_E4M3);
    (t.data_t, t.ld_t) = (ptr::null_mut(), ROWS);
    t
}

/// What all calls are made of.
struct Stage {
    ctx: nvte_context_t,
    device: nvte::Context,
    memory: Vec<Guarded>,
    slot: SlotF32,
    table: Guarded,
}

/// One call: fields to be changed, then passed.
#[derive(Clone)]
struct Call {
    ctx: nvte_context_t,
    tensors: [nvte_tensor_t; 6],
    /// Which of the arrays is passed as NULL, and which tensor in one.
    no_array: Option<usize>,
    no_tensor: Option<usize>,
    list: nvte_list_t,
    made: nvte_list_args,
    adamw: nvte_adamw_args_t,
    norm: nvte_grad_norm_args_t,
    cast: nvte_multi_cast_args_t,
    factor: *const f32,
    pass_list: bool,
    pass_args: bool,
    pass_bytes: bool,
    pointers: i64,
}

/// The fields of nvte_adamw_list_args_t that are not pointers.
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
struct nvte_list_args {
    struct_size: u32,
    reserved: u32,
    count: i64,
}

impl Stage {
    fn new() -> Self {
        let (ctx, device) = (create(), context());
        let memory = (0..6).map(|_| Guarded::new(&device, (4 * ROWS * COLS) as usize, 0)).collect();
        let table = Guarded::new(&device, 64 << 10, 0);
        Self { ctx, slot: SlotF32::new(&device, 1.0), memory, table, device }
    }

    fn valid(&self, kind: i32) -> Call {
        let types = [NVTE_BF16, NVTE_F16, NVTE_F32, NVTE_F32, NVTE_F32, NVTE_E4M3];
        let slot: *mut f32 = self.slot.ptr().as_ptr();
        let mut list = nvte_list_t {
            struct_size: size_of::<nvte_list_t>() as u32,
            kind: 0,
            data: self.table.ptr().as_ptr(),
            bytes: self.table.bytes() as u64,
            count: 0,
            blocks: 0,
            tiles: 0,
        };
        if kind > 0 {
            (list.kind, list.count, list.blocks) = (kind, 1, 1);
        }
        Call {
            ctx: self.ctx,
            tensors: std::array::from_fn(|i| tensor(types[i], self.memory[i].ptr().as_ptr())),
            no_array: None,
            no_tensor: None,
            list,
            made: nvte_list_args { struct_size: size_of::<nvte_adamw_list_args_t>() as u32, reserved: 0, count: 1 },
            adamw: nvte_adamw_args_t {
                struct_size: size_of::<nvte_adamw_args_t>() as u32,
                decoupled: 1,
                bias_correction: 1,
                reserved: 0,
                list: ptr::null(),
                step: slot,
                lr_ptr: slot,
                found_inf: slot,
                grad_scale: slot,
                clip: slot,
                lr: 0.1,
                beta1: 0.9,
                beta2: 0.99,
                eps: 1e-8,
                weight_decay: 0.1,
            },
            norm: nvte_grad_norm_args_t {
                struct_size: size_of::<nvte_grad_norm_args_t>() as u32,
                reserved: 0,
                list: ptr::null(),
                grad_scale: slot,
                max_norm: 1.0,
                norm: self.memory[0].ptr().as_ptr(),
                clip: self.memory[1].ptr().as_ptr(),
                found_inf: self.memory[2].ptr().as_ptr(),
            },
            cast: nvte_multi_cast_args_t {
                struct_size: size_of::<nvte_multi_cast_args_t>() as u32,
                current: 1,
                list: ptr::null(),
                skip: self.slot.ptr().as_ptr(),
                margin: 0,
                epsilon: 0.0,
                power_of_two: 0,
                reserved: 0,
            },
            factor: slot,
            pass_list: true,
            pass_args: true,
            pass_bytes: true,
            pointers: 1,
        }
    }
}

impl Call {
    fn run(&self, name: &str) -> i32 {
        let mut list = self.list;
        let before = list;
        let entries: [*const nvte_tensor_t; 6] =
            std::array::from_fn(|i| if self.no_tensor == Some(i) { ptr::null() } else { ptr::from_ref(&self.tensors[i]) });
        let array = |i: usize| if self.no_array == Some(i) { ptr::null() } else { &entries[i] as *const *const nvte_tensor_t };
        let args = nvte_adamw_list_args_t {
            struct_size: self.made.struct_size,
            reserved: self.made.reserved,
            count: self.made.count,
            weights: array(0),
            gradients: array(1),
            masters: array(2),
            exp_avgs: array(3),
            exp_avg_sqs: array(4),
            fp8s: array(5),
        };
        let list_at = if self.pass_list { ptr::from_mut(&mut list) } else { ptr::null_mut() };
        let (adamw, norm) = (nvte_adamw_args_t { list: list_at, ..self.adamw }, nvte_grad_norm_args_t { list: list_at, ..self.norm });
        let cast = nvte_multi_cast_args_t { list: list_at, ..self.cast };
        fn pass<T>(yes: bool, args: &T) -> *const T {
            if yes {
                args
            } else {
                ptr::null()
            }
        }
        let (mut bytes, gradients) = (0u64, [self.tensors[1].data.cast_const()]);
        let bytes_at = if self.pass_bytes { ptr::from_mut(&mut bytes) } else { ptr::null_mut() };
        let pointers = if self.no_array == Some(1) { ptr::null() } else { gradients.as_ptr() };
        let (ctx, stream) = (self.ctx, ptr::null_mut());
        // SAFETY: structs and arrays live here; faults are what the functions must see.
        let status = unsafe {
            match name {
                "nvte_list_gradients" => nvte_list_gradients(ctx, list_at, pointers, self.pointers, stream),
                "nvte_adamw_list_workspace" => nvte_adamw_list_workspace(ctx, pass(self.pass_args, &args), bytes_at),
                "nvte_adamw_list" => nvte_adamw_list(ctx, pass(self.pass_args, &args), list_at, stream),
                "nvte_adamw" => nvte_adamw(ctx, pass(self.pass_args, &adamw), stream),
                "nvte_grad_list_workspace" => nvte_grad_list_workspace(ctx, array(1), self.made.count, bytes_at),
                "nvte_grad_list" => nvte_grad_list(ctx, array(1), self.made.count, list_at, stream),
                "nvte_grad_norm" => nvte_grad_norm(ctx, pass(self.pass_args, &norm), stream),
                "nvte_grad_scale" => nvte_grad_scale(ctx, list_at, self.factor, stream),
                "nvte_cast_list_workspace" => nvte_cast_list_workspace(ctx, array(1), array(5), self.made.count, bytes_at),
                "nvte_cast_list" => nvte_cast_list(ctx, array(1), array(5), self.made.count, list_at, stream),
                "nvte_multi_cast_to_fp8" => nvte_multi_cast_to_fp8(ctx, pass(self.pass_args, &cast), stream),
                other => panic!("{other}"),
            }
        };
        let same = (list.kind, list.count, list.blocks, list.tiles) == (before.kind, before.count, before.blocks, before.tiles);
        assert!(status == NVTE_OK || (same && bytes == 0), "{name}: a refused call wrote its result");
        status
    }
}

type Change = fn(&mut Call);
type Fault = (&'static str, i32, &'static str, Change);

const MAKE_ADAMW: &[&str] = &["nvte_adamw_list"];
const MAKE: &[&str] = &["nvte_adamw_list", "nvte_grad_list"];
const MAKE_CAST: &[&str] = &["nvte_cast_list", "nvte_cast_list_workspace"];
const USE: &[&str] = &["nvte_adamw", "nvte_grad_norm", "nvte_grad_scale", "nvte_list_gradients", "nvte_multi_cast_to_fp8"];

fn faults() -> Vec<(&'static [&'static str], Vec<Fault>)> {
    let size = NVTE_ERROR_INVALID_STRUCT_SIZE;
    let value = NVTE_ERROR_INVALID_VALUE;
    vec![
        (
            &["nvte_adamw_list", "nvte_adamw_list_workspace", "nvte_adamw", "nvte_grad_norm", "nvte_multi_cast_to_fp8"],
            vec![("no args", NVTE_ERROR_NULL_POINTER, "args", |c| c.pass_args = false)],
        ),
        (
            &["nvte_adamw_list", "nvte_adamw_list_workspace"],
            vec![
                ("size", size, "args.struct_size", |c| c.made.struct_size -= 8),
                ("reserved", NVTE_ERROR_UNSUPPORTED, "reserved", |c| c.made.reserved = 1),
                ("no weights", NVTE_ERROR_NULL_POINTER, "weights", |c| c.no_array = Some(0)),
                ("no gradients", NVTE_ERROR_NULL_POINTER, "gradients", |c| c.no_array = Some(1)),
                ("no moments", NVTE_ERROR_NULL_POINTER, "exp_avg_sqs", |c| c.no_array = Some(4)),
                ("a weight is NULL", NVTE_ERROR_NULL_POINTER, "weights[0]", |c| c.no_tensor = Some(0)),
                ("a moment is NULL", NVTE_ERROR_NULL_POINTER, "exp_avgs[0]", |c| c.no_tensor = Some(3)),
                ("size of a weight", size, "weights[0].struct_size", |c| c.tensors[0].struct_size += 1),
                ("size of a master", size, "masters[0].struct_size", |c| c.tensors[2].struct_size = 0),
                ("type", NVTE_ERROR_INVALID_ENUM, "weights[0].dtype", |c| c.tensors[0].dtype = 9),
                ("rows", NVTE_ERROR_INVALID_SHAPE, "weight.rows", |c| c.tensors[0].rows = -1),
            ],
        ),
        (
            &["nvte_adamw_list", "nvte_adamw_list_workspace", "nvte_grad_list", "nvte_grad_list_workspace"],
            vec![("count", NVTE_ERROR_INVALID_SHAPE, "count", |c| c.made.count = -1)],
        ),
        (
            // Refused before arrays of that length are read, or made.
            &[
                "nvte_adamw_list",
                "nvte_adamw_list_workspace",
                "nvte_grad_list",
                "nvte_grad_list_workspace",
                "nvte_cast_list",
                "nvte_cast_list_workspace",
                "nvte_list_gradients",
            ],
            vec![
                ("many", NVTE_ERROR_SIZE_OVERFLOW, "count", |c| (c.made.count, c.pointers) = ((1 << 24) + 1, (1 << 24) + 1)),
                ("most", NVTE_ERROR_SIZE_OVERFLOW, "count", |c| (c.made.count, c.pointers) = (i64::MAX, i64::MAX)),
            ],
        ),
        (
            &["nvte_grad_list", "nvte_grad_list_workspace"],
            vec![
                ("no gradients", NVTE_ERROR_NULL_POINTER, "gradients", |c| c.no_array = Some(1)),
                ("a gradient is NULL", NVTE_ERROR_NULL_POINTER, "gradients[0]", |c| c.no_tensor = Some(1)),
                ("size", size, "gradients[0].struct_size", |c| c.tensors[1].struct_size = 3),
                ("rows", NVTE_ERROR_INVALID_SHAPE, "gradient.rows", |c| c.tensors[1].rows = -1),
            ],
        ),
        (
            &["nvte_adamw_list_workspace", "nvte_grad_list_workspace"],
            vec![("no bytes", NVTE_ERROR_NULL_POINTER, "bytes", |c| c.pass_bytes = false)],
        ),
        (
            MAKE,
            vec![
                ("no list", NVTE_ERROR_NULL_POINTER, "list", |c| c.pass_list = false),
                ("size of the list", size, "list.struct_size", |c| c.list.struct_size = 4),
                ("no table", NVTE_ERROR_NULL_POINTER, "list.data", |c| c.list.data = ptr::null_mut()),
                ("table", NVTE_ERROR_MISALIGNED, "list.data", |c| c.list.data = c.list.data.wrapping_byte_add(8)),
                ("small table", NVTE_ERROR_WORKSPACE_TOO_SMALL, "list.bytes", |c| c.list.bytes = 256),
                ("stride", NVTE_ERROR_INVALID_STRIDE, "gradient.ld", |c| c.tensors[1].ld = COLS + 1),
                ("gradient", NVTE_ERROR_NULL_POINTER, "gradient.data", |c| c.tensors[1].data = ptr::null_mut()),
                ("type", NVTE_ERROR_INVALID_DTYPE, "gradient.dtype", |c| {
                    (c.tensors[1].dtype, c.tensors[1].scaling) = (NVTE_E5M2, NVTE_SCALING_PER_TENSOR)
                }),
                ("table over a gradient", NVTE_ERROR_OVERLAP, "overlap", |c| c.tensors[1].data = c.list.data),
            ],
        ),
        (
            MAKE_ADAMW,
            vec![
                ("shape", NVTE_ERROR_INVALID_SHAPE, "exp_avg", |c| c.tensors[3].rows = 2),
                ("moments", NVTE_ERROR_INVALID_DTYPE, "exp_avg_sq.dtype", |c| c.tensors[4].dtype = NVTE_BF16),
                ("master", NVTE_ERROR_INVALID_DTYPE, "master.dtype", |c| c.tensors[2].dtype = NVTE_F16),
                ("codes", NVTE_ERROR_INVALID_STRIDE, "fp8.ld", |c| c.tensors[5].ld = 3),
                ("no codes", NVTE_ERROR_NULL_POINTER, "fp8.data", |c| c.tensors[5].data = ptr::null_mut()),
                ("weight on a moment", NVTE_ERROR_OVERLAP, "overlap", |c| c.tensors[0].data = c.tensors[3].data),
                ("weight", NVTE_ERROR_MISALIGNED, "weight.data", |c| c.tensors[0].data = c.tensors[0].data.wrapping_byte_add(1)),
            ],
        ),
        (
            USE,
            vec![
                ("no list", NVTE_ERROR_NULL_POINTER, "list", |c| c.pass_list = false),
                ("size of the list", size, "list.struct_size", |c| c.list.struct_size += 8),
                ("kind", NVTE_ERROR_INVALID_ENUM, "list.kind", |c| c.list.kind = 0),
                ("no table", NVTE_ERROR_NULL_POINTER, "list.data", |c| c.list.data = ptr::null_mut()),
                ("small table", NVTE_ERROR_WORKSPACE_TOO_SMALL, "list.bytes", |c| c.list.bytes = 256),
                ("tensors", NVTE_ERROR_INVALID_SHAPE, "list.count", |c| c.list.count = -1),
                ("blocks", NVTE_ERROR_SIZE_OVERFLOW, "list.blocks", |c| c.list.blocks = 1 << 40),
            ],
        ),
        (&["nvte_adamw"], vec![("kind", NVTE_ERROR_INVALID_ENUM, "list.kind", |c| c.list.kind = 2)]),
        (&["nvte_grad_norm", "nvte_grad_scale"], vec![("kind", NVTE_ERROR_INVALID_ENUM, "list.kind", |c| c.list.kind = 1)]),
        (
            &["nvte_list_gradients"],
            vec![
                ("count", NVTE_ERROR_INVALID_SHAPE, "count", |c| c.pointers = 0),
                ("count", NVTE_ERROR_INVALID_SHAPE, "count", |c| c.pointers = -1),
                ("no pointers", NVTE_ERROR_NULL_POINTER, "gradients", |c| c.no_array = Some(1)),
                ("gradient", NVTE_ERROR_MISALIGNED, "gradient", |c| c.tensors[1].data = c.tensors[1].data.wrapping_byte_add(1)),
            ],
        ),
        (
            &["nvte_adamw"],
            vec![
                ("size", size, "args.struct_size", |c| c.adamw.struct_size = 1),
                ("reserved", NVTE_ERROR_UNSUPPORTED, "reserved", |c| c.adamw.reserved = 1),
                ("decoupled", NVTE_ERROR_INVALID_ENUM, "decoupled", |c| c.adamw.decoupled = 2),
                ("bias_correction", NVTE_ERROR_INVALID_ENUM, "bias_correction", |c| c.adamw.bias_correction = -1),
                ("no step", NVTE_ERROR_NULL_POINTER, "step", |c| c.adamw.step = ptr::null_mut()),
                ("rate", NVTE_ERROR_MISALIGNED, "lr_ptr", |c| c.adamw.lr_ptr = c.adamw.lr_ptr.wrapping_byte_add(2)),
                ("flag", NVTE_ERROR_MISALIGNED, "found_inf", |c| c.adamw.found_inf = c.adamw.found_inf.wrapping_byte_add(1)),
                ("lr", value, "lr", |c| c.adamw.lr = -1.0),
                ("lr", value, "lr", |c| c.adamw.lr = f64::NAN),
                ("beta1", value, "beta1", |c| c.adamw.beta1 = 1.0),
                ("beta2", value, "beta2", |c| c.adamw.beta2 = -0.1),
                ("eps", value, "eps", |c| c.adamw.eps = f64::INFINITY),
                ("decay", value, "weight_decay", |c| c.adamw.weight_decay = -1.0),
            ],
        ),
        (
            &["nvte_grad_norm"],
            vec![
                ("size", size, "args.struct_size", |c| c.norm.struct_size = 1),
                ("reserved", NVTE_ERROR_UNSUPPORTED, "reserved", |c| c.norm.reserved = 1),
                ("no norm", NVTE_ERROR_NULL_POINTER, "norm", |c| c.norm.norm = ptr::null_mut()),
                ("clip", NVTE_ERROR_MISALIGNED, "clip", |c| c.norm.clip = c.norm.clip.wrapping_byte_add(2)),
                ("clip is norm", NVTE_ERROR_OVERLAP, "overlap", |c| c.norm.clip = c.norm.norm),
                ("max_norm", value, "max_norm", |c| c.norm.max_norm = -1.0),
            ],
        ),
        (
            MAKE_CAST,
            vec![
                ("count", NVTE_ERROR_INVALID_SHAPE, "count", |c| c.made.count = -1),
                ("no inputs", NVTE_ERROR_NULL_POINTER, "inputs", |c| c.no_array = Some(1)),
                ("no outputs", NVTE_ERROR_NULL_POINTER, "outputs", |c| c.no_array = Some(5)),
                ("an input is NULL", NVTE_ERROR_NULL_POINTER, "inputs[0]", |c| c.no_tensor = Some(1)),
                ("an output is NULL", NVTE_ERROR_NULL_POINTER, "outputs[0]", |c| c.no_tensor = Some(5)),
                ("size", size, "inputs[0].struct_size", |c| c.tensors[1].struct_size = 3),
                ("rows", NVTE_ERROR_INVALID_SHAPE, "input.rows", |c| c.tensors[1].rows = -1),
            ],
        ),
        (&["nvte_cast_list_workspace"], vec![("no bytes", NVTE_ERROR_NULL_POINTER, "bytes", |c| c.pass_bytes = false)]),
        (
            &["nvte_cast_list"],
            vec![
                ("no list", NVTE_ERROR_NULL_POINTER, "list", |c| c.pass_list = false),
                ("no table", NVTE_ERROR_NULL_POINTER, "list.data", |c| c.list.data = ptr::null_mut()),
                ("small table", NVTE_ERROR_WORKSPACE_TOO_SMALL, "list.bytes", |c| c.list.bytes = 256),
                ("stride", NVTE_ERROR_INVALID_STRIDE, "input.ld", |c| c.tensors[1].ld = 3),
                ("no codes", NVTE_ERROR_NULL_POINTER, "output.data", |c| c.tensors[5].data = ptr::null_mut()),
                ("type", NVTE_ERROR_INVALID_DTYPE, "output.dtype", |c| {
                    (c.tensors[5].dtype, c.tensors[5].scaling) = (NVTE_BF16, NVTE_SCALING_NONE)
                }),
                ("codes on the input", NVTE_ERROR_OVERLAP, "overlap", |c| c.tensors[5].data = c.tensors[1].data),
            ],
        ),
        (
            &["nvte_multi_cast_to_fp8"],
            vec![
                ("size", size, "args.struct_size", |c| c.cast.struct_size = 1),
                ("reserved", NVTE_ERROR_UNSUPPORTED, "reserved", |c| c.cast.reserved = 1),
                ("current", NVTE_ERROR_INVALID_ENUM, "current", |c| c.cast.current = 2),
                ("power_of_two", NVTE_ERROR_INVALID_ENUM, "power_of_two", |c| c.cast.power_of_two = 2),
                ("margin", value, "margin", |c| c.cast.margin = 65),
                ("epsilon", value, "epsilon", |c| c.cast.epsilon = -1.0),
                ("skip", NVTE_ERROR_MISALIGNED, "skip", |c| c.cast.skip = c.cast.skip.wrapping_byte_add(2)),
                ("kind", NVTE_ERROR_INVALID_ENUM, "list.kind", |c| c.list.kind = 2),
            ],
        ),
        (&["nvte_list_gradients"], vec![("kind", NVTE_ERROR_INVALID_ENUM, "list.kind", |c| c.list.kind = 3)]),
        (&["nvte_grad_scale"], vec![("no factor", NVTE_ERROR_NULL_POINTER, "factor", |c| c.factor = ptr::null())]),
    ]
}

/// The kind of list that a function takes.
fn kind(name: &str) -> i32 {
    match name {
        "nvte_adamw" => 1,
        "nvte_multi_cast_to_fp8" => 3,
        "nvte_grad_norm" | "nvte_grad_scale" | "nvte_list_gradients" => 2,
        _ => 0,
    }
}

pub fn the_rest() {
    let gone = create();
    assert_eq!(nvte_context_destroy(gone), NVTE_OK);
    let stage = Stage::new();
    let refused = |name: &str, what: &str, call: &Call, status: i32, text: &str| {
        let got = call.run(name);
        assert_eq!(got, status, "{name}: {what}: {}", message());
        assert!(message().contains(text), "{name}: {what}: \"{}\" does not say {text}", message());
    };
    for name in BY_HAND {
        for ctx in [gone, ptr::null_mut()] {
            refused(name, "context", &Call { ctx, ..stage.valid(kind(name)) }, NVTE_ERROR_INVALID_HANDLE, "context");
        }
    }
    for (names, faults) in faults() {
        for name in names {
            for (what, status, text, change) in &faults {
                let mut call = stage.valid(kind(name));
                change(&mut call);
                refused(name, what, &call, *status, text);
            }
        }
    }
    sync(&stage.device);
    let untouched = |g: &Guarded| g.read().iter().all(|b| *b == POISON);
    assert!(stage.memory.iter().chain([&stage.table]).all(untouched), "a refused call wrote something");
    // The calls as they stand; the table is written by the first.
    for name in [
        "nvte_adamw_list_workspace",
        "nvte_adamw_list",
        "nvte_grad_list_workspace",
        "nvte_grad_list",
        "nvte_list_gradients",
        "nvte_cast_list_workspace",
        "nvte_cast_list",
    ] {
        assert_eq!(stage.valid(kind(name)).run(name), NVTE_OK, "{name}: {}", message());
    }
    assert_eq!(nvte_context_destroy(stage.ctx), NVTE_OK);
}

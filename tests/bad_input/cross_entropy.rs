//! Cross-entropy.

use std::ptr;

use nvte::{
    capi::{cross_entropy::*, types::*},
    DType,
};

use super::framework::{Call, Fault, Function, Input, Matrix, Output, Pointer};

const TOKENS: i64 = 6;
const CLASSES: i64 = 10;

fn workspace(c: &Call) -> u64 {
    let mut bytes = 0;
    // SAFETY: a live number.
    assert_eq!(unsafe { nvte_cross_entropy_workspace(c.ctx, TOKENS, &mut bytes) }, NVTE_OK);
    bytes
}

fn option_faults() -> Vec<Fault> {
    vec![
        Fault::number("target_type", 2.0, NVTE_ERROR_INVALID_ENUM),
        Fault::number("target_type", -1.0, NVTE_ERROR_INVALID_ENUM),
        Fault::number("reduction", 3.0, NVTE_ERROR_INVALID_ENUM),
        Fault::number("reduction", -1.0, NVTE_ERROR_INVALID_ENUM),
        Fault::number("label_smoothing", 1.5, NVTE_ERROR_INVALID_VALUE),
        Fault::number("label_smoothing", -0.1, NVTE_ERROR_INVALID_VALUE),
        Fault::number("label_smoothing", f64::NAN, NVTE_ERROR_INVALID_VALUE),
    ]
}

fn options() -> Vec<(&'static str, f64)> {
    vec![("target_type", f64::from(NVTE_TARGET_I64)), ("reduction", f64::from(NVTE_REDUCTION_MEAN)), ("label_smoothing", 0.1)]
}

fn targets() -> Pointer {
    Pointer::new("target", Input, 8 * TOKENS as usize, 8, true)
}

fn logits() -> Vec<Matrix> {
    vec![
        Matrix::new("logits", Input, DType::Bf16, TOKENS, CLASSES),
        Matrix::new("dlogits", Output, DType::Bf16, TOKENS, CLASSES).optional().may_be(&["logits"]),
    ]
}

fn whole() -> Function {
    let mut f = Function::new("nvte_cross_entropy", |c| {
        let args = nvte_cross_entropy_args_t {
            struct_size: c.struct_size::<nvte_cross_entropy_args_t>(),
            target_type: c.number("target_type") as i32,
            logits: c.tensor("logits"),
            dlogits: c.tensor("dlogits"),
            target: c.pointer("target"),
            ignore_index: -100,
            dloss: c.pointer("dloss"),
            dloss_stride: c.number("dloss_stride") as i64,
            loss: c.pointer("loss"),
            logsumexp: c.pointer("logsumexp"),
            total: c.pointer("total"),
            workspace: c.workspace,
            workspace_bytes: c.workspace_bytes,
            label_smoothing: c.number("label_smoothing") as f32,
            reduction: c.number("reduction") as i32,
        };
        // SAFETY: the structs live in `c` and here; faults are what the function must see.
        unsafe { nvte_cross_entropy(c.ctx, c.args(&args), c.stream) }
    });
    f.matrices = logits();
    f.pointers = vec![
        targets(),
        Pointer::words("dloss", Input, TOKENS).optional(),
        Pointer::words("loss", Output, TOKENS).optional(),
        Pointer::words("logsumexp", Output, TOKENS).optional(),
        Pointer::words("total", Output, 1).optional(),
    ];
    f.numbers = options();
    f.numbers.push(("dloss_stride", 1.0));
    f.workspace = Some(workspace);
    f.has_args = true;
    f.faults = option_faults();
    f.faults.push(Fault::number("dloss_stride", 2.0, NVTE_ERROR_INVALID_STRIDE));
    f.faults.push(Fault::number("dloss_stride", -1.0, NVTE_ERROR_INVALID_STRIDE));
    f.faults.push(Fault::new("a total of nothing", NVTE_ERROR_UNSUPPORTED, "total", |c| c.set("reduction", 0.0)));
    f
}

fn slice_args(c: &Call) -> nvte_cross_entropy_slice_args_t {
    nvte_cross_entropy_slice_args_t {
        struct_size: c.struct_size::<nvte_cross_entropy_slice_args_t>(),
        target_type: c.number("target_type") as i32,
        logits: c.tensor("logits"),
        dlogits: ptr::null(),
        target: c.pointer("target"),
        ignore_index: -100,
        start: c.number("start") as i64,
        vocabulary: c.number("vocabulary") as i64,
        partial: ptr::null_mut(),
        combined: ptr::null(),
        dloss: ptr::null(),
        dloss_stride: 0,
        workspace: c.workspace,
        workspace_bytes: c.workspace_bytes,
        label_smoothing: c.number("label_smoothing") as f32,
        reduction: c.number("reduction") as i32,
    }
}

fn slice_faults() -> Vec<Fault> {
    let mut all = option_faults();
    all.push(Fault::number("start", -1.0, NVTE_ERROR_INVALID_SHAPE));
    all.push(Fault::number("start", 22.0, NVTE_ERROR_INVALID_SHAPE));
    all.push(Fault::number("vocabulary", -1.0, NVTE_ERROR_INVALID_SHAPE));
    all
}

fn slices() -> [Function; 2] {
    let numbers = || {
        let mut all = options();
        all.extend([("start", 20.0), ("vocabulary", 31.0), ("other", 0.0)]);
        all
    };
    let mut partial = Function::new("nvte_cross_entropy_partial", |c| {
        let mut args = nvte_cross_entropy_slice_args_t { partial: c.pointer("partial"), ..slice_args(c) };
        match c.number("other") as i32 {
            1 => args.dlogits = args.logits,
            2 => args.combined = args.partial,
            _ => {}
        }
        // SAFETY: as above.
        unsafe { nvte_cross_entropy_partial(c.ctx, c.args(&args), c.stream) }
    });
    partial.matrices = vec![logits().swap_remove(0)];
    partial.pointers = vec![targets(), Pointer::new("partial", Output, 16 * TOKENS as usize, 16, true)];
    partial.numbers = numbers();
    partial.has_args = true;
    partial.faults = slice_faults();
    partial.faults.push(Fault::new("a gradient", NVTE_ERROR_UNSUPPORTED, "dlogits", |c| c.set("other", 1.0)));
    partial.faults.push(Fault::new("combined numbers", NVTE_ERROR_UNSUPPORTED, "combined", |c| c.set("other", 2.0)));

    let mut gradient = Function::new("nvte_cross_entropy_gradient", |c| {
        let mut args = nvte_cross_entropy_slice_args_t {
            combined: c.pointer("combined"),
            dlogits: c.tensor("dlogits"),
            dloss: c.pointer("dloss"),
            dloss_stride: 1,
            ..slice_args(c)
        };
        if c.number("other") as i32 == 1 {
            args.partial = c.pointer("combined");
        }
        // SAFETY: as above.
        unsafe { nvte_cross_entropy_gradient(c.ctx, c.args(&args), c.stream) }
    });
    gradient.matrices = logits();
    gradient.matrices[1].required = true;
    gradient.pointers =
        vec![targets(), Pointer::words("dloss", Input, TOKENS).optional(), Pointer::new("combined", Input, 16 * TOKENS as usize, 16, true)];
    gradient.numbers = numbers();
    gradient.workspace = Some(workspace);
    gradient.has_args = true;
    gradient.faults = slice_faults();
    gradient.faults.push(Fault::new("a partial", NVTE_ERROR_UNSUPPORTED, "partial", |c| c.set("other", 1.0)));
    [partial, gradient]
}

fn combine() -> Function {
    let mut f = Function::new("nvte_cross_entropy_combine", |c| {
        let args = nvte_cross_entropy_combine_args_t {
            struct_size: c.struct_size::<nvte_cross_entropy_combine_args_t>(),
            target_type: c.number("target_type") as i32,
            partials: c.pointer("partials"),
            ranks: c.number("ranks") as i64,
            rank_stride: c.number("rank_stride") as i64,
            tokens: c.number("tokens") as i64,
            vocabulary: c.number("vocabulary") as i64,
            target: c.pointer("target"),
            ignore_index: -100,
            combined: c.pointer("combined"),
            loss: c.pointer("loss"),
            logsumexp: c.pointer("logsumexp"),
            total: c.pointer("total"),
            workspace: c.workspace,
            workspace_bytes: c.workspace_bytes,
            label_smoothing: c.number("label_smoothing") as f32,
            reduction: c.number("reduction") as i32,
        };
        // SAFETY: as above.
        unsafe { nvte_cross_entropy_combine(c.ctx, c.args(&args), c.stream) }
    });
    f.pointers = vec![
        Pointer::new("partials", Input, 2 * 16 * TOKENS as usize, 16, true),
        targets(),
        Pointer::new("combined", Output, 16 * TOKENS as usize, 16, true),
        Pointer::words("loss", Output, TOKENS).optional(),
        Pointer::words("logsumexp", Output, TOKENS).optional(),
        Pointer::words("total", Output, 1).optional(),
    ];
    f.numbers = options();
    f.numbers.extend([("ranks", 2.0), ("rank_stride", 0.0), ("tokens", TOKENS as f64), ("vocabulary", 30.0)]);
    f.workspace = Some(workspace);
    f.has_args = true;
    f.faults = option_faults();
    f.faults.extend([
        Fault::number("ranks", 0.0, NVTE_ERROR_INVALID_SHAPE),
        Fault::number("ranks", -1.0, NVTE_ERROR_INVALID_SHAPE),
        Fault::number("rank_stride", 20.0, NVTE_ERROR_INVALID_STRIDE),
        Fault::number("rank_stride", 25.0, NVTE_ERROR_INVALID_STRIDE),
        Fault::number("rank_stride", -4.0, NVTE_ERROR_INVALID_STRIDE),
        Fault::number("tokens", -1.0, NVTE_ERROR_INVALID_SHAPE),
        Fault::number("tokens", 2f64.powi(62), NVTE_ERROR_SIZE_OVERFLOW),
        Fault::number("vocabulary", -1.0, NVTE_ERROR_INVALID_SHAPE),
    ]);
    f
}

fn scale_rows() -> Function {
    let mut f = Function::new("nvte_scale_rows", |c| {
        // SAFETY: as above.
        unsafe { nvte_scale_rows(c.ctx, c.pointer("scale"), c.number("scale_stride") as i64, c.tensor("x"), c.stream) }
    });
    f.matrices = vec![Matrix::new("x", Output, DType::F16, TOKENS, CLASSES)];
    f.pointers = vec![Pointer::words("scale", Input, TOKENS)];
    f.numbers = vec![("scale_stride", 1.0)];
    // NaN times anything.
    f.writes = false;
    f.faults =
        vec![Fault::number("scale_stride", 2.0, NVTE_ERROR_INVALID_STRIDE), Fault::number("scale_stride", -1.0, NVTE_ERROR_INVALID_STRIDE)];
    f
}

fn query() -> Function {
    let mut f = Function::new("nvte_cross_entropy_workspace", |c| {
        let (mut bytes, wanted) = (0xA5u64, c.number("out") as i32 == 1);
        let out = if wanted { &mut bytes } else { ptr::null_mut() };
        // SAFETY: a live or null out-pointer.
        let status = unsafe { nvte_cross_entropy_workspace(c.ctx, c.number("tokens") as i64, out) };
        assert!(status == NVTE_OK || bytes == 0xA5, "a refused query wrote");
        status
    });
    f.numbers = vec![("tokens", 6.0), ("out", 1.0)];
    (f.has_memory, f.prepares) = (false, false);
    f.faults = vec![
        Fault::number("tokens", -1.0, NVTE_ERROR_INVALID_SHAPE),
        Fault::number("tokens", 2f64.powi(62), NVTE_ERROR_SIZE_OVERFLOW),
        Fault::new("bytes", NVTE_ERROR_NULL_POINTER, "bytes", |c| c.set("out", 0.0)),
    ];
    f
}

pub fn functions() -> Vec<Function> {
    let [partial, gradient] = slices();
    vec![query(), whole(), partial, combine(), gradient, scale_rows()]
}

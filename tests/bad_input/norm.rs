//! LayerNorm and RMSNorm.

use std::ptr;

use nvte::{
    capi::{norm::*, types::*},
    DType,
};

use super::framework::{Call, Fault, Function, Input, Matrix, Output, Pointer};
use crate::common::on_cuda;

const ROWS: i64 = 5;
const HIDDEN: i64 = 12;

fn flag_faults() -> Vec<Fault> {
    [2.0, -1.0].map(|v| Fault::number("zero_centered_gamma", v, NVTE_ERROR_INVALID_ENUM)).into()
}

fn forward_args(c: &Call) -> nvte_norm_fwd_args_t {
    nvte_norm_fwd_args_t {
        struct_size: c.struct_size::<nvte_norm_fwd_args_t>(),
        zero_centered_gamma: c.number("zero_centered_gamma") as i32,
        x: c.tensor("x"),
        gamma: c.tensor("gamma"),
        beta: ptr::null(),
        y: c.tensor("y"),
        mu: ptr::null_mut(),
        rsigma: c.pointer("rsigma"),
        eps: c.number("eps") as f32,
        reserved: c.number("reserved") as u32,
        residual: c.tensor("residual"),
        sum: c.tensor("sum"),
    }
}

fn forward(layer: bool) -> Function {
    let mut f = match layer {
        true => Function::new("nvte_layernorm_fwd", |c| {
            let args = nvte_norm_fwd_args_t { beta: c.tensor("beta"), mu: c.pointer("mu"), ..forward_args(c) };
            // SAFETY: the structs live in `c` and here; faults are what the function must see.
            unsafe { nvte_layernorm_fwd(c.ctx, c.args(&args), c.stream) }
        }),
        false => Function::new("nvte_rmsnorm_fwd", |c| {
            let mut args = forward_args(c);
            if c.number("with_mu") == 1.0 {
                args.mu = args.rsigma;
            }
            if c.number("with_beta") == 1.0 {
                args.beta = args.gamma;
            }
            // SAFETY: as above.
            unsafe { nvte_rmsnorm_fwd(c.ctx, c.args(&args), c.stream) }
        }),
    };
    f.matrices = vec![
        Matrix::new("x", Input, DType::Bf16, ROWS, HIDDEN),
        Matrix::vector("gamma", Input, DType::F32, HIDDEN).optional(),
        Matrix::new("y", Output, DType::E4m3, ROWS, HIDDEN).with_transpose(),
        // Without one of these the other is refused.
        Matrix::new("residual", Input, DType::Bf16, ROWS, HIDDEN),
        Matrix::new("sum", Output, DType::Bf16, ROWS, HIDDEN),
    ];
    // Every type is one that y may have.
    f.matrices[2].refused = DType::E4m3;
    f.pointers = vec![Pointer::words("rsigma", Output, ROWS).optional()];
    f.numbers = vec![("zero_centered_gamma", 0.0), ("eps", 1e-5), ("reserved", 0.0)];
    f.has_args = true;
    f.faults = flag_faults();
    for v in [-1e-5, f64::NAN, f64::INFINITY] {
        f.faults.push(Fault::number("eps", v, NVTE_ERROR_INVALID_VALUE));
    }
    f.faults.push(Fault::new("reserved", NVTE_ERROR_UNSUPPORTED, "reserved", |c| c.set("reserved", 1.0)));
    // A high-precision y has neither slots nor a transposed copy.
    let high = |c: &mut Call| {
        let t = c.tensor_mut("y");
        (t.dtype, t.scaling) = (NVTE_BF16, NVTE_SCALING_NONE);
    };
    f.faults.push(Fault::new("y in bf16 with a transposed copy", NVTE_ERROR_UNSUPPORTED, "y.", high));
    if layer {
        f.matrices.push(Matrix::vector("beta", Input, DType::F16, HIDDEN).optional());
        f.pointers.push(Pointer::words("mu", Output, ROWS).optional());
        let onto = |c: &mut Call| {
            let p = c.pointer("rsigma");
            c.set_pointer("mu", p);
        };
        f.faults.push(Fault::new("mu is rsigma", NVTE_ERROR_OVERLAP, "mu", onto));
    } else {
        f.numbers.extend([("with_mu", 0.0), ("with_beta", 0.0)]);
        f.faults.push(Fault::new("mu", NVTE_ERROR_UNSUPPORTED, "mu", |c| c.set("with_mu", 1.0)));
        f.faults.push(Fault::new("beta", NVTE_ERROR_UNSUPPORTED, "beta", |c| c.set("with_beta", 1.0)));
    }
    f
}

fn backward_args(c: &Call) -> nvte_norm_bwd_args_t {
    nvte_norm_bwd_args_t {
        struct_size: c.struct_size::<nvte_norm_bwd_args_t>(),
        zero_centered_gamma: c.number("zero_centered_gamma") as i32,
        dy: c.tensor("dy"),
        x: c.tensor("x"),
        gamma: c.tensor("gamma"),
        mu: ptr::null(),
        rsigma: c.pointer("rsigma"),
        dx: c.tensor("dx"),
        dgamma: c.tensor("dgamma"),
        dbeta: ptr::null(),
        workspace: c.workspace,
        workspace_bytes: c.workspace_bytes,
        dsum: c.tensor("dsum"),
    }
}

fn backward(layer: bool) -> Function {
    let mut f = match layer {
        true => Function::new("nvte_layernorm_bwd", |c| {
            let args = nvte_norm_bwd_args_t { dbeta: c.tensor("dbeta"), mu: c.pointer("mu"), ..backward_args(c) };
            // SAFETY: the structs live in `c` and here; faults are what the function must see.
            unsafe { nvte_layernorm_bwd(c.ctx, c.args(&args), c.stream) }
        }),
        false => Function::new("nvte_rmsnorm_bwd", |c| {
            let mut args = backward_args(c);
            if c.number("with_mu") == 1.0 {
                args.mu = args.rsigma;
            }
            if c.number("with_dbeta") == 1.0 {
                args.dbeta = args.dgamma;
            }
            // SAFETY: as above.
            unsafe { nvte_rmsnorm_bwd(c.ctx, c.args(&args), c.stream) }
        }),
    };
    f.matrices = vec![
        Matrix::new("dy", Input, DType::F16, ROWS, HIDDEN),
        Matrix::new("x", Input, DType::Bf16, ROWS, HIDDEN),
        Matrix::new("dsum", Input, DType::Bf16, ROWS, HIDDEN).optional(),
        Matrix::vector("gamma", Input, DType::F32, HIDDEN).optional(),
        Matrix::new("dx", Output, DType::F32, ROWS, HIDDEN),
        Matrix::vector("dgamma", Output, DType::F32, HIDDEN).optional(),
    ];
    f.pointers = vec![Pointer::words("rsigma", Input, ROWS)];
    f.numbers = vec![("zero_centered_gamma", 0.0)];
    f.workspace = Some(|c| {
        let mut bytes = 0;
        // SAFETY: a live number.
        assert_eq!(unsafe { nvte_norm_bwd_workspace(c.ctx, HIDDEN, &mut bytes) }, NVTE_OK);
        bytes
    });
    f.has_args = true;
    f.faults = flag_faults();
    if layer {
        f.matrices.push(Matrix::vector("dbeta", Output, DType::Bf16, HIDDEN).optional());
        f.pointers.push(Pointer::words("mu", Input, ROWS));
    } else {
        f.numbers.extend([("with_mu", 0.0), ("with_dbeta", 0.0)]);
        f.faults.push(Fault::new("mu", NVTE_ERROR_UNSUPPORTED, "mu", |c| c.set("with_mu", 1.0)));
        f.faults.push(Fault::new("dbeta", NVTE_ERROR_UNSUPPORTED, "dbeta", |c| c.set("with_dbeta", 1.0)));
    }
    f
}

/// Writes a number on the host and nothing else.
fn query() -> Function {
    let mut f = Function::new("nvte_norm_bwd_workspace", |c| {
        let mut bytes = 0;
        let to = if c.number("null") == 1.0 { ptr::null_mut() } else { &mut bytes };
        // SAFETY: null or a live number.
        unsafe { nvte_norm_bwd_workspace(c.ctx, c.number("hidden") as i64, to) }
    });
    (f.has_memory, f.prepares) = (false, false);
    f.numbers = vec![("hidden", HIDDEN as f64), ("null", 0.0)];
    f.faults = vec![
        Fault::new("bytes: NULL", NVTE_ERROR_NULL_POINTER, "bytes", |c| c.set("null", 1.0)),
        Fault::new("negative hidden", NVTE_ERROR_INVALID_SHAPE, "hidden", |c| c.set("hidden", -1.0)),
    ];
    if on_cuda() {
        f.faults.push(Fault::new("huge hidden", NVTE_ERROR_SIZE_OVERFLOW, "hidden", |c| c.set("hidden", 9e18)));
    }
    f
}

pub fn functions() -> Vec<Function> {
    vec![forward(true), forward(false), backward(true), backward(false), query()]
}

//! Softmax.

use nvte::{
    capi::{softmax::*, types::*},
    DType,
};

use super::framework::{Call, Fault, Function, Input, Matrix, Output, Pointer};

const ROWS: i64 = 6;
const COLS: i64 = 10;

fn forward_args(c: &Call) -> nvte_softmax_fwd_args_t {
    let number = |name: &str| c.number(name) as i64;
    nvte_softmax_fwd_args_t {
        struct_size: c.struct_size::<nvte_softmax_fwd_args_t>(),
        causal: number("causal") as i32,
        x: c.tensor("x"),
        y: c.tensor("y"),
        mask: c.pointer("mask"),
        mask_batch_stride: number("mask_batch_stride"),
        mask_head_stride: number("mask_head_stride"),
        mask_query_stride: number("mask_query_stride"),
        queries: number("queries"),
        heads: number("heads"),
        offset: 0,
        scale: c.number("scale") as f32,
        reserved: c.number("reserved") as u32,
    }
}

fn common_faults() -> Vec<Fault> {
    vec![
        Fault::number("causal", 2.0, NVTE_ERROR_INVALID_ENUM),
        Fault::number("causal", -1.0, NVTE_ERROR_INVALID_ENUM),
        Fault::number("reserved", 1.0, NVTE_ERROR_UNSUPPORTED),
        Fault::number("queries", -1.0, NVTE_ERROR_INVALID_SHAPE),
        Fault::number("queries", 4.0, NVTE_ERROR_INVALID_SHAPE),
        Fault::number("scale", f64::INFINITY, NVTE_ERROR_INVALID_VALUE),
        Fault::number("scale", f64::NAN, NVTE_ERROR_INVALID_VALUE),
    ]
}

pub fn functions() -> Vec<Function> {
    let mut fwd = Function::new("nvte_softmax_fwd", |c| {
        // SAFETY: the structs live in `c` and here; faults are what the function must see.
        unsafe { nvte_softmax_fwd(c.ctx, c.args(&forward_args(c)), c.stream) }
    });
    fwd.matrices = vec![Matrix::new("x", Input, DType::Bf16, ROWS, COLS), Matrix::new("y", Output, DType::Bf16, ROWS, COLS).may_be(&["x"])];
    fwd.pointers = vec![Pointer::new("mask", Input, (ROWS * COLS) as usize, 1, false)];
    let strides = [("mask_batch_stride", 30.0), ("mask_head_stride", 30.0), ("mask_query_stride", 10.0)];
    fwd.numbers = vec![("causal", 1.0), ("queries", 3.0), ("heads", 2.0), ("scale", 1.0), ("reserved", 0.0)];
    fwd.numbers.extend(strides);
    fwd.has_args = true;
    fwd.faults = common_faults();
    fwd.faults.push(Fault::number("heads", -1.0, NVTE_ERROR_INVALID_SHAPE));
    fwd.faults.push(Fault::number("heads", 3.0, NVTE_ERROR_INVALID_SHAPE));
    for (name, _) in strides {
        fwd.faults.push(Fault::number(name, -1.0, NVTE_ERROR_INVALID_STRIDE));
    }
    fwd.faults.push(Fault::new("a mask too large", NVTE_ERROR_SIZE_OVERFLOW, "mask", |c| c.set("mask_query_stride", 2f64.powi(62))));

    let mut bwd = Function::new("nvte_softmax_bwd", |c| {
        let args = nvte_softmax_bwd_args_t {
            struct_size: c.struct_size::<nvte_softmax_bwd_args_t>(),
            causal: c.number("causal") as i32,
            dy: c.tensor("dy"),
            y: c.tensor("y"),
            dx: c.tensor("dx"),
            queries: c.number("queries") as i64,
            offset: 0,
            scale: c.number("scale") as f32,
            reserved: c.number("reserved") as u32,
        };
        // SAFETY: as above.
        unsafe { nvte_softmax_bwd(c.ctx, c.args(&args), c.stream) }
    });
    bwd.matrices = vec![
        Matrix::new("dy", Input, DType::F16, ROWS, COLS),
        Matrix::new("y", Input, DType::F16, ROWS, COLS),
        Matrix::new("dx", Output, DType::F16, ROWS, COLS).may_be(&["dy"]),
    ];
    bwd.numbers = vec![("causal", 0.0), ("queries", 3.0), ("scale", 1.0), ("reserved", 0.0)];
    bwd.has_args = true;
    bwd.faults = common_faults();
    vec![fwd, bwd]
}

//! Dropout.

use std::ptr;

use nvte::{
    capi::{dropout::*, types::*},
    DType,
};

use super::framework::{Call, Fault, Function, Input, Matrix, Output, Pointer};

const ROWS: i64 = 40;
const COLS: i64 = 13;
const MASK: i64 = 2;

fn common(f: &mut Function) {
    f.numbers.extend([("p", 0.5), ("mask_ld", MASK as f64), ("reserved", 0.0)]);
    f.has_args = true;
    for v in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        f.faults.push(Fault::number("p", v, NVTE_ERROR_INVALID_VALUE));
    }
    f.faults.push(Fault::number("reserved", 1.0, NVTE_ERROR_UNSUPPORTED));
}

fn forward() -> Function {
    let mut f = Function::new("nvte_dropout_fwd", |c| {
        let args = nvte_dropout_fwd_args_t {
            struct_size: c.struct_size::<nvte_dropout_fwd_args_t>(),
            reserved: c.number("reserved") as u32,
            p: c.number("p"),
            x: c.tensor("x"),
            bias: c.tensor("bias"),
            residual: c.tensor("residual"),
            y: c.tensor("y"),
            mask: c.pointer("mask"),
            mask_ld: c.number("mask_ld") as i64,
            rng: c.pointer("rng"),
            rng_stream: 3,
        };
        // SAFETY: the structs live in `c` and here; faults are what the function must see.
        unsafe { nvte_dropout_fwd(c.ctx, c.args(&args), c.stream) }
    });
    f.matrices = vec![
        Matrix::new("x", Input, DType::Bf16, ROWS, COLS),
        Matrix::vector("bias", Input, DType::F32, COLS).optional(),
        Matrix::new("residual", Input, DType::Bf16, ROWS, COLS).optional(),
        Matrix::new("y", Output, DType::Bf16, ROWS, COLS).may_be(&["x", "residual"]),
    ];
    f.pointers = vec![Pointer::new("mask", Output, (ROWS * MASK) as usize, 1, false), Pointer::new("rng", Input, 16, 8, true)];
    common(&mut f);
    f.faults.push(Fault::number("mask_ld", 1.0, NVTE_ERROR_INVALID_STRIDE));
    f.faults.push(Fault::number("mask_ld", 9e18, NVTE_ERROR_SIZE_OVERFLOW).or_text("mask"));
    let other = |name: &'static str| {
        let change = move |c: &mut Call| c.tensor_mut(name).dtype = NVTE_F16;
        Fault::new(format!("{name} of another type"), NVTE_ERROR_INVALID_DTYPE, format!("{name}.dtype"), change)
    };
    f.faults.extend([other("y"), other("residual")]);
    let strides = |c: &mut Call| {
        let p = c.tensor_mut("x").data;
        c.tensor_mut("y").data = p;
        c.tensor_mut("x").ld += 1;
    };
    f.faults.push(Fault::new("y is x with another stride", NVTE_ERROR_OVERLAP, "y", strides));
    f
}

fn backward() -> Function {
    let mut f = Function::new("nvte_dropout_bwd", |c| {
        let args = nvte_dropout_bwd_args_t {
            struct_size: c.struct_size::<nvte_dropout_bwd_args_t>(),
            dbias_dtype: c.number("dbias_dtype") as i32,
            p: c.number("p"),
            dy: c.tensor("dy"),
            dx: c.tensor("dx"),
            mask: if c.number("with_mask") == 1.0 { c.pointer("rng") } else { ptr::null() },
            mask_ld: c.number("mask_ld") as i64,
            rng: c.pointer("rng"),
            rng_stream: 3,
            dbias: c.pointer("dbias"),
            accumulate: c.number("accumulate") as i32,
            reserved: c.number("reserved") as u32,
            workspace: c.workspace,
            workspace_bytes: c.workspace_bytes,
        };
        // SAFETY: as above.
        unsafe { nvte_dropout_bwd(c.ctx, c.args(&args), c.stream) }
    });
    f.matrices = vec![Matrix::new("dy", Input, DType::F16, ROWS, COLS), Matrix::new("dx", Output, DType::F16, ROWS, COLS).may_be(&["dy"])];
    f.pointers = vec![Pointer::new("rng", Input, 16, 8, true), Pointer::words("dbias", Output, COLS).optional()];
    f.workspace = Some(|c| {
        let mut bytes = 0;
        // SAFETY: a live number.
        assert_eq!(unsafe { nvte_dropout_bwd_workspace(c.ctx, ROWS, COLS, &mut bytes) }, NVTE_OK);
        bytes
    });
    common(&mut f);
    f.numbers.extend([("dbias_dtype", f64::from(NVTE_F32)), ("accumulate", 0.0), ("with_mask", 0.0)]);
    for (name, value, status) in [
        ("accumulate", 2.0, NVTE_ERROR_INVALID_ENUM),
        ("dbias_dtype", 5.0, NVTE_ERROR_INVALID_ENUM),
        ("dbias_dtype", f64::from(NVTE_E5M2), NVTE_ERROR_INVALID_DTYPE),
    ] {
        f.faults.push(Fault::number(name, value, status).or_text("dbias.dtype"));
    }
    for (value, status) in [(1.0, NVTE_ERROR_INVALID_STRIDE), (9e18, NVTE_ERROR_SIZE_OVERFLOW)] {
        let change = move |c: &mut Call| {
            c.set("with_mask", 1.0);
            c.set("mask_ld", value);
        };
        f.faults.push(Fault::new(format!("a mask with mask_ld = {value}"), status, "mask", change));
    }
    let other = |c: &mut Call| c.tensor_mut("dx").dtype = NVTE_BF16;
    f.faults.push(Fault::new("dx of another type", NVTE_ERROR_INVALID_DTYPE, "dx.dtype", other));
    f
}

/// Writes a number on the host and nothing else.
fn query() -> Function {
    let mut f = Function::new("nvte_dropout_bwd_workspace", |c| {
        let mut bytes = 0;
        let to = if c.number("null") == 1.0 { ptr::null_mut() } else { &mut bytes };
        // SAFETY: null or a live number.
        unsafe { nvte_dropout_bwd_workspace(c.ctx, c.number("rows") as i64, c.number("cols") as i64, to) }
    });
    (f.has_memory, f.prepares) = (false, false);
    f.numbers = vec![("rows", ROWS as f64), ("cols", COLS as f64), ("null", 0.0)];
    f.faults = vec![
        Fault::new("bytes: NULL", NVTE_ERROR_NULL_POINTER, "bytes", |c| c.set("null", 1.0)),
        Fault::number("rows", -1.0, NVTE_ERROR_INVALID_SHAPE),
        Fault::number("cols", -1.0, NVTE_ERROR_INVALID_SHAPE),
        Fault::number("rows", 9e18, NVTE_ERROR_SIZE_OVERFLOW).or_text("dy"),
    ];
    f
}

pub fn functions() -> Vec<Function> {
    vec![forward(), backward(), query()]
}

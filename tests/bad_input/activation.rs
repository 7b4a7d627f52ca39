//! Activations.

use std::ptr;

use nvte::{
    capi::{activation::*, types::*},
    DType,
};

use super::framework::{Fault, Function, Input, Matrix, Output, Pointer};

fn kind_faults() -> Vec<Fault> {
    let unknown = [-1.0, 6.0, 15.0, 22.0, f64::from(i32::MAX)]
        .map(|kind| Fault::new(format!("kind {kind}"), NVTE_ERROR_INVALID_ENUM, "kind", move |c| c.set("kind", kind)));
    let gated = f64::from(NVTE_ACTIVATION_SWIGLU);
    let shape =
        Fault::new("gated, with an input that has no second half", NVTE_ERROR_INVALID_SHAPE, "input", move |c| c.set("kind", gated));
    unknown.into_iter().chain([shape]).collect()
}

/// What an output that is not FP8 cannot have.
fn plain_output_faults() -> Vec<Fault> {
    let field = |name: &'static str, change: fn(&mut nvte_tensor_t)| {
        Fault::new(format!("output.{name} of f32"), NVTE_ERROR_UNSUPPORTED, format!("output.{name}"), move |c| {
            let t = c.tensor_mut("output");
            // The memory of an FP8 output holds a quarter of the elements.
            (t.dtype, t.scaling, t.amax) = (NVTE_F32, NVTE_SCALING_NONE, ptr::null_mut());
            let fp8 = *t;
            (t.data_t, t.scale, t.scale_inv) = (ptr::null_mut(), ptr::null(), ptr::null_mut());
            match name {
                "data_t" => t.data_t = fp8.data_t,
                "scale" => t.scale = fp8.scale,
                _ => t.scale_inv = fp8.scale_inv,
            }
            change(t);
        })
    };
    vec![field("data_t", |_| ()), field("scale", |_| ()), field("scale_inv", |_| ())]
}

pub fn functions() -> Vec<Function> {
    let mut fwd = Function::new("nvte_activation_fwd", |c| {
        // SAFETY: the structs live in `c`; faults are what the function must see.
        unsafe { nvte_activation_fwd(c.ctx, c.number("kind") as i32, c.tensor("input"), c.tensor("output"), c.stream) }
    });
    fwd.matrices = vec![
        Matrix::new("input", Input, DType::Bf16, 5, 12),
        Matrix::new("output", Output, DType::E4m3, 5, 12).with_transpose().refusing(DType::E4m3),
    ];
    fwd.numbers = vec![("kind", f64::from(NVTE_ACTIVATION_GELU))];
    fwd.faults = kind_faults();
    fwd.faults.extend(plain_output_faults());

    let mut bwd = Function::new("nvte_activation_bwd", |c| {
        let args = nvte_activation_bwd_args_t {
            struct_size: c.struct_size::<nvte_activation_bwd_args_t>(),
            kind: c.number("kind") as i32,
            dy: c.tensor("dy"),
            input: c.tensor("input"),
            output: c.tensor("output"),
            dbias: c.pointer("dbias"),
            dbias_dtype: c.number("dbias_dtype") as i32,
            accumulate: c.number("accumulate") as i32,
            workspace: c.workspace,
            workspace_bytes: c.workspace_bytes,
        };
        // SAFETY: as above.
        unsafe { nvte_activation_bwd(c.ctx, c.args(&args), c.stream) }
    });
    bwd.matrices = vec![
        Matrix::new("dy", Input, DType::F16, 6, 8),
        Matrix::new("input", Input, DType::Bf16, 6, 8),
        Matrix::new("output", Output, DType::E5m2, 6, 8).with_transpose().refusing(DType::E5m2),
    ];
    bwd.pointers = vec![Pointer::words("dbias", Output, 8).optional()];
    bwd.workspace = Some(|c| {
        let mut bytes = 0;
        // SAFETY: a live number.
        assert_eq!(unsafe { nvte_activation_bwd_workspace(c.ctx, NVTE_ACTIVATION_SILU, 6, 8, &mut bytes) }, NVTE_OK);
        bytes
    });
    bwd.numbers = vec![("kind", f64::from(NVTE_ACTIVATION_SILU)), ("dbias_dtype", f64::from(NVTE_F32)), ("accumulate", 0.0)];
    bwd.has_args = true;
    bwd.faults = kind_faults();
    bwd.faults.extend(plain_output_faults());
    for (name, value, status) in [
        ("dbias_dtype", -1.0, NVTE_ERROR_INVALID_ENUM),
        ("dbias_dtype", 5.0, NVTE_ERROR_INVALID_ENUM),
        ("dbias_dtype", f64::from(NVTE_E4M3), NVTE_ERROR_INVALID_DTYPE),
        ("accumulate", 2.0, NVTE_ERROR_INVALID_ENUM),
    ] {
        let text = if status == NVTE_ERROR_INVALID_DTYPE { "dbias" } else { name };
        bwd.faults.push(Fault::new(format!("{name} = {value}"), status, text, move |c| c.set(name, value)));
    }
    vec![fwd, workspace_query(), bwd]
}

fn workspace_query() -> Function {
    let mut f = Function::new("nvte_activation_bwd_workspace", |c| {
        let (mut bytes, wanted) = (0xA5u64, c.number("out") as i32 == 1);
        let out = if wanted { &mut bytes } else { ptr::null_mut() };
        let (kind, rows, hidden) = (c.number("kind") as i32, c.number("rows") as i64, c.number("hidden") as i64);
        // SAFETY: a live or null out-pointer.
        let status = unsafe { nvte_activation_bwd_workspace(c.ctx, kind, rows, hidden, out) };
        assert!(status == NVTE_OK || bytes == 0xA5, "a refused query wrote");
        status
    });
    f.numbers = vec![("kind", f64::from(NVTE_ACTIVATION_SWIGLU)), ("rows", 6.0), ("hidden", 8.0), ("out", 1.0)];
    (f.has_memory, f.prepares) = (false, false);
    f.faults = vec![
        Fault::new("kind", NVTE_ERROR_INVALID_ENUM, "kind", |c| c.set("kind", 77.0)),
        Fault::new("rows", NVTE_ERROR_INVALID_SHAPE, "rows", |c| c.set("rows", -1.0)),
        Fault::new("hidden", NVTE_ERROR_INVALID_SHAPE, "hidden", |c| c.set("hidden", -1.0)),
        Fault::new("overflow", NVTE_ERROR_SIZE_OVERFLOW, "input", |c| c.set("hidden", 2f64.powi(62))),
        Fault::new("bytes", NVTE_ERROR_NULL_POINTER, "bytes", |c| c.set("out", 0.0)),
    ];
    f
}

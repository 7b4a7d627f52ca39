//! Casts, dequantize, transposes, amax.

use std::ptr;

use nvte::{
    capi::{amax::*, cast::*, dequantize::*, types::*},
    DType,
};

use super::framework::{Call, Fault, Function, Input, Layout, Matrix, Output, Pointer};

fn pair() -> Vec<Matrix> {
    vec![Matrix::new("input", Input, DType::Bf16, 5, 12), Matrix::new("output", Output, DType::E4m3, 5, 12).with_transpose()]
}

/// What the options of current scaling may not be.
fn scaling_faults() -> Vec<Fault> {
    let mut out = Vec::new();
    for (name, values, status) in [
        ("margin", &[-65.0, 65.0, f64::from(i32::MIN)][..], NVTE_ERROR_INVALID_VALUE),
        ("epsilon", &[-1.0, f64::NAN, f64::INFINITY], NVTE_ERROR_INVALID_VALUE),
        ("power_of_two", &[-1.0, 2.0], NVTE_ERROR_INVALID_ENUM),
    ] {
        for v in values.iter().copied() {
            out.push(Fault::new(format!("{name} = {v}"), status, name, move |c| c.set(name, v)));
        }
    }
    out
}

fn current() -> Function {
    let mut f = Function::new("nvte_cast_to_fp8_current", |c| {
        let args = nvte_cast_current_args_t {
            struct_size: c.struct_size::<nvte_cast_current_args_t>(),
            margin: c.number("margin") as i32,
            epsilon: c.number("epsilon") as f32,
            power_of_two: c.number("power_of_two") as i32,
            input: c.tensor("input"),
            output: c.tensor("output"),
            workspace: c.workspace,
            workspace_bytes: c.workspace_bytes,
        };
        // SAFETY: the structs live in `c` and here; faults are what the function must see.
        unsafe { nvte_cast_to_fp8_current(c.ctx, c.args(&args), c.stream) }
    });
    f.matrices = pair();
    f.workspace = Some(|c| {
        let mut bytes = 0;
        // SAFETY: a live number.
        assert_eq!(unsafe { nvte_cast_to_fp8_current_workspace(c.ctx, &mut bytes) }, NVTE_OK);
        bytes
    });
    f.numbers = vec![("margin", 0.0), ("epsilon", 0.0), ("power_of_two", 0.0)];
    f.has_args = true;
    f.faults = scaling_faults();
    f
}

fn dbias() -> Function {
    let mut f = Function::new("nvte_cast_dbias", |c| {
        let args = nvte_cast_dbias_args_t {
            struct_size: c.struct_size::<nvte_cast_dbias_args_t>(),
            dbias_dtype: c.number("dbias_dtype") as i32,
            input: c.tensor("input"),
            output: c.tensor("output"),
            dbias: c.pointer("dbias"),
            accumulate: c.number("accumulate") as i32,
            current: c.number("current") as i32,
            margin: c.number("margin") as i32,
            epsilon: c.number("epsilon") as f32,
            power_of_two: c.number("power_of_two") as i32,
            reserved: c.number("reserved") as u32,
            workspace: c.workspace,
            workspace_bytes: c.workspace_bytes,
        };
        // SAFETY: the structs live in `c` and here; faults are what the function must see.
        unsafe { nvte_cast_dbias(c.ctx, c.args(&args), c.stream) }
    });
    f.matrices = pair();
    f.matrices[1].required = false;
    f.pointers = vec![Pointer::words("dbias", Output, 12)];
    f.workspace = Some(|c| {
        let mut bytes = 0;
        // SAFETY: a live number.
        assert_eq!(unsafe { nvte_cast_dbias_workspace(c.ctx, 5, 12, &mut bytes) }, NVTE_OK);
        bytes
    });
    f.numbers = vec![
        ("dbias_dtype", 0.0),
        ("accumulate", 0.0),
        ("current", 1.0),
        ("margin", 0.0),
        ("epsilon", 0.0),
        ("power_of_two", 0.0),
        ("reserved", 0.0),
    ];
    f.has_args = true;
    f.faults = scaling_faults();
    for (name, value, status) in [
        ("dbias_dtype", 3.0, NVTE_ERROR_INVALID_DTYPE),
        ("dbias_dtype", 9.0, NVTE_ERROR_INVALID_ENUM),
        ("accumulate", 2.0, NVTE_ERROR_INVALID_ENUM),
        ("current", -1.0, NVTE_ERROR_INVALID_ENUM),
        ("reserved", 1.0, NVTE_ERROR_UNSUPPORTED),
    ] {
        let text = if status == NVTE_ERROR_INVALID_DTYPE { "dbias" } else { name };
        f.faults.push(Fault::new(format!("{name} = {value}"), status, text, move |c| c.set(name, value)));
    }
    let alone = |c: &mut Call| c.leave_out("output");
    f.faults.push(Fault::new("current scaling without an output", NVTE_ERROR_UNSUPPORTED, "current", alone));
    f
}

/// The queries write a number on the host and nothing else.
fn queries() -> Vec<Function> {
    let current = Function::new("nvte_cast_to_fp8_current_workspace", |c| {
        let mut bytes = 0;
        let to = if c.number("null") == 1.0 { ptr::null_mut() } else { &mut bytes };
        // SAFETY: null or a live number.
        unsafe { nvte_cast_to_fp8_current_workspace(c.ctx, to) }
    });
    let mut dbias = Function::new("nvte_cast_dbias_workspace", |c| {
        let mut bytes = 0;
        let to = if c.number("null") == 1.0 { ptr::null_mut() } else { &mut bytes };
        let size = |name| match c.number(name) {
            1e30 => 1 << 62,
            v => v as i64,
        };
        // SAFETY: null or a live number.
        unsafe { nvte_cast_dbias_workspace(c.ctx, size("rows"), size("cols"), to) }
    });
    dbias.numbers = vec![("rows", 5.0), ("cols", 12.0)];
    for name in ["rows", "cols"] {
        dbias.faults.push(Fault::new(format!("negative {name}"), NVTE_ERROR_INVALID_SHAPE, name, move |c| c.set(name, -1.0)));
        dbias.faults.push(Fault::new(format!("huge {name}"), NVTE_ERROR_SIZE_OVERFLOW, "input", move |c| c.set(name, 1e30)));
    }
    let mut all = vec![current, dbias];
    for f in &mut all {
        (f.has_memory, f.prepares) = (false, false);
        f.numbers.push(("null", 0.0));
        f.faults.push(Fault::new("bytes: NULL", NVTE_ERROR_NULL_POINTER, "bytes", |c| c.set("null", 1.0)));
    }
    all
}

fn transpose() -> Function {
    let mut f = Function::new("nvte_fp8_transpose", |c| {
        // SAFETY: the structs live in `c`; faults are what the function must see.
        unsafe { nvte_fp8_transpose(c.ctx, c.tensor("input"), c.tensor("output"), c.stream) }
    });
    f.matrices = vec![
        Matrix::new("input", Input, DType::E5m2, 5, 12).refusing(DType::F16),
        Matrix::new("output", Output, DType::E5m2, 5, 12).refusing(DType::E4m3).layout(Layout::Transposed),
    ];
    f
}

pub fn functions() -> Vec<Function> {
    let mut cast = Function::new("nvte_cast_to_fp8", |c| {
        // SAFETY: the structs live in `c`; faults are what the function must see.
        unsafe { nvte_cast_to_fp8(c.ctx, c.tensor("input"), c.tensor("output"), c.stream) }
    });
    cast.matrices = pair();
    let mut amax = Function::new("nvte_amax", |c| {
        // SAFETY: as above.
        unsafe { nvte_amax(c.ctx, c.tensor("input"), c.pointer("amax"), c.stream) }
    });
    amax.matrices = vec![Matrix::new("input", Input, DType::F16, 5, 12)];
    amax.pointers = vec![Pointer::new("amax", Output, 4, 4, true)];
    let mut dequantize = Function::new("nvte_dequantize", |c| {
        // SAFETY: as above.
        unsafe { nvte_dequantize(c.ctx, c.tensor("input"), c.tensor("output"), c.stream) }
    });
    dequantize.matrices = vec![Matrix::new("input", Input, DType::E4m3, 5, 12), Matrix::new("output", Output, DType::F16, 5, 12)];
    let mut all = vec![cast, current(), dbias(), amax, dequantize, transpose()];
    all.extend(queries());
    all
}

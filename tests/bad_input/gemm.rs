//! Matrix products.

use std::{mem, ptr};

use nvte::{
    capi::{gemm::*, types::*},
    DType,
};

use super::framework::{create, message, Call, Fault, Function, Input, Matrix, Output, Pointer};
use crate::common::on_cuda;

/// What [`the_rest`] tries.
pub const BY_HAND: [&str; 4] = ["nvte_gemm_workspace", "nvte_gemm_prepare", "nvte_gemm_plans_export", "nvte_gemm_plans_import"];

fn args(c: &Call) -> nvte_gemm_args_t {
    nvte_gemm_args_t {
        struct_size: c.struct_size::<nvte_gemm_args_t>(),
        accumulate: c.number("accumulate") as i32,
        transpose_a: c.number("transpose_a") as i32,
        transpose_b: c.number("transpose_b") as i32,
        epilogue: c.number("epilogue") as i32,
        bias_dtype: c.number("bias_dtype") as i32,
        alpha: 1.0,
        beta: 1.0,
        a: c.tensor("a"),
        b: c.tensor("b"),
        bias: c.pointer("bias"),
        c: c.tensor("c"),
        d: c.tensor("d"),
        workspace: c.workspace,
        workspace_bytes: c.workspace_bytes,
    }
}

fn described(mut f: Function, operand: DType, d: Matrix, c: DType) -> Function {
    const N: i64 = 7;
    f.has_args = true;
    f.matrices = vec![
        Matrix::new("a", Input, operand, 5, 12),
        Matrix::new("b", Input, operand, N, 12),
        Matrix::new("c", Input, c, 5, N).refusing(DType::E5m2),
        d,
    ];
    f.pointers = vec![Pointer::new("bias", Input, 4 * N as usize, 4, false)];
    f.workspace = Some(|c| {
        let mut bytes = 0;
        // SAFETY: live structs.
        assert_eq!(unsafe { nvte_gemm_workspace(c.ctx, &args(c), &mut bytes) }, NVTE_OK);
        bytes
    });
    let none = NVTE_EPILOGUE_NONE;
    f.numbers = vec![
        ("accumulate", NVTE_ACCUMULATE_PRECISE.into()),
        ("transpose_a", 0.0),
        ("transpose_b", 0.0),
        ("epilogue", none.into()),
        ("bias_dtype", NVTE_F32.into()),
    ];
    let number = |name: &'static str, v: i32, status: i32| {
        Fault::new(format!("{name} = {v}"), status, name, move |c: &mut Call| c.set(name, v.into()))
    };
    for v in [-1, 0, 3, i32::MAX] {
        f.faults.push(number("accumulate", v, NVTE_ERROR_INVALID_ENUM));
    }
    for v in [-1, 2] {
        f.faults.push(number("transpose_a", v, NVTE_ERROR_INVALID_ENUM));
        f.faults.push(number("transpose_b", v, NVTE_ERROR_INVALID_ENUM));
    }
    f.faults.push(number("epilogue", 7, NVTE_ERROR_INVALID_ENUM));
    f.faults.push(number("epilogue", 1, NVTE_ERROR_UNSUPPORTED));
    f.faults.push(number("bias_dtype", 9, NVTE_ERROR_INVALID_ENUM));
    f.faults.push(number("bias_dtype", NVTE_E4M3, NVTE_ERROR_INVALID_DTYPE));
    // Sizes no longer fit.
    f.faults.push(Fault::new("transpose_a", NVTE_ERROR_INVALID_SHAPE, "a.cols", |c: &mut Call| c.set("transpose_a", 1.0)));
    f.faults.push(Fault::new("transpose_b", NVTE_ERROR_INVALID_SHAPE, "b.cols", |c: &mut Call| c.set("transpose_b", 1.0)));
    f
}

pub fn functions() -> Vec<Function> {
    let fp8 = Function::new("nvte_fp8_gemm", |c| {
        let g = args(c);
        // SAFETY: the structs live in `c` and `g`; faults are what the function must see.
        unsafe { nvte_fp8_gemm(c.ctx, c.args(&g), c.stream) }
    });
    let high = Function::new("nvte_gemm", |c| {
        let g = args(c);
        // SAFETY: as above.
        unsafe { nvte_gemm(c.ctx, c.args(&g), c.stream) }
    });
    let fp8 = described(fp8, DType::E4m3, Matrix::new("d", Output, DType::E4m3, 5, 7).refusing(DType::E4m3), DType::F32);
    let mut high =
        described(high, DType::Bf16, Matrix::new("d", Output, DType::Bf16, 5, 7).refusing(DType::Bf16).may_be(&["c"]), DType::Bf16);
    for slot in ["scale", "scale_inv", "amax"] {
        high.faults.push(Fault::new(format!("d.{slot} of bf16"), NVTE_ERROR_UNSUPPORTED, format!("d.{slot}"), move |c: &mut Call| {
            let p = c.pointer::<f32>("bias");
            let d = c.tensor_mut("d");
            match slot {
                "scale" => d.scale = p,
                "scale_inv" => d.scale_inv = p.cast(),
                _ => d.amax = p,
            }
        }));
    }
    let product = || Matrix::new("d", Output, DType::F32, 5, 7).refusing(DType::F32).may_be(&["c"]);
    let mut timed = Function::new("nvte_gemm_prepare", |c| {
        let g = args(c);
        // SAFETY: as above.
        unsafe { nvte_gemm_prepare(c.ctx, c.args(&g), c.number("candidates") as u32, c.stream) }
    });
    timed = described(timed, DType::E4m3, product(), DType::F32);
    let mut query = Function::new("nvte_gemm_workspace", |c| {
        let (g, mut bytes) = (args(c), 77);
        // SAFETY: as above.
        let status = unsafe { nvte_gemm_workspace(c.ctx, c.args(&g), &mut bytes) };
        assert!(status == NVTE_OK || bytes == 77, "written on an error");
        status
    });
    query = described(query, DType::E4m3, product(), DType::F32);
    (query.has_memory, query.workspace) = (false, None);
    for f in [&mut timed, &mut query] {
        // What `a` is decides what `b` must be; timing writes only where there is something to time.
        f.matrices[0].refused = DType::E4m3;
        (f.prepares, f.writes) = (false, false);
    }
    timed.numbers.push(("candidates", 1.0));
    for v in [0.0, 65.0] {
        timed.faults.push(Fault::number("candidates", v, NVTE_ERROR_INVALID_VALUE));
    }
    vec![fp8, high, timed, query]
}

/// Functions that do not fit the pattern.
pub fn the_rest() {
    let ctx = create();
    let refused = |status: i32, wanted: i32, text: &str| {
        assert_eq!(status, wanted, "{}", message());
        assert!(message().contains(text), "{}", message());
    };
    // SAFETY: plain C structs, for which zeros are valid; then calls with live structs, on pointers that are not read.
    unsafe {
        let tensor = |rows, cols| nvte_tensor_t {
            struct_size: mem::size_of::<nvte_tensor_t>() as u32,
            dtype: NVTE_BF16,
            rows,
            cols,
            ld: cols,
            ..mem::zeroed()
        };
        let (a, b, d) = (tensor(5, 12), tensor(7, 12), tensor(5, 7));
        let mut args = nvte_gemm_args_t { struct_size: mem::size_of::<nvte_gemm_args_t>() as u32, accumulate: 1, ..mem::zeroed() };
        (args.a, args.b, args.d, args.alpha) = (&a, &b, &d, 1.0);
        let mut bytes = 77u64;
        refused(nvte_gemm_workspace(ctx, &args, ptr::null_mut()), NVTE_ERROR_NULL_POINTER, "bytes");
        refused(nvte_gemm_workspace(ptr::null_mut(), &args, &mut bytes), NVTE_ERROR_INVALID_HANDLE, "context");
        refused(nvte_gemm_workspace(ctx, ptr::null(), &mut bytes), NVTE_ERROR_NULL_POINTER, "args");
        let mut bad = args;
        bad.struct_size += 8;
        refused(nvte_gemm_workspace(ctx, &bad, &mut bytes), NVTE_ERROR_INVALID_STRUCT_SIZE, "args.struct_size");
        assert!(message().ends_with(&format!(": must be {}", mem::size_of::<nvte_gemm_args_t>())), "{}", message());
        let other = tensor(8, 12);
        bad = nvte_gemm_args_t { b: &other, ..args };
        refused(nvte_gemm_workspace(ctx, &bad, &mut bytes), NVTE_ERROR_INVALID_SHAPE, "b.rows");
        assert_eq!(bytes, 77, "written on an error");
        assert_eq!(nvte_gemm_workspace(ctx, &args, &mut bytes), NVTE_OK, "{}", message());

        for stream in [ptr::null_mut(), nvte::Stream::PREPARE.0] {
            refused(nvte_gemm_prepare(ctx, &args, 4, stream), NVTE_ERROR_NULL_POINTER, "d.data");
        }
        refused(nvte_gemm_prepare(ctx, ptr::null(), 4, ptr::null_mut()), NVTE_ERROR_NULL_POINTER, "args");
        refused(nvte_gemm_prepare(ptr::null_mut(), &args, 4, ptr::null_mut()), NVTE_ERROR_INVALID_HANDLE, "context");

        refused(nvte_gemm_plans_export(ctx, ptr::null_mut(), 5, ptr::null_mut()), NVTE_ERROR_NULL_POINTER, "buffer");
        refused(nvte_gemm_plans_export(ptr::null_mut(), ptr::null_mut(), 0, ptr::null_mut()), NVTE_ERROR_INVALID_HANDLE, "context");
        refused(nvte_gemm_plans_import(ctx, ptr::null()), NVTE_ERROR_NULL_POINTER, "text");
        refused(nvte_gemm_plans_import(ptr::null_mut(), c"".as_ptr()), NVTE_ERROR_INVALID_HANDLE, "context");
        refused(nvte_gemm_plans_import(ctx, c"nonsense".as_ptr()), NVTE_ERROR_UNSUPPORTED, "text");
        let mut size = 0;
        assert_eq!(nvte_gemm_plans_export(ctx, ptr::null_mut(), 0, &mut size), NVTE_OK);
        if on_cuda() {
            let mut text = vec![0u8; size];
            assert_eq!(nvte_gemm_plans_export(ctx, text.as_mut_ptr().cast(), size, &mut size), NVTE_OK);
            text.pop();
            text.extend(b"1 2 3 four\n\0");
            refused(nvte_gemm_plans_import(ctx, text.as_ptr().cast()), NVTE_ERROR_INVALID_VALUE, "1 2 3 four");
        }
        assert_eq!(nvte::capi::context::nvte_context_destroy(ctx), NVTE_OK);
    }
}

//! Casts.

use nvte::{capi::cast::*, DType};

use super::framework::{Function, Input, Matrix, Output};

pub fn functions() -> Vec<Function> {
    let mut cast = Function::new("nvte_cast_to_fp8", |c| {
        // SAFETY: the structs live in `c`; faults are what the function must see.
        unsafe { nvte_cast_to_fp8(c.ctx, c.tensor("input"), c.tensor("output"), c.stream) }
    });
    cast.matrices =
        vec![Matrix::new("input", Input, DType::Bf16, 5, 12), Matrix::new("output", Output, DType::E4m3, 5, 12).with_transpose()];
    vec![cast]
}

//! The delayed-scaling update.

use nvte::capi::{scaling::*, types::*};

use super::framework::{Fault, Function, Input, Output, Pointer};

const SLOTS: usize = 5;
const STEPS: usize = 3;

pub fn functions() -> Vec<Function> {
    let mut f = Function::new("nvte_scaling_update", |c| {
        let args = nvte_scaling_update_args_t {
            struct_size: c.struct_size::<nvte_scaling_update_args_t>(),
            algo: c.number("algo") as i32,
            slots: c.number("slots") as i64,
            history_len: c.number("history_len") as i64,
            live: c.pointer("live"),
            scale: c.pointer("scale"),
            history: c.pointer("history"),
            slot_stride: c.number("slot_stride") as i64,
            step_stride: c.number("step_stride") as i64,
            format_max: c.pointer("format_max"),
            nonfinite: c.pointer("nonfinite"),
            scale_inv: c.pointer("scale_inv"),
            counter: c.pointer("counter"),
            interval: c.number("interval") as u32,
            margin: c.number("margin") as i32,
            epsilon: c.number("epsilon") as f32,
            power_of_two: c.number("power_of_two") as i32,
        };
        // SAFETY: the struct lives here; faults are what the function must see.
        unsafe { nvte_scaling_update(c.ctx, c.args(&args), c.stream) }
    });
    let array = |name, role, len: usize, required| Pointer::new(name, role, 4 * len, 4, required);
    f.pointers = vec![
        array("live", Output, SLOTS, true),
        array("scale", Output, SLOTS, true),
        array("history", Output, SLOTS * STEPS, true),
        array("format_max", Input, SLOTS, true),
        array("nonfinite", Output, SLOTS, false),
        array("scale_inv", Output, SLOTS, false),
        array("counter", Output, 1, true),
    ];
    f.numbers = vec![
        ("algo", 0.0),
        ("slots", SLOTS as f64),
        ("history_len", STEPS as f64 + 1.0),
        ("slot_stride", STEPS as f64),
        ("step_stride", 1.0),
        ("interval", 2.0),
        ("margin", 0.0),
        ("epsilon", 0.0),
        ("power_of_two", 0.0),
    ];
    f.has_args = true;
    for (name, value, status, text) in [
        ("algo", 2.0, NVTE_ERROR_INVALID_ENUM, "algo"),
        ("algo", -1.0, NVTE_ERROR_INVALID_ENUM, "algo"),
        ("slots", -1.0, NVTE_ERROR_INVALID_SHAPE, "slots"),
        ("slots", 1e18, NVTE_ERROR_SIZE_OVERFLOW, "slots"),
        ("history_len", 0.0, NVTE_ERROR_INVALID_VALUE, "history_len"),
        ("history_len", -3.0, NVTE_ERROR_INVALID_VALUE, "history_len"),
        ("history_len", 1e19, NVTE_ERROR_INVALID_STRIDE, "slot_stride"),
        ("slot_stride", 0.0, NVTE_ERROR_INVALID_STRIDE, "slot_stride"),
        ("slot_stride", 2.0, NVTE_ERROR_INVALID_STRIDE, "slot_stride"),
        ("slot_stride", 1e19, NVTE_ERROR_SIZE_OVERFLOW, "history"),
        ("step_stride", -1.0, NVTE_ERROR_INVALID_STRIDE, "step_stride"),
        ("step_stride", 2.0, NVTE_ERROR_INVALID_STRIDE, "slot_stride"),
        ("interval", 0.0, NVTE_ERROR_INVALID_VALUE, "interval"),
        ("interval", 1048577.0, NVTE_ERROR_INVALID_VALUE, "interval"),
        ("margin", 65.0, NVTE_ERROR_INVALID_VALUE, "margin"),
        ("epsilon", f64::NAN, NVTE_ERROR_INVALID_VALUE, "epsilon"),
        ("epsilon", -0.5, NVTE_ERROR_INVALID_VALUE, "epsilon"),
        ("power_of_two", 3.0, NVTE_ERROR_INVALID_ENUM, "power_of_two"),
    ] {
        f.faults.push(Fault::new(format!("{name} = {value}"), status, text, move |c| c.set(name, value)));
    }
    vec![f]
}

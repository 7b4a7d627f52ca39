//! The processor's floating-point mode. A program may have subnormals flushed to zero (`torch.set_flush_denormal`; any library that was
//! linked with -ffast-math sets it when it is loaded) or another rounding; results of the CPU back end, and tables made on the host, do not
//! change with it.

/// IEEE's own arithmetic (subnormals as they are, to nearest even) on this thread, until it is dropped.
pub(crate) struct Ieee(Option<control::Mode>);

impl Ieee {
    pub(crate) fn enter() -> Self {
        let before = control::read();
        let plain = before & !control::OTHER;
        if plain == before {
            return Self(None);
        }
        control::write(plain);
        Self(Some(before))
    }

    /// For a thread that does nothing else.
    pub(crate) fn stay() {
        std::mem::forget(Self::enter());
    }
}

impl Drop for Ieee {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            control::write(before);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod control {
    use std::arch::asm;

    pub(super) type Mode = u32;
    /// Flush to zero, rounding, subnormals are zero: bits 15, 13 to 14, and 6 of MXCSR.
    pub(super) const OTHER: Mode = 0xE040;

    pub(super) fn read() -> Mode {
        let mut mode = 0;
        // SAFETY: writes the four bytes of `mode`.
        unsafe { asm!("stmxcsr [{}]", in(reg) &mut mode, options(nostack, preserves_flags)) };
        mode
    }

    pub(super) fn write(mode: Mode) {
        // SAFETY: reads four bytes, which came from `read`; only bits of `OTHER` differ from what is set.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &mode, options(nostack, preserves_flags)) }
    }
}

#[cfg(target_arch = "aarch64")]
mod control {
    use std::arch::asm;

    pub(super) type Mode = u64;
    /// Flush to zero, rounding, the same of f16: bits 24, 22 to 23, and 19 of FPCR.
    pub(super) const OTHER: Mode = 0x01C8_0000;

    pub(super) fn read() -> Mode {
        let mode;
        // SAFETY: reads a register.
        unsafe { asm!("mrs {}, fpcr", out(reg) mode, options(nostack, preserves_flags)) };
        mode
    }

    pub(super) fn write(mode: Mode) {
        // SAFETY: what came from `read`; only bits of `OTHER` differ from what is set.
        unsafe { asm!("msr fpcr, {}", in(reg) mode, options(nostack, preserves_flags)) }
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod control {
    pub(super) type Mode = u32;
    pub(super) const OTHER: Mode = 0;

    pub(super) fn read() -> Mode {
        0
    }

    pub(super) fn write(_: Mode) {}
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::hint::black_box;

    use super::*;
    use crate::{
        backend::cpu::CpuBackend,
        backend::Backend,
        context::{ContextOptions, Stream},
        ops::{cast::CastJob, rope::rope_table},
        tensor::{DType, Ptr, TensorView},
    };

    /// Codes of `x` under a scale of 2^126, by a back end that this thread makes.
    fn codes(x: &[f32], threads: usize) -> Vec<u8> {
        let backend = CpuBackend::new(&ContextOptions { num_threads: Some(threads), ..Default::default() }).unwrap();
        let (scale, mut codes) = (2f32.powi(126), vec![0u8; x.len()]);
        let view = |dtype, p: Ptr| TensorView::new(dtype, p, 256, x.len() as i64 / 256);
        let input = view(DType::F32, Ptr::from(x.as_ptr().cast_mut().cast::<u8>()));
        let output = view(DType::E5m2, Ptr::from(codes.as_mut_ptr()));
        let output = TensorView { scale: Ptr::from(std::ptr::from_ref(&scale).cast_mut().cast::<u8>()), ..output };
        // SAFETY: all of it is live, and of the sizes said.
        unsafe { backend.cast(&CastJob::new(input, output), Stream::NULL) }.unwrap();
        codes
    }

    #[test]
    fn another_mode_changes_no_result_and_stays() {
        // Subnormals, of which a mode that flushes them would make zeros.
        let x: Vec<f32> = (1..=1 << 18).map(|i| f32::from_bits((i << 4) + 256)).collect();
        let want = codes(&x, 1);
        let table = || {
            let (mut cos, mut sin) = ([0f32; 512], [0f32; 512]);
            rope_table(1000, 64, 1e4, &mut cos, &mut sin).unwrap();
            (cos, sin)
        };
        let angles = table();
        assert!(want.iter().all(|c| *c != 0));
        std::thread::spawn(move || {
            let before = control::read();
            // All three, rounding upwards.
            let other = before | 0xC040;
            control::write(other);
            assert_eq!(black_box(f32::from_bits(1)) * black_box(2f32.powi(126)), 0.0, "the mode has no effect");
            for threads in [1, 3] {
                assert!(codes(&x, threads) == want, "{threads} threads");
                assert_eq!(control::read() & control::OTHER, other & control::OTHER);
            }
            assert!(table() == angles, "rope_table");
            control::write(before);
        })
        .join()
        .unwrap();
    }
}

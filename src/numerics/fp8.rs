//! The two FP8 formats: encode, decode, predicates, constants (NUMERICS sections 1 and 2).

/// One FP8 format. Codes are `u8`: sign, exponent, mantissa from the top bit down.
pub trait Fp8Format: Copy + Send + Sync + 'static {
    /// Mantissa bits.
    const MANTISSA_BITS: u32;
    /// Exponent bias.
    const BIAS: u32;
    /// Code of the largest finite value.
    const MAX_CODE: u8;
    /// Largest finite value.
    const MAX: f32;
    /// Least positive normal value.
    const MIN_NORMAL: f32;
    /// Least positive subnormal value.
    const MIN_SUBNORMAL: f32;
    /// The code that casts write for NaN.
    const NAN_CODE: u8 = 0x7F;
    /// Name as users write it.
    const NAME: &'static str;

    /// Whether the code is a NaN.
    fn is_nan(code: u8) -> bool;

    /// Whether the code is an infinity.
    fn is_infinite(code: u8) -> bool;

    /// `v` rounded once to nearest even, saturating at the largest finite value (infinities too); NaN gives 0x7F; the sign of zero stays.
    ///
    /// Branch-free, so that a loop over it vectorises.
    #[inline(always)]
    fn encode(v: f32) -> u8 {
        let bits = v.to_bits();
        let sign = (bits >> 24) & 0x80;
        let abs = bits & 0x7FFF_FFFF;
        let shift = 23 - Self::MANTISSA_BITS;
        // Normal range: round the mantissa in integer arithmetic; a carry runs into the exponent as it should.
        // `min` first, so that the rounding of huge values and NaN cannot wrap.
        let clamped = abs.min(Self::MAX.to_bits());
        let rounded = clamped + ((1 << (shift - 1)) - 1) + ((clamped >> shift) & 1);
        let normal = (rounded >> shift).wrapping_sub((127 - Self::BIAS) << Self::MANTISSA_BITS);
        // Below the least normal: the f32 adder rounds to the subnormal grid.
        let magic = f32::from_bits((127 + 23 + 1 - Self::BIAS - Self::MANTISSA_BITS) << 23);
        let subnormal = (f32::from_bits(clamped) + magic).to_bits().wrapping_sub(magic.to_bits());
        let code = if clamped < Self::MIN_NORMAL.to_bits() { subnormal } else { normal };
        (if abs > 0x7F80_0000 { Self::NAN_CODE as u32 } else { sign | code }) as u8
    }

    /// The exact value of a code.
    #[inline(always)]
    fn decode(code: u8) -> f32 {
        let sign = u32::from(code & 0x80) << 24;
        let abs = u32::from(code & 0x7F);
        if Self::is_nan(code) {
            return f32::from_bits(0x7FFF_FFFF);
        }
        if Self::is_infinite(code) {
            return f32::from_bits(sign | 0x7F80_0000);
        }
        let (e, m) = (abs >> Self::MANTISSA_BITS, abs & ((1 << Self::MANTISSA_BITS) - 1));
        let magnitude = if e == 0 {
            m as f32 * Self::MIN_SUBNORMAL
        } else {
            f32::from_bits((e + 127 - Self::BIAS) << 23 | m << (23 - Self::MANTISSA_BITS))
        };
        f32::from_bits(sign | magnitude.to_bits())
    }

    /// All 256 values, indexed by code.
    fn table() -> [f32; 256] {
        std::array::from_fn(|i| Self::decode(i as u8))
    }
}

/// E4M3 ("fn"): 4 exponent bits, 3 mantissa bits, no infinity.
#[derive(Clone, Copy, Debug)]
pub struct E4M3;

impl Fp8Format for E4M3 {
    const MANTISSA_BITS: u32 = 3;
    const BIAS: u32 = 7;
    const MAX_CODE: u8 = 0x7E;
    const MAX: f32 = 448.0;
    const MIN_NORMAL: f32 = 1.0 / 64.0;
    const MIN_SUBNORMAL: f32 = 1.0 / 512.0;
    const NAME: &'static str = "e4m3";

    #[inline(always)]
    fn is_nan(code: u8) -> bool {
        code & 0x7F == 0x7F
    }

    #[inline(always)]
    fn is_infinite(_code: u8) -> bool {
        false
    }
}

/// E5M2: 5 exponent bits, 2 mantissa bits, infinities and NaNs as in IEEE formats.
#[derive(Clone, Copy, Debug)]
pub struct E5M2;

impl Fp8Format for E5M2 {
    const MANTISSA_BITS: u32 = 2;
    const BIAS: u32 = 15;
    const MAX_CODE: u8 = 0x7B;
    const MAX: f32 = 57344.0;
    const MIN_NORMAL: f32 = 1.0 / 16384.0;
    const MIN_SUBNORMAL: f32 = 1.0 / 65536.0;
    const NAME: &'static str = "e5m2";

    #[inline(always)]
    fn is_nan(code: u8) -> bool {
        code & 0x7F > 0x7C
    }

    #[inline(always)]
    fn is_infinite(code: u8) -> bool {
        code & 0x7F == 0x7C
    }
}

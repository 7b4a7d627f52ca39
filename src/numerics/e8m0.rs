//! E8M0: the power-of-two block scale of MX formats (NUMERICS sections 1 and 10).

/// A scale byte `b` standing for 2^(b-127); 255 is NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct E8m0(pub u8);

impl E8m0 {
    /// The NaN code.
    pub const NAN: E8m0 = E8m0(255);

    /// Whether it is the NaN code.
    pub const fn is_nan(self) -> bool {
        self.0 == 255
    }

    /// The value as f32 (2^-127 is an f32 subnormal).
    pub fn to_f32(self) -> f32 {
        match self.0 {
            255 => f32::from_bits(0x7FFF_FFFF),
            0 => f32::from_bits(0x0040_0000),
            b => f32::from_bits(u32::from(b) << 23),
        }
    }

    /// The least power of two that is not below `v`: NaN gives 255, infinity 254, zero and negative numbers 0.
    pub fn from_f32_round_up(v: f32) -> E8m0 {
        if v.is_nan() {
            return E8m0::NAN;
        }
        if v <= 0.0 {
            return E8m0(0);
        }
        let bits = v.to_bits();
        let (e, m) = (bits >> 23, bits & 0x007F_FFFF);
        // Subnormals: 2^-127 has mantissa 0x400000.
        let up = if e == 0 { u32::from(m > 0x0040_0000) } else { e + u32::from(m != 0) };
        E8m0(up.min(254) as u8)
    }

    /// Scale byte of a block: round up of `amax * (1 / format_max)`.
    pub fn from_amax(amax: f32, format_max: f32) -> E8m0 {
        Self::from_f32_round_up(amax * (1.0 / format_max))
    }
}

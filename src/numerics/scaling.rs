//! amax, scale and the delayed-scaling update as pure functions (NUMERICS sections 3 and 4).

use super::AmaxComputeAlgo;

/// The bit pattern by which amax is compared: as unsigned integers NaN > inf > every finite value.
#[inline(always)]
pub fn amax_bits(v: f32) -> u32 {
    v.to_bits() & 0x7FFF_FFFF
}

/// The bit pattern under which an amax is written: of NaN only one, since conversions and arithmetic give it different payloads on
/// different processors.
#[inline(always)]
pub fn canonical_amax(bits: u32) -> u32 {
    if bits > 0x7F80_0000 {
        0x7FFF_FFFF
    } else {
        bits
    }
}

/// How a scale follows from an amax.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleRule {
    /// Largest finite value of the format.
    pub format_max: f32,
    /// The scale is divided by 2^margin.
    pub margin: i32,
    /// Floor of the amax (does not replace NaN).
    pub epsilon: f32,
    /// Round the scale down to a power of two.
    pub power_of_two: bool,
}

impl ScaleRule {
    /// Margin 0, no floor, any scale.
    pub const fn plain(format_max: f32) -> Self {
        Self { format_max, margin: 0, epsilon: 0.0, power_of_two: false }
    }

    /// 2^-margin, exact for every margin in -126..=126.
    pub fn margin_factor(&self) -> f32 {
        f32::from_bits(((127 - self.margin) as u32) << 23)
    }
}

/// The scale for an amax; `previous` where the amax says nothing (0, inf, NaN). Always finite and positive.
#[inline]
pub fn scale_from_amax(amax: f32, rule: &ScaleRule, previous: f32) -> f32 {
    // `f32::max` would drop a NaN.
    let a = if amax < rule.epsilon { rule.epsilon } else { amax };
    if a.is_nan() || a.is_infinite() || a == 0.0 {
        return previous;
    }
    let mut s = (rule.format_max * rule.margin_factor()) / a;
    if s.is_infinite() {
        s = f32::MAX;
    }
    // Only a large margin can bring it below the normal range; it stays positive there.
    let bits = s.to_bits().max(1);
    f32::from_bits(match rule.power_of_two {
        false => bits,
        true if bits >= 0x0080_0000 => bits & 0x7F80_0000,
        true => 1 << bits.ilog2(),
    })
}

/// What one update does to one slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SlotUpdate {
    /// Nothing was recorded: live, scale and history stay.
    Unchanged,
    /// The recorded amax was inf or NaN: it is dropped and counted; scale and history stay, live becomes 0.
    NonFinite,
    /// The history shifts by one, `live` becomes its newest entry and then 0, and the scale is this.
    Rolled(f32),
}

/// One slot's update: `history` holds the L-1 older amaxes in any order; `scale_due` is false between the steps of an interval.
pub fn update_slot(
    live: f32,
    history: impl Iterator<Item = f32>,
    algo: AmaxComputeAlgo,
    rule: &ScaleRule,
    previous: f32,
    scale_due: bool,
) -> SlotUpdate {
    if live == 0.0 {
        return SlotUpdate::Unchanged;
    }
    if !live.is_finite() {
        return SlotUpdate::NonFinite;
    }
    if !scale_due {
        return SlotUpdate::Rolled(previous);
    }
    let amax = match algo {
        AmaxComputeAlgo::MostRecent => live,
        AmaxComputeAlgo::Max => f32::from_bits(history.map(amax_bits).fold(amax_bits(live), u32::max)),
    };
    SlotUpdate::Rolled(scale_from_amax(amax, rule, previous))
}

//! Cutting one buffer of the caller's into pieces. The same code measures and places, so a query never disagrees with a call.

use super::{pad, Linear};
use crate::tensor::Ptr;

/// Pieces start at multiples of this from the base: what was written in one place is found when it was moved to another.
const UNIT: u64 = 256;

/// Memory that is being handed out front to back, and the linear bound of what was handed out so far.
pub(super) struct Arena {
    base: u64,
    tokens: i64,
    offset: u64,
    bound: Linear,
}

impl Arena {
    /// Nothing is placed; only the bound matters.
    pub(super) fn measure() -> Self {
        Self { base: 0, tokens: 0, offset: 0, bound: Linear::default() }
    }

    /// Places in memory that starts at `base`, for this many tokens.
    pub(super) fn place(base: Ptr, tokens: i64) -> Self {
        Self { base: base.0, tokens, offset: 0, bound: Linear::default() }
    }

    fn take(&mut self, bytes: u64, bound: Linear) -> Ptr {
        let at = Ptr(self.base + self.offset);
        self.offset = (self.offset + bytes).next_multiple_of(UNIT);
        self.bound.per_token += bound.per_token;
        // Each piece pays for the gap behind it.
        self.bound.fixed += bound.fixed + UNIT;
        at
    }

    /// Bytes whose number does not depend on the tokens.
    pub(super) fn fixed(&mut self, bytes: u64) -> Ptr {
        self.take(bytes, Linear { per_token: 0, fixed: bytes })
    }

    /// `bytes` for each token.
    pub(super) fn per_token(&mut self, bytes: u64) -> Ptr {
        self.take(bytes * self.tokens as u64, Linear { per_token: bytes, fixed: 0 })
    }

    /// `rows` rows of one byte per token, each padded to 16.
    pub(super) fn transposed(&mut self, rows: i64) -> Ptr {
        let rows = rows as u64;
        self.take(rows * pad(self.tokens) as u64, Linear { per_token: rows, fixed: 15 * rows })
    }

    /// A size that is linear by itself.
    pub(super) fn linear(&mut self, size: Linear) -> Ptr {
        self.take(size.bytes(self.tokens), size)
    }

    pub(super) fn tokens(&self) -> i64 {
        self.tokens
    }

    /// Past the last piece; 0 where there is none.
    #[cfg(test)]
    pub(super) fn end(&self) -> u64 {
        if self.offset == 0 {
            0
        } else {
            self.base + self.offset
        }
    }

    pub(super) fn bound(&self) -> Linear {
        self.bound
    }
}

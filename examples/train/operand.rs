//! What a matrix product reads: an f32 matrix, or FP8 codes in both layouts, by recipe.

use nvte::{ops::gemm::Accumulate, Buffer, DType, Ptr, Result, TensorView};

use crate::{
    compute::Compute,
    slots::{Slot, Slots},
};

/// In which precision a model multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// f32 throughout.
    F32,
    /// FP8; scales follow from the amaxes of earlier steps.
    Delayed,
    /// FP8; each tensor is measured just before it is cast.
    Current,
}

/// One operand. A producer either writes it straight away ([`Operand::sink`], then [`Operand::settle`]), so that FP8 codes under delayed
/// scaling never exist in f32, or it is cast from a matrix that has to exist anyway.
pub struct Operand {
    precision: Precision,
    cols: usize,
    /// f32 `[rows, cols]`, where a fused producer needs it.
    staging: Option<Buffer>,
    codes: Option<Codes>,
    /// What products read in f32.
    source: std::cell::Cell<Option<TensorView>>,
}

struct Codes {
    dtype: DType,
    row_wise: Buffer,
    transposed: Buffer,
    /// Elements from one row of the transposed copy to the next: the largest number of rows.
    ld_t: usize,
    scale_inv: Buffer,
    slot: Slot,
}

/// Where an operand comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// An operation that can write FP8 itself.
    Fused,
    /// A matrix that exists in f32.
    Matrix,
}

impl Operand {
    /// Room for `rows x cols`. Under delayed scaling it takes the next slot of the model.
    pub fn new(c: &Compute, slots: &mut Slots, p: Precision, origin: Origin, dtype: DType, rows: usize, cols: usize) -> Result<Self> {
        let keep_f32 = origin == Origin::Fused && p != Precision::Delayed;
        let codes = match p {
            Precision::F32 => None,
            Precision::Delayed | Precision::Current => Some(Codes {
                dtype,
                row_wise: c.bytes(rows * cols)?,
                transposed: c.bytes(rows * cols)?,
                ld_t: rows,
                scale_inv: c.floats(1)?,
                slot: slots.take(dtype),
            }),
        };
        let staging = if keep_f32 { Some(c.floats(rows * cols)?) } else { None };
        Ok(Self { precision: p, cols, staging, codes, source: Default::default() })
    }

    /// What the operation that makes this operand writes: codes under delayed scaling, f32 otherwise.
    pub fn sink(&self, slots: &Slots, rows: usize, training: bool) -> TensorView {
        match &self.staging {
            Some(f32) => TensorView::new(DType::F32, f32.ptr(), rows as i64, self.cols as i64),
            None => self.codes(slots, rows, training),
        }
    }

    /// After the sink was written: casts it where that is still to be done.
    pub fn settle(&self, c: &Compute, slots: &Slots, rows: usize, training: bool) -> Result<()> {
        let written = self.sink(slots, rows, training);
        match self.precision {
            Precision::F32 => self.source.set(Some(written)),
            Precision::Delayed => {}
            Precision::Current => c.cast_current(&written, &self.codes(slots, rows, training))?,
        }
        Ok(())
    }

    /// Casts it from `x`.
    pub fn cast(&self, c: &Compute, slots: &Slots, x: &TensorView, training: bool) -> Result<()> {
        match self.precision {
            Precision::F32 => self.source.set(Some(*x)),
            Precision::Delayed => c.cast(x, &self.codes(slots, x.rows as usize, training))?,
            Precision::Current => self.cast_current(c, slots, x, training)?,
        }
        Ok(())
    }

    /// Casts it from `x` with a scale from `x` itself: every cast of current scaling, and the first one of new weights under delayed
    /// scaling. In training the scale and the amax then stand in the slot.
    pub fn cast_current(&self, c: &Compute, slots: &Slots, x: &TensorView, training: bool) -> Result<()> {
        let mut codes = self.codes(slots, x.rows as usize, training);
        if !training {
            codes.scale = Ptr::NULL;
        }
        c.cast_current(x, &codes)
    }

    /// Casts it from a gradient and sums the gradient's columns into `dbias`.
    pub fn cast_gradient(&self, c: &Compute, slots: &Slots, dy: &TensorView, dbias: Ptr) -> Result<()> {
        let codes = self.codes.is_some().then(|| self.codes(slots, dy.rows as usize, true));
        self.source.set(Some(*dy));
        c.cast_gradient(dy, codes.as_ref(), self.precision == Precision::Current, dbias)
    }

    /// What a product reads.
    pub fn view(&self, slots: &Slots, rows: usize, training: bool) -> TensorView {
        match self.precision {
            Precision::F32 => self.source.get().expect("an operand is written before it is read"),
            Precision::Delayed | Precision::Current => self.codes(slots, rows, training),
        }
    }

    /// Codes with their slots. Outside training no amax is recorded and, as nothing will run backward, no transposed copy is made.
    fn codes(&self, slots: &Slots, rows: usize, training: bool) -> TensorView {
        let codes = self.codes.as_ref().expect("FP8 recipes have codes");
        let view = TensorView::new(codes.dtype, codes.row_wise.ptr(), rows as i64, self.cols as i64);
        let amax = if training { slots.live(codes.slot) } else { Ptr::NULL };
        let view = view.with_scaling(slots.scale(codes.slot), codes.scale_inv.ptr(), amax);
        if training {
            view.with_transpose(codes.transposed.ptr(), codes.ld_t as i64)
        } else {
            view
        }
    }
}

/// FP8 products accumulate fast forward and precisely backward; in f32 there is no difference.
pub const FORWARD: Accumulate = Accumulate::Fast;
/// See [`FORWARD`].
pub const BACKWARD: Accumulate = Accumulate::Precise;

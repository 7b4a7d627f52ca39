//! The device as this program uses it: one stream, one scratch buffer for all.

use std::cell::RefCell;

use nvte::{
    ops::{
        cast::{cast_dbias, cast_dbias_workspace, CastDbiasArgs},
        scaling::{scaling_update, ScalingUpdateArgs},
    },
    Buffer, Context, DType, Ptr, Result, Stream, TensorView,
};

/// A device and its scratch memory.
///
/// The library's calls are unsafe because they trust pointers. Here every view is made from a buffer that its owner keeps for as long as
/// the model lives, with the sizes that buffer was made for, and all work runs on one stream: that is what each SAFETY comment of this
/// program refers to.
pub struct Compute {
    ctx: Context,
    workspace: RefCell<Buffer>,
}

impl Compute {
    /// On a context's device.
    pub fn new(ctx: &Context) -> Result<Self> {
        Ok(Self { ctx: ctx.clone(), workspace: RefCell::new(Buffer::new(ctx, 1 << 20)?) })
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.ctx
    }

    /// Uninitialised bytes.
    pub fn bytes(&self, n: usize) -> Result<Buffer> {
        Buffer::new(&self.ctx, n)
    }

    /// Uninitialised f32 values.
    pub fn floats(&self, n: usize) -> Result<Buffer> {
        Buffer::new(&self.ctx, 4 * n)
    }

    /// These values.
    pub fn upload(&self, values: &[f32]) -> Result<Buffer> {
        Buffer::from_slice(&self.ctx, values)
    }

    /// Scratch memory of at least `bytes`. It grows in the first step and then stays: the library never allocates.
    pub fn scratch(&self, bytes: u64) -> Result<(Ptr, u64)> {
        let mut held = self.workspace.borrow_mut();
        if (held.bytes() as u64) < bytes {
            // Work that still uses the old one must be over before it is freed.
            self.ctx.synchronize(Stream::NULL)?;
            *held = self.bytes(bytes as usize)?;
        }
        Ok((held.ptr(), held.bytes() as u64))
    }

    /// `y += x`: as the bias gradient of a cast that casts nothing. x is one row, and each sum over its one row is added to what y holds.
    pub fn add(&self, x: &TensorView, y: &TensorView) -> Result<()> {
        let row = TensorView::new(DType::F32, x.data, 1, x.rows * x.cols);
        let (workspace, workspace_bytes) = self.scratch(cast_dbias_workspace(&self.ctx, row.rows, row.cols)?)?;
        let args = CastDbiasArgs {
            input: row,
            output: None,
            current: None,
            dbias: y.data,
            dbias_dtype: DType::F32,
            accumulate: true,
            workspace,
            workspace_bytes,
        };
        // SAFETY: see `Compute`.
        unsafe { cast_dbias(&self.ctx, &args, Stream::NULL) }
    }

    /// Recorded amaxes become scales.
    pub fn scaling_update(&self, args: &ScalingUpdateArgs) -> Result<()> {
        // SAFETY: see `Compute`.
        unsafe { scaling_update(&self.ctx, args, Stream::NULL) }
    }
}

//! The residual MLP: stem, pre-norm blocks `x + linear(gelu(linear(norm(x))))`, norm, head.

use nvte::{Buffer, Context, DType, Result, TensorView};
use rand::{rngs::StdRng, SeedableRng};

use crate::{
    compute::Compute,
    data::{CLASSES, PIXELS},
    layers::{Precision, Shared, Unit, UnitShape},
    parameters::{normal, Layout, Parameters},
    slots::Slots,
};

/// Sizes of a model.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Features of the residual stream.
    pub width: usize,
    /// Features inside a block.
    pub hidden: usize,
    /// Number of blocks.
    pub blocks: usize,
    /// Most rows of a batch.
    pub rows: usize,
}

/// A model with its parameters, gradients and everything kept between forward and backward.
pub struct Mlp {
    precision: Precision,
    shape: Shape,
    layout: Layout,
    shared: Shared,
    stem: Unit,
    blocks: Vec<Unit>,
    head: Unit,
    images: Buffer,
    /// The residual stream before each block and after the last.
    stream: Vec<Buffer>,
    logits: Buffer,
    dlogits: Buffer,
    /// Gradients: of the stream, and of a block's input through the block.
    dstream: Buffer,
    dbranch: Buffer,
}

fn matrix(b: &Buffer, rows: usize, cols: usize) -> TensorView {
    TensorView::new(DType::F32, b.ptr(), rows as i64, cols as i64)
}

impl Mlp {
    /// A new model. Equal seeds give equal weights, whatever the precision.
    pub fn new(ctx: &Context, precision: Precision, shape: Shape, seed: u64) -> Result<Self> {
        let c = Compute::new(ctx)?;
        let Shape { width, hidden, rows, .. } = shape;
        let (mut layout, mut slots) = (Layout::default(), Slots::new(&c)?);
        let mut unit = |s: UnitShape| Unit::new(&c, &mut layout, &mut slots, precision, &s);
        let stem = unit(UnitShape::linear(rows, PIXELS, width))?;
        let blocks = (0..shape.blocks).map(|_| unit(UnitShape::norm_mlp(rows, width, hidden))).collect::<Result<Vec<_>>>()?;
        let head = unit(UnitShape::norm_linear(rows, width, CLASSES))?;
        slots.seal()?;

        let mut values = vec![0.0f32; layout.len()];
        let mut rng = StdRng::seed_from_u64(seed);
        // Each block adds little to the stream at first, and all of them together about as much as the stem.
        let (up, down) = (1.4, 1.0 / (shape.blocks as f32).sqrt());
        let gains = std::iter::once(vec![1.0]).chain(blocks.iter().map(|_| vec![up, down])).chain([vec![0.5]]);
        for (unit, gains) in std::iter::once(&stem).chain(&blocks).chain([&head]).zip(gains) {
            if let Some(gamma) = unit.gamma() {
                values[gamma.range()].fill(1.0);
            }
            for ([weight, _], gain) in unit.products.iter().zip(gains) {
                normal(&mut values, weight, gain, &mut rng);
            }
        }

        let stream = (0..=shape.blocks).map(|_| c.floats(rows * width)).collect::<Result<_>>()?;
        let (images, logits, dlogits) = (c.floats(rows * PIXELS)?, c.floats(rows * CLASSES)?, c.floats(rows * CLASSES)?);
        let (dstream, dbranch) = (c.floats(rows * width)?, c.floats(rows * width)?);
        let shared = Shared { parameters: Parameters::new(ctx, &values)?, compute: c, slots };
        Ok(Self { precision, shape, layout, shared, stem, blocks, head, images, stream, logits, dlogits, dstream, dbranch })
    }

    /// Where each parameter lies.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// All parameters.
    pub fn values(&self) -> Result<Vec<f32>> {
        self.shared.parameters.values.read(0, self.layout.len())
    }

    /// Writes all parameters.
    pub fn set_values(&self, values: &[f32]) -> Result<()> {
        self.shared.parameters.values.write(0, values)
    }

    /// All gradients, after `backward`.
    pub fn gradients(&self) -> Result<Vec<f32>> {
        self.shared.parameters.gradients.read(0, self.layout.len())
    }

    /// Scales of all slots.
    #[cfg(test)]
    pub fn scales(&self) -> Result<Vec<f32>> {
        self.shared.slots.scales()
    }

    /// Logits `[rows, CLASSES]` of `rows` images. In training everything is kept that `backward` needs, and amaxes are recorded.
    pub fn forward(&self, images: &[f32], training: bool) -> Result<Vec<f32>> {
        let (m, rows, width) = (&self.shared, images.len() / PIXELS, self.shape.width);
        assert!(rows <= self.shape.rows, "{rows} rows");
        if training && self.precision == Precision::Delayed {
            m.slots.begin_step(&m.compute)?;
        }
        self.images.write(0, images)?;
        self.stem.forward(m, &matrix(&self.images, rows, PIXELS), &matrix(&self.stream[0], rows, width), training)?;
        for (block, pair) in self.blocks.iter().zip(self.stream.windows(2)) {
            let (x, y) = (matrix(&pair[0], rows, width), matrix(&pair[1], rows, width));
            block.forward(m, &x, &y, training)?;
            m.compute.add(&x, &y)?;
        }
        let last = matrix(&self.stream[self.shape.blocks], rows, width);
        self.head.forward(m, &last, &matrix(&self.logits, rows, CLASSES), training)?;
        self.logits.read(0, rows * CLASSES)
    }

    /// Gradients of all parameters from those of the logits, after a `forward` in training.
    pub fn backward(&self, dlogits: &[f32]) -> Result<()> {
        let (m, rows, width) = (&self.shared, dlogits.len() / CLASSES, self.shape.width);
        let (dstream, dbranch) = (matrix(&self.dstream, rows, width), matrix(&self.dbranch, rows, width));
        self.dlogits.write(0, dlogits)?;
        let last = matrix(&self.stream[self.shape.blocks], rows, width);
        self.head.backward(m, &last, &matrix(&self.dlogits, rows, CLASSES), Some(&dstream))?;
        for (block, x) in self.blocks.iter().zip(&self.stream).rev() {
            // The stream's gradient passes by the block as well as through it.
            block.backward(m, &matrix(x, rows, width), &dstream, Some(&dbranch))?;
            m.compute.add(&dbranch, &dstream)?;
        }
        self.stem.backward(m, &matrix(&self.images, rows, PIXELS), &dstream, None)
    }
}

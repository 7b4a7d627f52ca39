//! The residual MLP: stem, pre-norm blocks `x + linear(gelu(linear(norm(x))))`, norm, head.

use nvte::{Buffer, Context, DType, Result, TensorView};
use rand::{rngs::StdRng, SeedableRng};

use crate::{
    compute::Compute,
    data::{CLASSES, PIXELS},
    layers::{Linear, LinearShape, Norm, Shared},
    operand::{Origin, Precision},
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

struct Block {
    norm: Norm,
    up: Linear,
    down: Linear,
    /// Output of `up`, kept for the activation's backward pass.
    h: Buffer,
}

/// A model with its parameters, gradients and everything kept between forward and backward.
pub struct Mlp {
    precision: Precision,
    shape: Shape,
    layout: Layout,
    shared: Shared,
    stem: Linear,
    blocks: Vec<Block>,
    norm: Norm,
    head: Linear,
    images: Buffer,
    /// The residual stream before each block and after the last.
    stream: Vec<Buffer>,
    logits: Buffer,
    dlogits: Buffer,
    /// Gradients: of the stream, of a block's input through the block, of a norm's output, of an activation's output.
    dstream: Buffer,
    dbranch: Buffer,
    dnorm: Buffer,
    dact: Buffer,
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
        let mut linear = |layout: &mut Layout, inputs, outputs, x, dy| {
            Linear::new(&c, layout, &mut slots, precision, &LinearShape { inputs, outputs, rows, x, dy })
        };
        let stem = linear(&mut layout, PIXELS, width, Origin::Matrix, Origin::Matrix)?;
        let mut blocks = Vec::new();
        for _ in 0..shape.blocks {
            let norm = Norm::new(&c, &mut layout, rows, width)?;
            let up = linear(&mut layout, width, hidden, Origin::Fused, Origin::Fused)?;
            let down = linear(&mut layout, hidden, width, Origin::Fused, Origin::Matrix)?;
            blocks.push(Block { norm, up, down, h: c.floats(rows * hidden)? });
        }
        let norm = Norm::new(&c, &mut layout, rows, width)?;
        let head = linear(&mut layout, width, CLASSES, Origin::Fused, Origin::Matrix)?;
        slots.seal()?;

        let mut values = vec![0.0f32; layout.len()];
        let mut rng = StdRng::seed_from_u64(seed);
        normal(&mut values, &stem.weight, 1.0, &mut rng);
        for b in &blocks {
            values[b.norm.gamma.range()].fill(1.0);
            normal(&mut values, &b.up.weight, 1.4, &mut rng);
            // Each block adds little to the stream at first, and all of them together about as much as the stem.
            normal(&mut values, &b.down.weight, 1.0 / (shape.blocks as f32).sqrt(), &mut rng);
        }
        values[norm.gamma.range()].fill(1.0);
        normal(&mut values, &head.weight, 0.5, &mut rng);

        let stream = (0..=shape.blocks).map(|_| c.floats(rows * width)).collect::<Result<_>>()?;
        let (images, logits, dlogits) = (c.floats(rows * PIXELS)?, c.floats(rows * CLASSES)?, c.floats(rows * CLASSES)?);
        let (dstream, dbranch) = (c.floats(rows * width)?, c.floats(rows * width)?);
        let (dnorm, dact) = (c.floats(rows * width)?, c.floats(rows * hidden)?);
        let shared = Shared { parameters: Parameters::new(ctx, &values)?, compute: c, slots };
        Ok(Self {
            precision,
            shape,
            layout,
            shared,
            stem,
            blocks,
            norm,
            head,
            images,
            stream,
            logits,
            dlogits,
            dstream,
            dbranch,
            dnorm,
            dact,
        })
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
        self.stem.x.cast(&m.compute, &m.slots, &matrix(&self.images, rows, PIXELS), training)?;
        self.stem.forward(m, rows, &matrix(&self.stream[0], rows, width), None, training)?;
        for (block, pair) in self.blocks.iter().zip(self.stream.windows(2)) {
            let (x, y) = (matrix(&pair[0], rows, width), matrix(&pair[1], rows, width));
            let h = matrix(&block.h, rows, self.shape.hidden);
            block.norm.forward(m, &x, &block.up.x.sink(&m.slots, rows, training))?;
            block.up.x.settle(&m.compute, &m.slots, rows, training)?;
            block.up.forward(m, rows, &h, None, training)?;
            m.compute.gelu(&h, &block.down.x.sink(&m.slots, rows, training))?;
            block.down.x.settle(&m.compute, &m.slots, rows, training)?;
            block.down.forward(m, rows, &y, Some(x), training)?;
        }
        let last = matrix(&self.stream[self.shape.blocks], rows, width);
        self.norm.forward(m, &last, &self.head.x.sink(&m.slots, rows, training))?;
        self.head.x.settle(&m.compute, &m.slots, rows, training)?;
        self.head.forward(m, rows, &matrix(&self.logits, rows, CLASSES), None, training)?;
        self.logits.read(0, rows * CLASSES)
    }

    /// Gradients of all parameters from those of the logits, after a `forward` in training.
    pub fn backward(&self, dlogits: &[f32]) -> Result<()> {
        let (m, rows, width, hidden) = (&self.shared, dlogits.len() / CLASSES, self.shape.width, self.shape.hidden);
        let (dstream, dbranch) = (matrix(&self.dstream, rows, width), matrix(&self.dbranch, rows, width));
        let (dnorm, dact) = (matrix(&self.dnorm, rows, width), matrix(&self.dact, rows, hidden));
        self.dlogits.write(0, dlogits)?;
        self.head.dy.cast_gradient(&m.compute, &m.slots, &matrix(&self.dlogits, rows, CLASSES), self.head.dbias(m))?;
        self.head.backward(m, rows, Some(dnorm))?;
        self.norm.backward(m, &dnorm, &matrix(&self.stream[self.shape.blocks], rows, width), &dstream)?;
        for (block, x) in self.blocks.iter().zip(&self.stream).rev() {
            block.down.dy.cast_gradient(&m.compute, &m.slots, &dstream, block.down.dbias(m))?;
            block.down.backward(m, rows, Some(dact))?;
            let dh = block.up.dy.sink(&m.slots, rows, true);
            m.compute.gelu_backward(&dact, &matrix(&block.h, rows, hidden), &dh, block.up.dbias(m))?;
            block.up.dy.settle(&m.compute, &m.slots, rows, true)?;
            block.up.backward(m, rows, Some(dnorm))?;
            // The stream's gradient passes by the block as well as through it.
            block.norm.backward(m, &dnorm, &matrix(x, rows, width), &dbranch)?;
            m.compute.add(&dbranch, &dstream)?;
        }
        self.stem.dy.cast_gradient(&m.compute, &m.slots, &dstream, self.stem.dbias(m))?;
        self.stem.backward(m, rows, None)
    }
}

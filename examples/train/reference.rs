//! The model once more, naively and in f64: what the gradients of the real one are compared with.

use crate::{
    data::{CLASSES, PIXELS},
    model::Shape,
    parameters::Layout,
};

/// Reads parameters one after the other, as the model laid them out.
struct Cursor<'a> {
    layout: &'a Layout,
    values: &'a [f64],
    next: usize,
}

impl Cursor<'_> {
    fn take(&mut self) -> &[f64] {
        self.next += 1;
        &self.values[self.layout.parts()[self.next - 1].range()]
    }

    fn linear(&mut self, x: &[f64], inputs: usize) -> Vec<f64> {
        let weight = self.take().to_vec();
        let bias = self.take();
        let row = |x: &[f64]| -> Vec<f64> {
            let dot = |w: &[f64]| w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
            weight.chunks(inputs).zip(bias).map(|(w, b)| dot(w) + b).collect()
        };
        x.chunks(inputs).flat_map(row).collect()
    }

    fn norm(&mut self, x: &[f64], features: usize) -> Vec<f64> {
        let gamma = self.take().to_vec();
        let beta = self.take();
        let row = |x: &[f64]| -> Vec<f64> {
            let mean = x.iter().sum::<f64>() / features as f64;
            let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / features as f64;
            let rsigma = 1.0 / (variance + f64::from(crate::layers::NORM_EPSILON)).sqrt();
            x.iter().zip(gamma.iter().zip(beta)).map(|(v, (g, b))| (v - mean) * rsigma * g + b).collect()
        };
        x.chunks(features).flat_map(row).collect()
    }
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

/// Mean cross-entropy of the model with these parameters.
pub fn loss(layout: &Layout, values: &[f64], shape: &Shape, images: &[f32], classes: &[u8]) -> f64 {
    let mut c = Cursor { layout, values, next: 0 };
    let images: Vec<f64> = images.iter().map(|v| f64::from(*v)).collect();
    let mut x = c.linear(&images, PIXELS);
    for _ in 0..shape.blocks {
        let n = c.norm(&x, shape.width);
        let h: Vec<f64> = c.linear(&n, shape.width).into_iter().map(gelu).collect();
        let y = c.linear(&h, shape.hidden);
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
    }
    let n = c.norm(&x, shape.width);
    let logits = c.linear(&n, shape.width);
    assert_eq!(c.next, layout.parts().len());
    let cost = |(row, class): (&[f64], &u8)| row.iter().map(|v| v.exp()).sum::<f64>().ln() - row[usize::from(*class)];
    logits.chunks(CLASSES).zip(classes).map(cost).sum::<f64>() / classes.len() as f64
}

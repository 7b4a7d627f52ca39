//! Softmax and cross-entropy on the host: ten logits per image.

use crate::data::CLASSES;

/// What a batch of logits says.
pub struct Verdict {
    /// Mean cross-entropy.
    pub loss: f32,
    /// Images whose largest logit is the right one.
    pub right: usize,
    /// Gradient of the mean cross-entropy by the logits.
    pub dlogits: Vec<f32>,
}

/// Compares logits `[rows, CLASSES]` with the right classes.
pub fn cross_entropy(logits: &[f32], classes: &[u8]) -> Verdict {
    let rows = classes.len();
    let mut verdict = Verdict { loss: 0.0, right: 0, dlogits: Vec::with_capacity(logits.len()) };
    let mut total = 0.0;
    for (row, class) in logits.chunks_exact(CLASSES).zip(classes) {
        let class = usize::from(*class);
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exps: Vec<f32> = row.iter().map(|v| (v - largest).exp()).collect();
        let sum: f32 = exps.iter().sum();
        total += f64::from(sum.ln() - (row[class] - largest));
        verdict.right += usize::from(row.iter().position(|v| *v == largest) == Some(class));
        let one = |i| if i == class { 1.0 } else { 0.0 };
        verdict.dlogits.extend(exps.iter().enumerate().map(|(i, e)| (e / sum - one(i)) / rows as f32));
    }
    verdict.loss = (total / rows as f64) as f32;
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_cost_the_logarithm_of_the_classes_and_gradients_sum_to_nothing() {
        let v = cross_entropy(&[1e4; 2 * CLASSES], &[0, 9]);
        assert!((v.loss - (CLASSES as f32).ln()).abs() < 1e-6);
        assert_eq!(v.right, 1);
        for row in v.dlogits.chunks(CLASSES) {
            assert!(row.iter().sum::<f32>().abs() < 1e-6);
        }
        assert!((v.dlogits[0] + 0.45).abs() < 1e-6 && (v.dlogits[1] - 0.05).abs() < 1e-6);
    }
}

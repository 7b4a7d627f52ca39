//! The handwritten digits: 1797 images of 8 x 8 pixels, bundled with the program (see `digits.LICENCE.md` for their source).

use rand::{rngs::StdRng, seq::SliceRandom, RngExt, SeedableRng};

static DIGITS: &[u8] = include_bytes!("digits.bin");

/// Width and height of an image.
const SIDE: usize = 8;
/// Pixels of an image.
pub const PIXELS: usize = SIDE * SIDE;
/// Number of classes.
pub const CLASSES: usize = 10;
/// Images held back for the test.
const TEST: usize = 450;
/// Every run, recipe and seed splits the data in the same way.
const SPLIT_SEED: u64 = 20_241;

/// One record of the bundled file.
#[derive(Clone, Copy)]
pub struct Image {
    class: u8,
    pixels: &'static [u8],
}

/// Inputs `[rows, PIXELS]` and their classes.
#[derive(Clone, Default)]
pub struct Batch {
    /// Pixels, centred and about one wide.
    pub inputs: Vec<f32>,
    /// Right answers.
    pub classes: Vec<u8>,
}

impl Batch {
    /// Number of images.
    pub fn rows(&self) -> usize {
        self.classes.len()
    }

    fn push(&mut self, image: Image, pose: &Pose) {
        let side = SIDE as i32;
        let ink = |x: i32, y: i32| match (0..side).contains(&x) && (0..side).contains(&y) {
            true => f32::from(image.pixels[(y * side + x) as usize]),
            false => 0.0,
        };
        for y in 0..side {
            for x in 0..side {
                let (from_x, from_y) = pose.source(x as f32, y as f32);
                let (left, top) = (from_x.floor(), from_y.floor());
                let (wx, wy) = (from_x - left, from_y - top);
                let (i, j) = (left as i32, top as i32);
                let upper = ink(i, j) * (1.0 - wx) + ink(i + 1, j) * wx;
                let lower = ink(i, j + 1) * (1.0 - wx) + ink(i + 1, j + 1) * wx;
                // The pixels' mean is about 5 of 16 and their deviation about 6.
                self.inputs.push((upper * (1.0 - wy) + lower * wy - 5.0) / 6.0);
            }
        }
        self.classes.push(image.class);
    }
}

/// A small change of an image that leaves the digit what it is.
struct Pose {
    /// Rows of the map from a place in the new image to one in the old, both measured from the centre.
    map: [[f32; 2]; 2],
    shift: [f32; 2],
}

impl Pose {
    const UPRIGHT: Pose = Pose { map: [[1.0, 0.0], [0.0, 1.0]], shift: [0.0, 0.0] };

    fn random(rng: &mut StdRng) -> Self {
        let mut about = |range: f32| rng.random_range(-range..=range);
        let (sin, cos) = about(0.15).sin_cos();
        let (wide, high, slant) = (1.0 + about(0.1), 1.0 + about(0.1), about(0.1));
        Self { map: [[cos * wide, slant - sin], [sin, cos * high]], shift: [about(0.7), about(0.7)] }
    }

    fn source(&self, x: f32, y: f32) -> (f32, f32) {
        let centre = (SIDE - 1) as f32 / 2.0;
        let (x, y) = (x - centre, y - centre);
        let along = |i: usize| self.map[i][0] * x + self.map[i][1] * y + self.shift[i] + centre;
        (along(0), along(1))
    }
}

/// The images, split once and for all.
pub struct Digits {
    train: Vec<Image>,
    test: Vec<Image>,
}

impl Digits {
    /// Reads the bundled file and splits it.
    pub fn load() -> Self {
        let record = |r: &'static [u8]| Image { class: r[0], pixels: &r[1..] };
        let mut all: Vec<Image> = DIGITS.chunks_exact(1 + PIXELS).map(record).collect();
        all.shuffle(&mut StdRng::seed_from_u64(SPLIT_SEED));
        let test = all.split_off(all.len() - TEST);
        Self { train: all, test }
    }

    /// Number of images held back.
    pub fn test_len(&self) -> usize {
        self.test.len()
    }

    /// Number of images to train on.
    pub fn train_len(&self) -> usize {
        self.train.len()
    }

    /// The held-back images in pieces of at most `rows`.
    pub fn test(&self, rows: usize) -> Vec<Batch> {
        self.test.chunks(rows).map(|images| images.iter().fold(Batch::default(), |mut b, i| (b.push(*i, &Pose::UPRIGHT), b).1)).collect()
    }

    /// An endless walk over the images to train on, shuffled anew in every epoch, each image turned, stretched and
    /// shifted a little.
    pub fn batches(&self, rows: usize, seed: u64) -> Batches<'_> {
        Batches { images: &self.train, order: Vec::new(), rows, rng: StdRng::seed_from_u64(seed) }
    }
}

/// See [`Digits::batches`].
pub struct Batches<'a> {
    images: &'a [Image],
    order: Vec<usize>,
    rows: usize,
    rng: StdRng,
}

impl Iterator for Batches<'_> {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        let mut batch = Batch::default();
        while batch.rows() < self.rows {
            let Some(i) = self.order.pop() else {
                self.order = (0..self.images.len()).collect();
                self.order.shuffle(&mut self.rng);
                continue;
            };
            batch.push(self.images[i], &Pose::random(&mut self.rng));
        }
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundled_file_is_whole() {
        assert_eq!(DIGITS.len(), 1797 * 65);
        assert!(DIGITS.chunks_exact(65).all(|r| r[0] < 10 && r[1..].iter().all(|p| *p <= 16)));
        let digits = Digits::load();
        assert_eq!((digits.train.len(), digits.test.len()), (1797 - TEST, TEST));
        let mut per_class = [0; CLASSES];
        digits.test.iter().for_each(|i| per_class[usize::from(i.class)] += 1);
        assert!(per_class.iter().all(|n| (TEST / 20..TEST / 5).contains(n)), "{per_class:?}");
    }

    #[test]
    fn a_pose_moves_the_ink_and_a_seed_repeats_its_batches() {
        let digits = Digits::load();
        let (mut still, mut moved) = (Batch::default(), Batch::default());
        still.push(digits.train[0], &Pose::UPRIGHT);
        moved.push(digits.train[0], &Pose { shift: [-1.0, 1.0], ..Pose::UPRIGHT });
        for (y, x) in [(0, 0), (3, 4), (6, 6)] {
            assert_eq!(moved.inputs[y * SIDE + x + 1], still.inputs[(y + 1) * SIDE + x]);
        }
        let pair = digits.batches(1400, 7).zip(digits.batches(1400, 7));
        pair.take(2).for_each(|(a, b)| assert!(a.classes == b.classes && a.inputs == b.inputs));
        assert_eq!(digits.test(100).iter().map(Batch::rows).sum::<usize>(), TEST);
    }
}

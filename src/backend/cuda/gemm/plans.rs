//! Plans of matrix products: one per distinct description, kept least recently used; and choices made by timing, as text.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hash, Hasher},
    sync::{
        atomic::{AtomicU64, Ordering},
        Arc, RwLock,
    },
};

use super::cublaslt::{Algo, LtPlan};
use crate::{
    error::{Error, Result, Status},
    ops::gemm::{Accumulate, Problem},
    tensor::Ptr,
};

/// Everything that decides which kernel computes a product, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key([i64; 8]);

impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, h: &mut H) {
        self.0.iter().for_each(|v| h.write_i64(*v));
    }
}

/// Multiply and rotate: keys are not hostile, and a call has little time.
#[derive(Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_i64(i64::from(*b)));
    }
    #[inline]
    fn write_i64(&mut self, v: i64) {
        self.0 = (self.0.rotate_left(23) ^ v as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    #[inline]
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// Classes of alignment: the power of two itself up to 8, then 16 and 256.
const CLASSES: [u64; 6] = [1, 2, 4, 8, 16, 256];

fn class(p: Ptr) -> i64 {
    match p.0.trailing_zeros() {
        z @ 0..=3 => i64::from(z),
        4..=7 => 4,
        _ => 5,
    }
}

impl Key {
    #[inline]
    pub(super) fn new(p: &Problem) -> Self {
        let read_c = p.beta != 0.0;
        let bias = if p.bias.is_null() { 0 } else { 1 + p.bias_dtype as i64 + if p.bias.0 % 16 == 0 { 0 } else { 4 } };
        let mut word = 0;
        // Field by field, four bits each, lowest first; alignments at the bottom.
        for v in [
            bias,
            if read_c { 1 + p.c_dtype as i64 } else { 0 },
            i64::from(p.accumulate == Accumulate::Fast),
            i64::from(p.a.k_major) | i64::from(p.b.k_major) << 1,
            p.d_dtype as i64,
            p.b.dtype as i64,
            p.a.dtype as i64,
            class(p.d),
            if read_c { class(p.c) } else { class(p.d) },
            class(p.b.data),
            class(p.a.data),
        ] {
            word = word << 4 | v;
        }
        Self([p.m, p.n, p.k, p.a.ld, p.b.ld, if read_c { p.ldc } else { 0 }, p.ldd, word])
    }

    /// Alignments in bytes of A, B, C, D.
    pub(super) fn alignments(&self) -> [u64; 4] {
        [0, 4, 8, 12].map(|shift| CLASSES[(self.0[7] >> shift & 15) as usize])
    }
}

/// What computes a product. Always behind an `Arc`.
#[allow(clippy::large_enum_variant)]
pub(super) enum Plan {
    CublasLt(LtPlan),
    Own,
}

struct Entry {
    plan: Arc<Plan>,
    used: AtomicU64,
}

/// A choice made by timing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    CublasLt(Algo),
    Own,
}

type Map<V> = HashMap<Key, V, BuildHasherDefault<Mix>>;

/// Plans of one context.
#[derive(Default)]
pub(super) struct Plans {
    entries: RwLock<Map<Entry>>,
    choices: RwLock<Map<Choice>>,
    clock: AtomicU64,
}

const MOST: usize = 256;
const HEAD: &str = "nvte-gemm-plans 1";

impl Plans {
    #[inline]
    pub(super) fn get(&self, key: &Key) -> Option<Arc<Plan>> {
        let entries = self.entries.read().unwrap_or_else(|e| e.into_inner());
        let entry = entries.get(key)?;
        entry.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some(entry.plan.clone())
    }

    pub(super) fn insert(&self, key: Key, plan: Plan) -> Arc<Plan> {
        let plan = Arc::new(plan);
        let mut entries = self.entries.write().unwrap_or_else(|e| e.into_inner());
        if entries.len() >= MOST && !entries.contains_key(&key) {
            let oldest = entries.iter().min_by_key(|(_, e)| e.used.load(Ordering::Relaxed)).map(|(k, _)| *k);
            oldest.map(|k| entries.remove(&k));
        }
        let used = AtomicU64::new(self.clock.fetch_add(1, Ordering::Relaxed));
        entries.insert(key, Entry { plan: plan.clone(), used });
        plan
    }

    /// Forgets plans, not choices.
    pub(super) fn clear(&self) {
        self.entries.write().unwrap_or_else(|e| e.into_inner()).clear();
    }

    pub(super) fn choice(&self, key: &Key) -> Option<Choice> {
        self.choices.read().unwrap_or_else(|e| e.into_inner()).get(key).copied()
    }

    pub(super) fn choose(&self, key: Key, choice: Choice) {
        self.choices.write().unwrap_or_else(|e| e.into_inner()).insert(key, choice);
        self.entries.write().unwrap_or_else(|e| e.into_inner()).remove(&key);
    }

    /// `origin` names device and library version: choices mean nothing elsewhere.
    pub(super) fn export(&self, origin: &str) -> String {
        let choices = self.choices.read().unwrap_or_else(|e| e.into_inner());
        let mut lines: Vec<String> = choices
            .iter()
            .map(|(key, choice)| {
                let key = key.0.map(|v| v.to_string()).join(" ");
                match choice {
                    Choice::Own => format!("{key} own"),
                    Choice::CublasLt(algo) => format!("{key} lt {}", algo.map(|w| format!("{w:x}")).join(" ")),
                }
            })
            .collect();
        lines.sort();
        lines.insert(0, format!("{HEAD} {origin}"));
        lines.join("\n") + "\n"
    }

    /// All of the text, or nothing of it.
    pub(super) fn import(&self, origin: &str, text: &str) -> Result<()> {
        let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
        let Some(head) = lines.next() else { return Ok(()) };
        let wanted = format!("{HEAD} {origin}");
        if head != wanted {
            return Err(Error::argument(
                Status::Unsupported,
                "text",
                format!("{head:?}"),
                format!("this device and library need {wanted:?}"),
            ));
        }
        let wrong = |line: &str| Error::argument(Status::InvalidValue, "text", format!("{line:?}"), "is not a line of an export");
        let parsed = lines.map(|l| parse(l).ok_or_else(|| wrong(l))).collect::<Result<Vec<_>>>()?;
        parsed.into_iter().for_each(|(k, c)| self.choose(k, c));
        Ok(())
    }
}

fn parse(line: &str) -> Option<(Key, Choice)> {
    let mut words = line.split_ascii_whitespace();
    let mut key = [0; 8];
    for v in &mut key {
        *v = words.next()?.parse().ok()?;
    }
    let choice = match words.next()? {
        "own" => Choice::Own,
        "lt" => {
            let mut algo = Algo::default();
            for w in &mut algo {
                *w = u64::from_str_radix(words.next()?, 16).ok()?;
            }
            Choice::CublasLt(algo)
        }
        _ => return None,
    };
    words.next().is_none().then_some((Key(key), choice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ops::gemm::GemmArgs,
        tensor::{DType, TensorView},
    };

    fn problem(m: i64, change: impl Fn(&mut GemmArgs)) -> Problem {
        let view = |t, rows, cols, at: u64| TensorView::new(t, Ptr(at), rows, cols);
        let (a, b) = (view(DType::E4m3, m, 64, 1 << 20), view(DType::E4m3, 32, 64, 2 << 20));
        let mut args = GemmArgs::new(a, b, view(DType::Bf16, m, 32, 3 << 20), Accumulate::Fast);
        change(&mut args);
        Problem::any(&args).unwrap()
    }

    #[test]
    fn a_key_is_what_decides_and_nothing_else() {
        let key = |change: fn(&mut GemmArgs)| Key::new(&problem(48, change));
        let base = key(|_| {});
        assert_eq!(base.alignments(), [256; 4]);
        // Addresses of the same alignment, factors, scales and workspaces decide nothing.
        assert_eq!(base, key(|g| g.a.data = Ptr(9 << 20)));
        assert_eq!(base, key(|g| (g.alpha, g.workspace, g.workspace_bytes) = (0.5, Ptr(16), 99)));
        assert_eq!(base, key(|g| g.b.scale_inv = Ptr(64)));
        let others: [fn(&mut GemmArgs); 13] = [
            |g| g.a.data = Ptr((1 << 20) + 16),
            |g| g.d.data = Ptr((3 << 20) + 2),
            |g| g.a.ld = 80,
            |g| g.d.ld = 40,
            |g| g.a.dtype = DType::E5m2,
            |g| g.b.dtype = DType::E5m2,
            |g| g.d.dtype = DType::F16,
            |g| g.accumulate = Accumulate::Precise,
            |g| (g.transpose_b, g.b.rows, g.b.cols) = (true, 64, 32),
            |g| (g.bias, g.bias_dtype) = (Ptr(256), DType::Bf16),
            |g| (g.bias, g.bias_dtype) = (Ptr(258), DType::Bf16),
            |g| (g.beta, g.c) = (1.0, Some(g.d)),
            |g| g.alpha = 0.0,
        ];
        let mut all: Vec<Key> = others.iter().map(|f| key(*f)).collect();
        all.push(base);
        for (i, k) in all.iter().enumerate() {
            assert!(!all[..i].contains(k), "{i}: {k:?}");
        }
        assert_eq!(key(others[0]).alignments(), [16, 256, 256, 256]);
        assert_eq!(key(others[1]).alignments(), [256, 256, 2, 2]);
        // One row has no stride.
        assert_eq!(Key::new(&problem(1, |_| {})), Key::new(&problem(1, |g| (g.a.ld, g.d.ld) = (99, 77))));
    }

    #[test]
    fn the_least_recently_used_plan_goes() {
        let plans = Plans::default();
        let key = |m: i64| Key::new(&problem(m, |_| {}));
        for m in 1..=MOST as i64 {
            plans.insert(key(m), Plan::Own);
        }
        assert!(plans.get(&key(1)).is_some());
        plans.insert(key(1000), Plan::Own);
        assert!(plans.get(&key(1)).is_some() && plans.get(&key(1000)).is_some() && plans.get(&key(3)).is_some());
        assert!(plans.get(&key(2)).is_none());
        plans.clear();
        assert!(plans.get(&key(3)).is_none());
    }

    #[test]
    fn choices_survive_the_way_through_text() {
        let (from, to) = (Plans::default(), Plans::default());
        let keys = [5, 6, 7].map(|m| Key::new(&problem(m, |_| {})));
        from.choose(keys[0], Choice::Own);
        from.choose(keys[1], Choice::CublasLt([0, 1, u64::MAX, 3, 4, 5, 6, 7]));
        to.insert(keys[1], Plan::Own);
        to.import("here", &from.export("here")).unwrap();
        assert_eq!(to.export("here"), from.export("here"));
        for k in &keys {
            assert_eq!(to.choice(k), from.choice(k));
        }
        assert!(to.get(&keys[1]).is_none(), "a plan made before the choice stayed");
        assert_eq!(to.import("there", &from.export("here")).unwrap_err().status(), Status::Unsupported);
        let head = Plans::default().export("here");
        for line in ["1 2 3 4 5 6 7 8", "1 2 3 4 5 6 7 8 own more", "1 2 3 4 5 6 7 x own", "1 2 3 4 5 6 7 8 lt 1 2 3", "own"] {
            let good = from.export("here").lines().nth(1).unwrap().to_owned();
            let fresh = Plans::default();
            let e = fresh.import("here", &format!("{head}{good}\n{line}\n")).unwrap_err();
            assert_eq!(e.status(), Status::InvalidValue, "{line}");
            assert_eq!(fresh.export("here"), head, "{line}: half of it was taken");
        }
        assert!(to.import("anywhere", " \n").is_ok());
    }
}

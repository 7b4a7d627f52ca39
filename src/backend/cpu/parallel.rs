//! Threads of the CPU back end. Work is cut into pieces that do not depend on the number of threads, so results do not either.

use std::ops::Range;

use rayon::prelude::*;

use super::ieee::Ieee;
use crate::error::{Error, Result, Status};

/// A pool of its own per context. In a forked child, where the pool's threads do not exist, work runs on the calling thread.
pub(crate) struct Threads {
    pool: Option<rayon::ThreadPool>,
    count: usize,
    process: u32,
}

impl Threads {
    pub(crate) fn new(count: Option<usize>) -> Result<Self> {
        let from_env = || std::env::var("NVTE_NUM_THREADS").ok().and_then(|v| v.trim().parse().ok());
        let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
        let count = count.or_else(from_env).unwrap_or_else(cores).clamp(1, 1024);
        let pool = (count > 1)
            .then(|| {
                let named = rayon::ThreadPoolBuilder::new().num_threads(count).thread_name(|i| format!("nvte-{i}"));
                // A thread begins in the mode of the one that makes it.
                named.start_handler(|_| Ieee::stay()).build()
            })
            .transpose()
            .map_err(|e| Error::new(Status::OutOfMemory, format!("num_threads = {count}: {e}")))?;
        Ok(Self { pool, count, process: std::process::id() })
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The pool, unless this is a forked child or there is only one thread.
    pub(crate) fn pool(&self) -> Option<&rayon::ThreadPool> {
        self.pool.as_ref().filter(|_| std::process::id() == self.process)
    }

    /// Calls `f` with pieces of `0..len`, each of `grain` (the last may be shorter), and returns the results in order.
    pub(crate) fn map<R: Send>(&self, len: usize, grain: usize, f: impl Fn(Range<usize>) -> R + Send + Sync) -> Vec<R> {
        let grain = grain.max(1);
        let pieces = len.div_ceil(grain);
        let piece = |i: usize| f(i * grain..((i + 1) * grain).min(len));
        match self.pool() {
            Some(pool) if pieces > 1 => pool.install(|| (0..pieces).into_par_iter().map(piece).collect()),
            _ => (0..pieces).map(piece).collect(),
        }
    }
}

/// How a matrix is cut into pieces of about 64 Ki elements: whole multiples of 64 rows and columns, so that transposed copies are written
/// in runs of 64, and so that neither tall nor wide matrices end up on one thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    rows: usize,
    cols: usize,
    row_step: usize,
    col_step: usize,
}

impl Grid {
    pub(crate) fn new(rows: usize, cols: usize) -> Self {
        const ELEMENTS: usize = 65_536;
        let row_step = (ELEMENTS / cols.max(1)).max(64).next_multiple_of(64).min(rows.max(1));
        let col_step = (ELEMENTS / row_step).max(64).next_multiple_of(64).min(cols.max(1));
        Self { rows, cols, row_step, col_step }
    }

    /// Calls `f` with the rows and columns of each piece; results in order.
    pub(crate) fn map<R: Send>(&self, threads: &Threads, f: impl Fn(Range<usize>, Range<usize>) -> R + Send + Sync) -> Vec<R> {
        if self.rows == 0 || self.cols == 0 {
            return Vec::new();
        }
        let across = self.cols.div_ceil(self.col_step);
        threads.map(self.rows.div_ceil(self.row_step) * across, 1, |i| {
            let (r, c) = (i.start / across * self.row_step, i.start % across * self.col_step);
            f(r..(r + self.row_step).min(self.rows), c..(c + self.col_step).min(self.cols))
        })
    }
}

//! Threads of the CPU back end. Work is cut into pieces that do not depend on the number of threads, so results do not either.

use std::ops::Range;

use rayon::prelude::*;

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
            .then(|| rayon::ThreadPoolBuilder::new().num_threads(count).thread_name(|i| format!("nvte-{i}")).build())
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

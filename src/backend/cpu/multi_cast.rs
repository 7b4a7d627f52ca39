//! Casts of a list on the CPU: one after the other, each on all threads.

use super::{cast, parallel::Threads};
use crate::ops::{
    cast::CastJob,
    multi_cast::{rule, CastEntry, MultiCastJob},
};

/// # Safety
/// Arguments validated, pointers live, the table written.
pub(super) unsafe fn multi_cast(threads: &Threads, job: &MultiCastJob) {
    // SAFETY: forwarded contract.
    let entries = unsafe { std::slice::from_raw_parts(job.list.table().entries.as_ptr::<CastEntry>(), job.list.count as usize) };
    for e in entries {
        let c = e.cast();
        let current = job.current.as_ref().map(|r| rule(r, c.output.dtype));
        // SAFETY: as above.
        unsafe { cast::cast(threads, &CastJob { current, skip: job.skip, ..CastJob::new(c.input, c.output) }) }
    }
}

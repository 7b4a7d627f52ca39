//! Enqueuing kernels.

use std::ffi::c_void;

use super::{
    driver::{CUlaunchAttribute, CUlaunchConfig},
    jit::{Function, KernelSpec},
    CudaBackend, Entered,
};
use crate::{
    context::Stream,
    error::{Error, Result, Status},
};

/// A kernel's file and id; blocks of a cluster, threads and shared memory of a block.
pub(crate) type ClusterKey = (u8, u64, [u32; 3]);

/// Grid, block and memory of one launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub(crate) grid: [u32; 3],
    pub(crate) block: u32,
    pub(crate) smem: u32,
    /// Blocks per cluster along x; 1: none.
    pub(crate) cluster: u32,
    /// Blocks of a cluster may share a multiprocessor: they find places sooner.
    pub(crate) packed: bool,
    /// All blocks run at the same time, so that they may wait for one another; the driver refuses what does not fit.
    pub(crate) cooperative: bool,
}

impl Launch {
    pub(crate) fn new(grid: [u32; 3], block: u32) -> Self {
        Self { grid, block, smem: 0, cluster: 1, packed: false, cooperative: false }
    }
}

/// An operation under way: the context is current, kernels can be loaded and enqueued on one stream.
pub(crate) struct Queue<'a> {
    pub(crate) backend: &'a CudaBackend,
    pub(crate) stream: Stream,
    _current: Entered,
}

/// Addresses of kernel arguments, in order.
macro_rules! arguments {
    ($($v:expr),* $(,)?) => { &mut [$(std::ptr::from_ref(&$v).cast_mut().cast::<std::ffi::c_void>()),*] };
}
pub(crate) use arguments;

impl<'a> Queue<'a> {
    pub(crate) fn new(backend: &'a CudaBackend, stream: Stream) -> Result<Self> {
        Ok(Self { backend, stream, _current: backend.enter()? })
    }

    /// Loads the kernel for `spec`: before the first of several launches, so that none is enqueued unless all can be.
    pub(crate) fn load<S: KernelSpec>(&self, spec: &S) -> Result<()> {
        self.backend.jit.get(spec, self.backend.driver, self.stream).map(drop)
    }

    /// Loads the kernel for `spec` and, unless the stream is the prepare stream, enqueues it.
    ///
    /// # Safety
    /// `arguments` are the kernel's parameters, in order and of their sizes; what they point to is live.
    #[inline]
    pub(crate) unsafe fn launch<S: KernelSpec>(&self, spec: &S, launch: &Launch, arguments: &mut [*mut c_void]) -> Result<()> {
        let f = self.backend.jit.get(spec, self.backend.driver, self.stream)?;
        if self.stream.is_prepare() {
            return Ok(());
        }
        // SAFETY: by contract.
        unsafe { self.enqueue(f, launch, arguments, spec.entry()) }
    }

    unsafe fn enqueue(&self, f: Function, l: &Launch, arguments: &mut [*mut c_void], entry: &str) -> Result<()> {
        let driver = self.backend.driver;
        crate::debug::log(2, || format!("launch {entry} grid {:?} block {} smem {}", l.grid, l.block, l.smem));
        use cudarc::driver::sys::CUlaunchAttributeID::{
            CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION as CLUSTER, CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE as SCHEDULING,
            CU_LAUNCH_ATTRIBUTE_COOPERATIVE as COOPERATIVE, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION as DEPENDENT,
        };
        // SAFETY: plain C structs, for which zeros are valid.
        let (mut attributes, mut config): ([CUlaunchAttribute; 4], CUlaunchConfig) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let mut count = 0;
        if self.backend.dependent_launch {
            attributes[count].id = DEPENDENT;
            attributes[count].value.programmaticStreamSerializationAllowed = 1;
            count += 1;
        }
        if l.cluster != 1 {
            attributes[count].id = CLUSTER;
            attributes[count].value.clusterDim.x = l.cluster;
            attributes[count].value.clusterDim.y = 1;
            attributes[count].value.clusterDim.z = 1;
            count += 1;
        }
        if l.packed {
            attributes[count].id = SCHEDULING;
            attributes[count].value.clusterSchedulingPolicyPreference =
                cudarc::driver::sys::CUclusterSchedulingPolicy::CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING;
            count += 1;
        }
        if l.cooperative {
            attributes[count].id = COOPERATIVE;
            attributes[count].value.cooperative = 1;
            count += 1;
        }
        [config.gridDimX, config.gridDimY, config.gridDimZ] = l.grid;
        (config.blockDimX, config.blockDimY, config.blockDimZ) = (l.block, 1, 1);
        config.sharedMemBytes = l.smem;
        config.hStream = self.stream.0.cast();
        config.attrs = attributes.as_mut_ptr();
        config.numAttrs = count as u32;
        // SAFETY: by contract; the attributes outlive the call.
        driver.check(entry, unsafe { (driver.launch_kernel_ex)(&config, f.0, arguments.as_mut_ptr(), std::ptr::null_mut()) })
    }

    /// Whether the stream has the default priority (or none, as the prepare stream). On others kernels whose blocks wait for one another had
    /// better not run: of two, one could take places between the blocks of the other, and both would wait for ever.
    pub(crate) fn default_priority(&self) -> bool {
        // Handles up to 2 are the default streams.
        if self.stream.is_prepare() || self.stream.0 as usize <= 2 {
            return true;
        }
        let mut priority = 0;
        // SAFETY: an out-pointer and the caller's stream.
        unsafe { (self.backend.driver.stream_get_priority)(self.stream.0.cast(), &mut priority) == 0 && priority == 0 }
    }

    /// How many clusters of such a launch run at a time, at least one. Of one block each: how many blocks.
    pub(crate) fn clusters<S: KernelSpec>(&self, spec: &S, l: &Launch) -> Result<u32> {
        Ok(self.resident(spec, l)?.max(1))
    }

    /// The same, or zero where the device has no room for one. Clusters of more than eight blocks, which are not portable, may be launched
    /// once this was asked of them.
    pub(crate) fn resident<S: KernelSpec>(&self, spec: &S, l: &Launch) -> Result<u32> {
        let (f, driver) = (self.backend.jit.get(spec, self.backend.driver, self.stream)?, self.backend.driver);
        let key = (S::SOURCE as u8, spec.id(), [l.cluster, l.block, l.smem]);
        let mut known = self.backend.clusters.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(n) = known.get(&key) {
            return Ok(*n);
        }
        const NON_PORTABLE_CLUSTER_SIZE_ALLOWED: i32 = 14;
        // SAFETY: a loaded function. A device that refuses has room for none.
        let allowed = l.cluster <= 8 || unsafe { (driver.func_set_attribute)(f.0, NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1) } == 0;
        // SAFETY: plain C structs, for which zeros are valid.
        let (mut attribute, mut config): (CUlaunchAttribute, CUlaunchConfig) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        attribute.id = cudarc::driver::sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attribute.value.clusterDim.x = l.cluster;
        attribute.value.clusterDim.y = 1;
        attribute.value.clusterDim.z = 1;
        [config.gridDimX, config.gridDimY, config.gridDimZ] = [l.cluster, 1, 1];
        (config.blockDimX, config.blockDimY, config.blockDimZ) = (l.block, 1, 1);
        config.sharedMemBytes = l.smem;
        config.attrs = &mut attribute;
        config.numAttrs = 1;
        let mut n = 0;
        if allowed {
            // SAFETY: an out-pointer, a loaded function and a configuration; all outlive the call.
            let code = unsafe { (driver.occupancy_clusters)(&mut n, f.0, &config) };
            // Some devices have no clusters so large at all.
            match l.cluster {
                ..=8 => driver.check("cuOccupancyMaxActiveClusters", code)?,
                _ if code != 0 => n = 0,
                _ => (),
            }
        }
        let n = n.max(0) as u32;
        known.insert(key, n);
        Ok(n)
    }

    /// Multiprocessors of the device.
    pub(crate) fn multiprocessors(&self) -> u32 {
        self.backend.capability.multiprocessors as u32
    }

    /// How many blocks of a launch ask L2 for what they will read ahead of their wait for the kernel before (`ask_l2`): those of the first
    /// `kilobytes` a multiprocessor of each input, of which a block reads `bytes`. They have to be among those that find places then.
    pub(crate) fn first_blocks(&self, launch: &Launch, bytes: u64, kilobytes: u64) -> u32 {
        (u64::from(self.multiprocessors()) * (kilobytes << 10)).div_ceil(bytes.max(1)).min(u64::from(launch.grid[0])) as u32
    }
}

/// A number of blocks as a grid dimension.
pub(crate) fn blocks(n: u64, limit: u64, what: &str) -> Result<u32> {
    if n <= limit {
        return Ok(n as u32);
    }
    Err(Error::argument(Status::SizeOverflow, what, n, format!("at most {limit} blocks fit a launch")))
}
